"""A background response as it was accepted: all that is needed to make it, on this node or another, now or later.

What the request said of itself is kept, credentials are not: who asks is known by name, and what they may do is judged when
the response is made.
"""

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from msgspec import Struct

from toolgate.limits.purse import Held
from toolgate.server.app import Call
from toolgate.server.callers.auth import Caller
from toolgate.server.exchange import Exchange, Header
from toolgate.server.responses.keeper import Turn
from toolgate.telemetry.traced import RequestRecord

_OWN = b"x-toolgate-"


class Accepted(Struct, frozen=True):
    """What was asked; `streamed` if the client wanted events, `headers` are those that the answer depends on.

    `held` is what it holds back of its key's budget until it is over, whichever node it is over on.
    """

    id: str
    created: int
    turn: Turn
    streamed: bool
    request_id: str = ""
    path: str = "/v1/responses"
    headers: tuple[tuple[str, str], ...] = ()
    held: Held | None = None

    def call(self, caller: Caller) -> Call:
        """The request as if it came now."""
        record = RequestRecord(self.request_id, "POST", self.path, endpoint=self.path, caller=caller.name)
        return Call(cast(Exchange, _Remembered(self.headers)), caller, record)


class _Remembered:
    """Stands where the exchange stood, for whoever reads its headers; nobody waits for an answer."""

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        self.named = {name.encode("latin-1"): value.encode("latin-1") for name, value in headers}

    def header(self, name: bytes) -> str | None:
        """The header of this lower-case name."""
        value = self.named.get(name)
        return None if value is None else value.decode("latin-1")


def said(headers: Iterable[Header], passed: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The headers that an answer depends on: our own, and those that the dialect passes on."""
    names = {name.encode() for name in passed}
    kept = [(name, value) for name, value in headers if name in names or name.startswith(_OWN)]
    return tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept])


def write(accepted: Accepted) -> bytes:
    """As it is stored."""
    return msgspec.json.encode(accepted)


def read(stored: bytes) -> Accepted:
    """As it was accepted."""
    accepted: Accepted = msgspec.json.decode(stored, type=Accepted)
    return accepted


def failure(message: str, code: str = "server_error") -> dict[str, Any]:
    """The error of a response that failed."""
    return {"code": code, "message": message}
