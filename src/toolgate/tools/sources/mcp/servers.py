"""Where an MCP server is, as a person configures it. Opens nothing."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

Grant: TypeAlias = Literal["authorization_code", "client_credentials"]


class Stdio(Struct, frozen=True):
    """A program to run; it sees `env` and a few harmless variables of ours, and nothing else of our environment."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    cwd: str | None = None


class OAuth(Struct, frozen=True):
    """How to get a token where a remote server wants one.

    Without `client_id` we register ourselves where the authorization server allows it.
    `issuer` is the authorization server that `client_secret` may go to, by default the one of the first login.
    `audience` is who tokens are made out to, where that is not the server's own address.
    """

    grant: Grant = "authorization_code"
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    audience: str | None = None
    issuer: str | None = None


class Remote(Struct, frozen=True):
    """An address that speaks streamable HTTP; `headers` go with every request to it and to nobody else.

    With `handshake` the old way to begin is tried first, which keeps a session where both ways are understood.
    """

    url: str
    headers: Mapping[str, str] = {}
    oauth: OAuth = OAuth()
    handshake: bool = False
