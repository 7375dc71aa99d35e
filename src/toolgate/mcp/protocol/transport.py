"""The port through which a client's session sends messages to an MCP server, and the errors of doing so.

Knows neither processes nor HTTP.

McpError
├── RemoteMcpError          the server answered this request with an error; the next one may succeed
├── McpResponseBroken       the response to this request did not arrive; other requests are not affected
└── McpConnectionLost       the server can no longer be reached
    ├── McpSessionExpired   it is there, but no longer knows the session: a new handshake helps
    └── McpLoginRequired    it demands a token that we do not have
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from toolgate.mcp.protocol.jsonrpc import Reply, RpcNotification, RpcRequest

CheckUrl: TypeAlias = Callable[[str], Awaitable[None]]
OnMessage: TypeAlias = Callable[[RpcRequest | RpcNotification], None]


class McpError(Exception):
    """An MCP server failed; the message completes a sentence that begins with the server's name."""


class RemoteMcpError(McpError):
    """The server answered the request with an error."""

    def __init__(self, message: str, code: int, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class McpResponseBroken(McpError):
    """The response broke off; the request may or may not have had its effect."""


class McpConnectionLost(McpError):
    """The connection is gone; running requests may or may not have had their effects."""


class McpSessionExpired(McpConnectionLost):
    """The server no longer knows our session."""


class McpLoginRequired(McpConnectionLost):
    """The server demands a token that we do not have."""


class McpTransport(Protocol):
    """One connection to a server; `lost` gets its result once the connection is gone."""

    lost: "asyncio.Future[McpConnectionLost]"

    async def open(self, on_message: OnMessage) -> None:
        """Connect; `on_message` receives the server's requests and notifications."""

    def set_revision(self, revision: str | None) -> None:
        """Use this revision of the protocol from now on, None for a handshake that is not finished."""

    async def request(self, request: RpcRequest, headers: Mapping[str, str] = {}) -> Mapping[str, Any]:
        """Send a request, at most once, and return its result or raise McpError. Cancelling it notifies the server."""

    async def send(self, message: RpcNotification | Reply) -> None:
        """Send a message that expects no response; a failure to do so shows only in `lost`."""

    async def listen(self) -> None:
        """Receive the server's own messages until cancelled, where that takes a connection of its own."""

    async def aclose(self) -> None:
        """Close everything that was opened."""


class McpHttpResponse(Protocol):
    """A response whose status and headers have arrived; the header names are in lower case."""

    status: int
    headers: Mapping[str, str]

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the chunks of the body as they arrive."""

    async def read(self) -> bytes:
        """Read the whole body, within a limit."""

    async def aclose(self) -> None:
        """Release the connection, which is closed unless the body was read to its end."""


class HttpRequestSender(Protocol):
    """Sends requests. It follows no redirects and limits only the time to connect: other limits are the caller's."""

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, *, once: bool
    ) -> McpHttpResponse:
        """Send a request and wait for status and headers; ToolgateError or ToolCallFailed if that fails.

        With `once` the request is sent at most once, even when a pooled connection turns out to be dead.
        """
