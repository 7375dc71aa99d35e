"""HTTP as tools see it: one request, one response, and two kinds of failure. Knows no socket and no policy."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from toolgate.tools.tool import ToolCallFailed, ToolCallInput, TransientToolFailure

MIB = 1024 * 1024


class EgressRefused(ToolCallFailed):
    """The request may not be made; nothing was sent to its destination."""


class EgressNoResponse(TransientToolFailure):
    """The request was made and there was no response."""


class EgressRequest(Struct, frozen=True):
    """A request; its bytes are charged to the budget of `account`, and the response is cut after `max_bytes` of its body."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes = b""
    account: str = ""
    seconds: float = 60.0
    max_bytes: int = 2 * MIB
    redirects: int = 5


class EgressResponse(Struct, frozen=True):
    """A response from `url`, the last of the redirects; header names are in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool = False

    @property
    def media_type(self) -> str:
        """The type and subtype of the body, in lower case; empty if there is no content type."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class EgressHttpClient(Protocol):
    """The only way in which tools reach the network."""

    async def send(self, request: EgressRequest) -> EgressResponse:
        """Send a request and return the response, whatever its status; raises EgressRefused and EgressNoResponse."""


def account_of(invocation: ToolCallInput) -> str:
    """Name the account of a call: its session within its caller, because clients choose the names of sessions."""
    return f"{invocation.caller}/{invocation.session}" if invocation.session else invocation.caller
