"""JSON-RPC 2.0 as MCP narrows it: messages read from decoded JSON, and messages to encode.

Ids are strings or integers, parameters are objects. Pure; it must not know methods, revisions or transports.
"""

from typing import Any, TypeAlias

from msgspec import Struct

Id: TypeAlias = str | int
Json: TypeAlias = dict[str, Any]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022


class Request(Struct, frozen=True):
    """Wants a response."""

    id: Id
    method: str
    params: Json

    @property
    def meta(self) -> Json:
        """What the request says of itself, empty if nothing."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


class Notification(Struct, frozen=True):
    """Wants none."""

    method: str
    params: Json


class Response(Struct, frozen=True):
    """A client's answer; we ask clients nothing, so it answers nothing."""


Message: TypeAlias = Request | Notification | Response


class RpcError(Exception):
    """A request cannot be served; `id` is the request's, where it could be read."""

    def __init__(self, code: int, message: str, data: Any = None, id: Id | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = id


def read(value: Any) -> Message:
    """The message that decoded JSON holds; RpcError says why it is none."""
    if not isinstance(value, dict):
        raise RpcError(INVALID_REQUEST, "A message must be a JSON object.")
    id, method = value.get("id"), value.get("method")
    known = id if _is_id(id) else None
    if value.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'A message must say "jsonrpc": "2.0".', id=known)
    if method is None and ("result" in value or "error" in value):
        return Response()
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, "A message must name its method in a string.", id=known)
    if "id" in value and known is None:
        raise RpcError(INVALID_REQUEST, "The id of a request must be a string or an integer.")
    params = value.get("params")
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "The parameters must be an object.", id=known)
    return Notification(method, params or {}) if known is None else Request(known, method, params or {})


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def result(id: Id, value: Json) -> Json:
    """The response to a request that was served."""
    return {"jsonrpc": "2.0", "id": id, "result": value}


def error(id: Id | None, code: int, message: str, data: Any = None) -> Json:
    """The response to one that was not."""
    said: Json = {"code": code, "message": message}
    if data is not None:
        said["data"] = data
    return {"jsonrpc": "2.0", "id": id, "error": said}


def notification(method: str, params: Json | None = None) -> Json:
    """A message that wants no response."""
    return {"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {})
