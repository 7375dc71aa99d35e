"""The methods of both eras: a request in, its response out, notifications on the way.

It speaks in messages, not in bytes. It must not know transports or sessions, and of tools only what the door shows.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from toolgate import __version__
from toolgate.conversation.errors import InvalidRequest, NotFound, ToolgateError
from toolgate.server.mcp import listing
from toolgate.server.mcp.changes import Changes
from toolgate.server.mcp.door import Door
from toolgate.server.mcp.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Json,
    Request,
    RpcError,
    error,
    notification,
    result,
)
from toolgate.server.mcp.peer import Peer
from toolgate.server.mcp.results import encode_failure, encode_output
from toolgate.server.mcp.revisions import LEVELS, MODERN, SERVER_KEY, SUBSCRIPTION_KEY, negotiated
from toolgate.server.mcp.telling import Notify, Telling
from toolgate.tools.tool import ToolFailure
from toolgate.wire.jsontext import encode

Crashed: TypeAlias = Callable[[Exception], None]
Method: TypeAlias = Callable[[Request, Peer, Notify], Awaitable[Json]]

LIST_CHANGED = "notifications/tools/list_changed"
_SERVER = {"name": "toolgate", "title": "Toolgate", "version": __version__}
_CAPABILITIES = {"tools": {"listChanged": True}, "logging": {}}
_HOUR = 3_600_000


class Service:
    """Serves the tools behind a door."""

    def __init__(self, door: Door, changes: Changes, instructions: str | None = None) -> None:
        self._door = door
        self._changes = changes
        self._instructions = {"instructions": instructions} if instructions else {}
        both: dict[str, Method] = {"tools/list": self._list, "tools/call": self._call}
        self._legacy = both | {
            "initialize": self._initialize,
            "ping": self._ping,
            "logging/setLevel": self._set_level,
        }
        self._modern = both | {"server/discover": self._discover, "subscriptions/listen": self._listen}

    async def reply(self, request: Request, peer: Peer, notify: Notify, crashed: Crashed) -> Json:
        """The response to a request, whatever happens; only cancelling leaves it without one."""
        try:
            return result(request.id, await self._answer(request, peer, notify))
        except RpcError as refusal:
            return error(request.id, refusal.code, refusal.message, refusal.data)
        except ToolgateError as failure:
            return error(request.id, INTERNAL_ERROR, failure.message, {"code": failure.code})
        except Exception as defect:  # noqa: BLE001  # the tool boundary: the client gets an answer, the log the story
            crashed(defect)
            return error(request.id, INTERNAL_ERROR, "An internal error occurred; the server's log has it.")

    async def _answer(self, request: Request, peer: Peer, notify: Notify) -> Json:
        modern = peer.revision == MODERN
        method = (self._modern if modern else self._legacy).get(request.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}")
        answer = await method(request, peer, notify)
        return _signed(answer) if modern else answer

    async def _initialize(self, request: Request, peer: Peer, notify: Notify) -> Json:
        asked = request.params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcError(INVALID_PARAMS, "initialize must name a protocolVersion.")
        peer.revision = negotiated(asked)
        about: Json = {"protocolVersion": peer.revision, "capabilities": _CAPABILITIES, "serverInfo": _SERVER}
        return about | self._instructions

    async def _discover(self, request: Request, peer: Peer, notify: Notify) -> Json:
        about: Json = {"supportedVersions": [MODERN], "capabilities": _CAPABILITIES}
        return about | self._instructions | {"ttlMs": _HOUR, "cacheScope": "public"}

    async def _ping(self, request: Request, peer: Peer, notify: Notify) -> Json:
        return {}

    async def _set_level(self, request: Request, peer: Peer, notify: Notify) -> Json:
        level = request.params.get("level")
        if level not in LEVELS:
            raise RpcError(INVALID_PARAMS, f"The level must be one of {', '.join(LEVELS)}.")
        peer.level = level
        return {}

    async def _list(self, request: Request, peer: Peer, notify: Notify) -> Json:
        cursor = request.params.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise RpcError(INVALID_PARAMS, "A cursor is a string.")
        shown = listing.page(self._door.tools(peer.caller), cursor, peer.revision)
        # Tools may change at any moment and are not the same for every key, so nobody may keep the list unasked.
        return shown | {"ttlMs": 0, "cacheScope": "private"} if peer.revision == MODERN else shown

    async def _call(self, request: Request, peer: Peer, notify: Notify) -> Json:
        name, arguments = request.params.get("name"), request.params.get("arguments")
        if not isinstance(name, str):
            raise RpcError(INVALID_PARAMS, "tools/call must name a tool.")
        if arguments is not None and not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "The arguments of a tool are an object.")
        arguments = arguments or {}
        tell = Telling(request.meta.get("progressToken"), peer.level, name, notify)
        try:
            text = encode(arguments).decode()
            output = await self._door.call(peer.caller, name, arguments, text, tell, peer.session)
        except NotFound:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name[:200]}") from None
        except (ToolFailure, InvalidRequest) as failure:
            return encode_failure(str(failure))
        finally:
            tell.end()
        return encode_output(output, peer.revision)

    async def _listen(self, request: Request, peer: Peer, notify: Notify) -> Json:
        wanted = request.params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "subscriptions/listen must say which notifications are wanted.")
        honoured = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        mark = {"_meta": {SUBSCRIPTION_KEY: request.id}}
        with self._changes.listening() as ear:
            notify(notification("notifications/subscriptions/acknowledged", {**mark, "notifications": honoured}))
            while await ear.next():
                if honoured:
                    notify(notification(LIST_CHANGED, mark))
        return mark

    async def tell_changes(self, notify: Notify) -> None:
        """Notify a client of the older era whenever tools change, until there is no more news."""
        with self._changes.listening() as ear:
            while await ear.next():
                notify(notification(LIST_CHANGED))


def _signed(answer: Json) -> Json:
    """A result as 2026-07-28 wants it: complete, and saying whose it is."""
    meta = {**answer.get("_meta", {}), SERVER_KEY: _SERVER}
    return {"resultType": "complete", **answer, "_meta": meta}
