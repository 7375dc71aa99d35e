"""How messages travel between us and an MCP server, and how that fails. Knows neither processes nor HTTP.

Trouble
├── Refused         the server answered this request with an error; the next one may fare better
├── Broken          this request's answer never came; others are not concerned
└── Lost            there is no server to talk to any more
    ├── Forgotten   it is there and knows nothing of us: shaking hands again mends it
    └── LoginNeeded it wants a token that we do not have
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from toolgate.tools.sources.mcp.messages import Notice, Request

CheckUrl: TypeAlias = Callable[[str], Awaitable[None]]
Hear: TypeAlias = Callable[[Request | Notice], None]


class Trouble(Exception):
    """What went wrong with a server, in words that complete its name."""


class Refused(Trouble):
    """The server answered this very request with an error."""

    def __init__(self, words: str, code: int, details: Any = None) -> None:
        super().__init__(words)
        self.code = code
        self.details = details


class Broken(Trouble):
    """The answer to this very request broke off; whatever was asked may or may not have happened."""


class Lost(Trouble):
    """The connection is gone; whatever was asked may or may not have happened."""


class Forgotten(Lost):
    """The server no longer knows our session."""


class LoginNeeded(Lost):
    """The server wants a token that we do not have."""


class Line(Protocol):
    """One connection to a server. `lost` is set, once, when it is gone."""

    lost: "asyncio.Future[Lost]"

    async def open(self, hear: Hear) -> None:
        """Connect; `hear` is told whatever the server says that is no answer."""

    def agree(self, version: str | None) -> None:
        """Speak this revision of the protocol from now on, or none in particular."""

    async def ask(self, request: Request, headers: Mapping[str, str] = {}) -> Mapping[str, Any]:
        """The result, or Trouble. Cancelling it tells the server. Nothing is ever sent twice."""

    async def say(self, message: bytes) -> None:
        """Send what wants no answer; a loss shows in `lost`."""

    async def attend(self) -> None:
        """Hear what the server says unasked, until cancelled, where that takes a connection of its own."""

    async def aclose(self) -> None:
        """Let go of everything; nobody is told."""


class HttpAnswer(Protocol):
    """An answer whose head has arrived; the header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it arrives."""

    async def read(self) -> bytes:
        """The whole body, within a bound."""

    async def aclose(self) -> None:
        """Be done with it; unless it was read to its end, the connection is closed."""


class Http(Protocol):
    """Sends requests. It follows no redirect, and has no time limits but for connecting: those are the caller's."""

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, once: bool) -> HttpAnswer:
        """Status and headers of the answer; ToolgateError or ToolFailure says why there is none.

        With `once` the request must leave at most once, even when a pooled connection turns out to be dead.
        """
