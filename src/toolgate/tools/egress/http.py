"""What a tool knows of HTTP: one request, one answer, and two ways to get none. Knows no socket and no policy."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from toolgate.tools.tool import Invocation, ToolFailure, TransientFailure

MIB = 1024 * 1024


class Refused(ToolFailure):
    """The request may not be made; nothing was sent to wherever it would have gone."""


class Unanswered(TransientFailure):
    """The request was made, as far as it went, and no answer came back."""


class HttpRequest(Struct, frozen=True):
    """A request; `account` is whose budget it is charged to, and an answer is cut after `max_bytes` of its body."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes = b""
    account: str = ""
    seconds: float = 60.0
    max_bytes: int = 2 * MIB
    redirects: int = 5


class HttpAnswer(Struct, frozen=True):
    """An answer as it came from `url`, the last of the redirects; header names are in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False

    @property
    def media_type(self) -> str:
        """The type and subtype of its body, in lower case; empty when it does not say."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Http(Protocol):
    """The only way in which tools reach the network."""

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """The answer, whatever its status; Refused and Unanswered are told in words for the model."""


def account_of(invocation: Invocation) -> str:
    """Whose budget a call's requests are charged to."""
    return invocation.session or invocation.caller
