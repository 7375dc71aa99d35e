"""Where an MCP server is and how to log in to it, as it is configured. Values only."""

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

Grant: TypeAlias = Literal["authorization_code", "client_credentials"]


class StdioServerConfig(Struct, frozen=True):
    """A command to run; it sees `env` and a few harmless variables of our environment, and no others."""

    command: tuple[str, ...]
    env: Mapping[str, str] = {}
    cwd: str | None = None

    @property
    def address(self) -> str:
        """Where the server is: the command and its folder."""
        return ascii((self.command, os.path.abspath(self.cwd or ".")))  # ASCII: a folder's name need not be UTF-8


class OAuthConfig(Struct, frozen=True):
    """How to get a token for a remote server that demands one.

    Without `client_id` we register as a client where the authorization server allows it.
    `issuer` is the only authorization server that gets `client_secret`, by default the one of the first login.
    `audience` is the audience of tokens, where it is not the server's own URL.
    """

    grant: Grant = "authorization_code"
    client_id: str | None = None
    client_secret: str | None = None
    scope: str | None = None
    audience: str | None = None
    issuer: str | None = None


class RemoteServerConfig(Struct, frozen=True):
    """A URL that serves streamable HTTP; `headers` are sent with every request to it and to no other server.

    With `handshake` the `initialize` handshake is tried first: a server that supports both then keeps a session.
    """

    url: str
    headers: Mapping[str, str] = {}
    oauth: OAuthConfig = OAuthConfig()
    handshake: bool = False

    @property
    def address(self) -> str:
        """Where the server is: its URL."""
        return self.url
