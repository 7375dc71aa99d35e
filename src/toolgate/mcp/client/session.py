"""A session with one MCP server: open it, list its tools, call them.

Revisions up to 2025-11-25 open with a handshake; since 2026-07-28 the protocol is stateless and every request carries its
revision and client. Knows neither how messages are sent nor what a tool is to us.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import msgspec

from toolgate.mcp.client.backoff import Backoff
from toolgate.mcp.protocol.jsonrpc import (
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Reply,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcResultResponse,
)
from toolgate.mcp.protocol.line_reader import printable
from toolgate.mcp.protocol.revisions import (
    CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    IMPLEMENTATION,
    LATEST_WITH_HANDSHAKE,
    LIST_CHANGED,
    STATELESS,
    VERSION_KEY,
    WITH_HANDSHAKE,
)
from toolgate.mcp.protocol.transport import McpConnectionLost, McpResponseBroken, McpTransport, RemoteMcpError
from toolgate.tools.tool import CallProgressUpdate, ReportProgress
from toolgate.wire.jsontext import encode

# A server could list for ever; a list is held in memory as a whole, and the event loop looks at each of its tools.
MAX_TOOLS = 5_000
MAX_LIST_BYTES = 8 * 1024 * 1024
MAX_LIST_VALUES = 150_000
MAX_DEFINITION_BYTES = 512 * 1024
_MAX_PAGES = 1000
_MAX_CURSOR_CHARS = 4096
_MAX_REPLIES = 16
# A server that does not know `server/discover` may ignore it, and then needs the rest of `connect_timeout`.
_DISCOVER_SECONDS = 3.0


class ToolListing(NamedTuple):
    """The definitions that a server lists, and a sentence on each that was left out."""

    definitions: list[Any]
    left_out: list[str]


class ClientSession:
    """A session over a transport; `revision` is the one that both sides agreed on."""

    def __init__(self, transport: McpTransport, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever the server notifies us that its tools have changed."""
        self.revision = ""
        self._notifies_changes = False
        self._transport = transport
        self._on_change = on_change
        self._ids = count(1)
        self._on_progress: dict[int, ReportProgress] = {}
        self._replies: set[asyncio.Task[None]] = set()

    async def open(self, *, stateless_first: bool) -> None:
        """Agree on a revision, or raise McpError.

        A process should be offered the handshake first, which nearly every one supports; a URL the stateless protocol,
        which costs one request where it is not supported and saves the session where it is.
        """
        await self._transport.open(self._on_message)
        if not stateless_first:
            try:
                await self._initialize()
            except RemoteMcpError as refusal:
                # A server of the stateless protocol alone does not know `initialize`, or names what it supports.
                about_revisions = _supported_revisions(refusal) is not None
                if not about_revisions and refusal.code not in (METHOD_NOT_FOUND, UNSUPPORTED_VERSION):
                    raise
                await self._discover()
            return
        try:
            async with asyncio.timeout(_DISCOVER_SECONDS):
                await self._discover()
            return
        except (TimeoutError, McpResponseBroken):
            pass  # a server that does not know the method may not answer at all
        except RemoteMcpError as refusal:
            supported = _supported_revisions(refusal)
            if supported is not None and not set(supported) & set(WITH_HANDSHAKE):
                raise McpConnectionLost(f"supports only {', '.join(supported)} of the protocol") from None
        await self._initialize()

    async def list_tools(self) -> ToolListing:
        """List all definitions, page by page; a server whose pages repeat or never end is cut off."""
        listed = _ListedTools()
        cursors: set[str] = set()
        cursor: str | None = None
        while listed.end is None:
            result = await self._request("tools/list", {} if cursor is None else {"cursor": cursor})
            page, cursor = result.get("tools"), result.get("nextCursor")
            # In a thread, because measuring a definition means to encode it.
            await asyncio.to_thread(listed.add, page if type(page) is list else [])
            if type(cursor) is not str:
                break
            if cursor in cursors:
                listed.end = "the pages repeat"
            elif len(cursor) > _MAX_CURSOR_CHARS:
                listed.end = f"a cursor may have {_MAX_CURSOR_CHARS} characters"
            elif len(cursors) + 1 >= _MAX_PAGES:
                listed.end = f"a list may have {_MAX_PAGES} pages"
            cursors.add(cursor)
        if listed.end is not None:
            listed.left_out.append(f"whatever follows the first {len(listed.definitions)} tools: {listed.end}")
        return ToolListing(listed.definitions, listed.left_out)

    async def call_tool(
        self, name: str, arguments: str, on_progress: ReportProgress, headers: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Call a tool with exactly this JSON as arguments; the call is sent at most once."""
        id = next(self._ids)
        self._on_progress[id] = on_progress
        # Encoded as the model wrote them: decoding would round large numbers.
        exact = msgspec.Raw(arguments.encode("utf-8", "replace") or b"{}")
        params = {"name": name, "arguments": exact, "_meta": {"progressToken": id}}
        try:
            return await self._request("tools/call", params, id, headers)
        finally:
            del self._on_progress[id]

    async def listen(self) -> None:
        """Receive notifications of changes until cancelled; in the stateless protocol a request is open meanwhile."""
        if self.revision != STATELESS:  # with a handshake, many servers notify without having announced it
            await self._transport.listen()
        if not self._notifies_changes:
            await asyncio.Future()  # until cancelled
        backoff = Backoff(asyncio.get_running_loop().time, first=1.0)
        while True:
            backoff.start()
            try:
                await self._request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            except McpResponseBroken:
                pass  # a proxy has closed the idle stream, say: subscribe again
            except RemoteMcpError:
                await asyncio.Future()  # refused; the list is still read every few minutes
            await asyncio.sleep(backoff.seconds())
            self._on_change()  # changes between two subscriptions were not notified

    async def wait_lost(self) -> McpConnectionLost:
        """Wait until the connection is lost, and return why."""
        return await asyncio.shield(self._transport.lost)  # cancelling a bare future would mark it as done

    async def aclose(self) -> None:
        """Close the connection."""
        for reply in self._replies:
            reply.cancel()
        await self._transport.aclose()

    async def _discover(self) -> None:
        self._transport.set_revision(STATELESS)
        self.revision = STATELESS
        result = await self._request("server/discover", {})
        versions = result.get("supportedVersions")
        if type(versions) is not list or STATELESS not in versions:
            raise RemoteMcpError(f"does not support {STATELESS}", UNSUPPORTED_VERSION)
        self._read_capabilities(result)

    async def _initialize(self) -> None:
        self._transport.set_revision(None)
        self.revision = ""
        params = {"protocolVersion": LATEST_WITH_HANDSHAKE, "capabilities": {}, "clientInfo": IMPLEMENTATION}
        result = await self._request("initialize", params)
        revision = result.get("protocolVersion")
        if revision not in WITH_HANDSHAKE:
            raise McpConnectionLost(f"uses {str(revision)[:40]!r} of the protocol, which we do not support")
        self.revision = revision
        self._transport.set_revision(revision)
        self._read_capabilities(result)
        await self._transport.send(RpcNotification("notifications/initialized"))

    def _read_capabilities(self, result: Mapping[str, Any]) -> None:
        capabilities = result.get("capabilities")
        tools = capabilities.get("tools") if type(capabilities) is dict else None
        if tools is None:  # a server of prompts or resources only
            raise McpConnectionLost("offers no tools")
        self._notifies_changes = type(tools) is dict and tools.get("listChanged") is True

    async def _request(
        self, method: str, params: dict[str, Any], id: int | None = None, headers: Mapping[str, str] = {}
    ) -> Mapping[str, Any]:
        if self.revision == STATELESS:
            meta = {VERSION_KEY: STATELESS, CLIENT_INFO_KEY: IMPLEMENTATION, CAPABILITIES_KEY: {}}
            params["_meta"] = meta | params.get("_meta", {})
        return await self._transport.request(RpcRequest(next(self._ids) if id is None else id, method, params), headers)

    def _on_message(self, message: RpcRequest | RpcNotification) -> None:
        match message:
            case RpcRequest(id, "ping"):
                self._reply(RpcResultResponse(id, {}))
            case RpcRequest(id, method):
                # We announce neither sampling nor elicitation nor roots.
                self._reply(RpcErrorResponse(id, METHOD_NOT_FOUND, f"{method[:80]} is not offered by this client"))
            case RpcNotification(method) if method == LIST_CHANGED:
                self._on_change()
            case RpcNotification("notifications/progress", params):
                token, text = params.get("progressToken"), params.get("message")
                if type(token) is str and token.isascii() and token.isdigit():
                    token = int(token[:18])  # some servers turn every token into a string
                on_progress = self._on_progress.get(token) if type(token) is int else None
                if on_progress is not None:
                    shown = text[:1000] if type(text) is str else None
                    done, total = _number(params.get("progress")), _number(params.get("total"))
                    on_progress(CallProgressUpdate(shown, done, total))
            case _:
                pass  # log messages, and notifications that we did not subscribe to

    def _reply(self, message: Reply) -> None:
        if len(self._replies) >= _MAX_REPLIES:  # a server that sends requests and reads no replies
            return
        reply = asyncio.get_running_loop().create_task(self._transport.send(message))
        self._replies.add(reply)
        reply.add_done_callback(self._replies.discard)


class _ListedTools:
    """The definitions of one list that fit into its limits; `end` is why nothing more is added."""

    def __init__(self) -> None:
        self.definitions: list[Any] = []
        self.left_out: list[str] = []
        self.end: str | None = None
        self._bytes = self._values = 0

    def add(self, page: list[Any]) -> None:
        """Add a page, without the definitions that are too large, up to the first that exceeds the limits of the list."""
        for value in page:
            try:
                size = len(encode(value))
            except RecursionError:  # deeper than any schema may be
                size = MAX_DEFINITION_BYTES + 1
            self._bytes += size
            if size > MAX_DEFINITION_BYTES:
                name = printable(str(value.get("name") if type(value) is dict else None)[:256], 40)
                self.left_out.append(f"{name}: its definition is larger than {MAX_DEFINITION_BYTES // 1024} KiB")
            else:
                self._values += _count_values(value)
            if len(self.definitions) >= MAX_TOOLS:
                self.end = f"a list may have {MAX_TOOLS}"
            elif self._values > MAX_LIST_VALUES:
                self.end = f"a list may have {MAX_LIST_VALUES} values"
            elif self._bytes > MAX_LIST_BYTES:
                self.end = f"a list may have {MAX_LIST_BYTES // 1024} KiB"
            elif size <= MAX_DEFINITION_BYTES:
                self.definitions.append(value)
            if self.end is not None:
                return


def _count_values(value: Any) -> int:
    """Count the values in a JSON value, in Python code, which lets the event loop run in between."""
    count, left = 0, [value]
    while left:
        inner = left.pop()
        count += 1
        if type(inner) is dict:
            left += inner.values()
        elif type(inner) is list:
            left += inner
    return count


def _supported_revisions(refusal: RemoteMcpError) -> list[str] | None:
    """Return the revisions that an error names, None if the error is not about revisions."""
    if refusal.code != UNSUPPORTED_VERSION or type(refusal.data) is not dict:
        return None
    supported = refusal.data.get("supported")
    return [str(revision)[:40] for revision in supported[:20]] if type(supported) is list else None


def _number(value: Any) -> float | None:
    # `float` fails for integers of more than 308 digits, which JSON may hold.
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None
