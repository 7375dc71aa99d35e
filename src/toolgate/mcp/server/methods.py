"""The methods of the MCP server: a request in, its response out, notifications in between.

Messages, not bytes. Must not know transports or sessions, and of tools only what the catalog shows.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from toolgate.conversation.errors import InvalidRequest, NotFound, ToolgateError
from toolgate.mcp.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Json,
    Reply,
    RpcErrorResponse,
    RpcNotification,
    RpcRequest,
    RpcRequestRefused,
    RpcResultResponse,
)
from toolgate.mcp.protocol.revisions import (
    IMPLEMENTATION,
    LEVELS,
    LIST_CHANGED,
    SERVER_INFO_KEY,
    STATELESS,
    SUBSCRIPTION_KEY,
    negotiate,
)
from toolgate.mcp.server.client_state import McpClientState
from toolgate.mcp.server.progress import Notify, ProgressNotifier
from toolgate.mcp.server.results import encode_failure, encode_output
from toolgate.mcp.server.tool_catalog_protocol import ToolCatalog
from toolgate.mcp.server.tool_list import encode_page
from toolgate.mcp.server.tool_update_listeners import ToolUpdateListeners
from toolgate.tools.tool import ToolCallFailed
from toolgate.wire.jsontext import encode

OnCrash: TypeAlias = Callable[[Exception], None]
Method: TypeAlias = Callable[[RpcRequest, McpClientState, Notify], Awaitable[Json]]

_CAPABILITIES = {"tools": {"listChanged": True}, "logging": {}}
_HOUR_MS = 3_600_000


class McpMethods:
    """Answers requests from a catalog of tools."""

    def __init__(self, catalog: ToolCatalog, updates: ToolUpdateListeners, instructions: str | None = None) -> None:
        self._catalog = catalog
        self._updates = updates
        self._instructions = {"instructions": instructions} if instructions else {}
        common: dict[str, Method] = {"tools/list": self._list_tools, "tools/call": self._call_tool}
        self._with_handshake = common | {
            "initialize": self._initialize,
            "ping": self._ping,
            "logging/setLevel": self._set_level,
        }
        # Without a session there is no level to set (a request has its own in `_meta`), and nothing to ping.
        self._stateless = common | {"server/discover": self._discover, "subscriptions/listen": self._listen}

    async def reply(self, request: RpcRequest, client: McpClientState, notify: Notify, on_crash: OnCrash) -> Reply:
        """Answer a request, with an error if anything fails; only cancelling leaves it without a response."""
        stateless = client.revision == STATELESS
        method = (self._stateless if stateless else self._with_handshake).get(request.method)
        try:
            if method is None:
                raise RpcRequestRefused(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}")
            result = await method(request, client, notify)
        except RpcRequestRefused as error:
            return error.response(request.id)
        except ToolgateError as error:
            return RpcErrorResponse(request.id, INTERNAL_ERROR, error.message, {"code": error.code})
        except Exception as error:  # noqa: BLE001  # the tool boundary: the client gets an answer, the log the traceback
            on_crash(error)
            message = "An internal error occurred; the server's log has it."
            return RpcErrorResponse(request.id, INTERNAL_ERROR, message)
        if stateless:
            meta = {**result.get("_meta", {}), SERVER_INFO_KEY: IMPLEMENTATION}
            result = {"resultType": "complete", **result, "_meta": meta}
        return RpcResultResponse(request.id, result)

    async def notify_changes(self, notify: Notify) -> None:
        """Notify a client with a handshake whenever tools change, until the updates end."""
        with self._updates.listening() as listener:
            while await listener.next():
                notify(RpcNotification(LIST_CHANGED))

    async def _initialize(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        requested = request.params.get("protocolVersion")
        if not isinstance(requested, str):
            raise RpcRequestRefused(INVALID_PARAMS, "initialize must name a protocolVersion.")
        client.revision = negotiate(requested)
        server = {"protocolVersion": client.revision, "capabilities": _CAPABILITIES, "serverInfo": IMPLEMENTATION}
        return server | self._instructions

    async def _discover(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        server: Json = {"supportedVersions": [STATELESS], "capabilities": _CAPABILITIES}
        return server | self._instructions | {"ttlMs": _HOUR_MS, "cacheScope": "public"}

    async def _ping(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        return {}

    async def _set_level(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        level = request.params.get("level")
        if level not in LEVELS:
            raise RpcRequestRefused(INVALID_PARAMS, f"The level must be one of {', '.join(LEVELS)}.")
        client.level = level
        return {}

    async def _list_tools(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        cursor = request.params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise RpcRequestRefused(INVALID_PARAMS, "A cursor is a string.")
        await self._catalog.settled()  # many clients list once, at the start, and ignore that the tools change
        page = encode_page(self._catalog.tools(client.caller), cursor, client.revision)
        # Tools may change at any moment and differ by key, so the list must not be cached.
        return page | {"ttlMs": 0, "cacheScope": "private"} if client.revision == STATELESS else page

    async def _call_tool(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if not isinstance(name, str):
            raise RpcRequestRefused(INVALID_PARAMS, "tools/call must name a tool.")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcRequestRefused(INVALID_PARAMS, "The arguments of a tool are an object.")
        arguments = arguments or {}
        progress = ProgressNotifier(request.meta.get("progressToken"), client.level, name, notify)
        if self._catalog.find(client.caller, name) is None:  # its source may still be connecting
            await self._catalog.settled()
        try:
            text = encode(arguments).decode()
            output = await self._catalog.call(client.caller, name, arguments, text, progress, client.session)
        except NotFound:
            raise RpcRequestRefused(INVALID_PARAMS, f"Unknown tool: {name[:200]}") from None
        except (ToolCallFailed, InvalidRequest) as failure:
            return encode_failure(str(failure))  # a result and no error, so that the client shows it to its model
        finally:
            progress.end()
        return encode_output(output, client.revision)

    async def _listen(self, request: RpcRequest, client: McpClientState, notify: Notify) -> Json:
        requested = request.params.get("notifications")
        if not isinstance(requested, dict):
            raise RpcRequestRefused(INVALID_PARAMS, "subscriptions/listen must name the notifications to send.")
        accepted = {"toolsListChanged": True} if requested.get("toolsListChanged") is True else {}
        subscription = {"_meta": {SUBSCRIPTION_KEY: request.id}}
        # Listening starts before the acknowledgement, so that no change is lost in between.
        with self._updates.listening() as listener:
            params = {**subscription, "notifications": accepted}
            notify(RpcNotification("notifications/subscriptions/acknowledged", params))
            while await listener.next():
                if accepted:
                    notify(RpcNotification(LIST_CHANGED, subscription))
        return subscription
