"""JSON-RPC 2.0 messages as MCP narrows them, encoded and decoded for both the client and the server.

Ids are strings or integers, parameters and results are objects. Must not know methods, revisions or transports.

The two sides decode differently. Our client is lenient (`decode_messages`): a server that sends one malformed message
must not cost us its tools, so such a message is skipped, or fails the call that it answers. Our server is strict
(`parse_message`): a client that sends one gets an error that names the mistake.
"""

from typing import Any, TypeAlias

from msgspec import Struct

from toolgate.conversation.json_depth import MAX_DEPTH
from toolgate.mcp.protocol.line_reader import LARGE
from toolgate.wire.jsontext import check_depth, check_structure, decode_event, encode

Id: TypeAlias = int | str
Json: TypeAlias = dict[str, Any]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
# MCP's own, from the range that JSON-RPC leaves to implementations.
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

_MAX_ERROR_CHARS = 2000
_MAX_ID_CHARS = 1024


class RpcRequest(Struct, frozen=True):
    """A message that expects a response with the same id."""

    id: Id
    method: str
    params: Json = {}

    @property
    def meta(self) -> Json:
        """The `_meta` object of the parameters, empty if there is none."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}

    def encode(self) -> bytes:
        """Encode as JSON without a line break."""
        return encode({"jsonrpc": "2.0", "id": self.id, "method": self.method, "params": self.params})


class RpcNotification(Struct, frozen=True):
    """A message that expects no response."""

    method: str
    params: Json = {}

    def encode(self) -> bytes:
        """Encode as JSON without a line break."""
        params = {"params": self.params} if self.params else {}
        return encode({"jsonrpc": "2.0", "method": self.method, **params})


class RpcResultResponse(Struct, frozen=True):
    """The result of a request."""

    id: Id
    result: Json

    def encode(self) -> bytes:
        """Encode as JSON without a line break."""
        return encode({"jsonrpc": "2.0", "id": self.id, "result": self.result})


class RpcErrorResponse(Struct, frozen=True):
    """The error of a request; `id` is None where the request's id could not be read."""

    id: Id | None
    code: int
    message: str
    data: Any = None

    def encode(self) -> bytes:
        """Encode as JSON without a line break."""
        error: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return encode({"jsonrpc": "2.0", "id": self.id, "error": error})


Reply: TypeAlias = RpcResultResponse | RpcErrorResponse
Message: TypeAlias = RpcRequest | RpcNotification | Reply


class RpcRequestRefused(Exception):
    """Our server refuses a request; `id` is the request's, where it could be read."""

    def __init__(self, code: int, message: str, data: Any = None, id: Id | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.id = id

    def response(self, id: Id | None = None) -> RpcErrorResponse:
        """Make the error response, to the request of this id if the error itself names none."""
        return RpcErrorResponse(self.id if id is None else id, self.code, self.message, self.data)


def decode_messages(text: bytes) -> list[Message]:
    """Decode a server's message or batch; values that are no messages are skipped, and a malformed response is an error.

    InvalidUpstreamAnswer if the text is no JSON. InvalidRequest if it is nested too deeply, or holds so much that decoding
    it would block the interpreter, even from a thread.
    """
    if len(text) > LARGE:
        check_structure(text, MAX_DEPTH, subject="the answer")
    else:
        check_depth(text, subject="the answer")
    value = decode_event(text)
    messages = [_read_message(item) for item in (value if type(value) is list else [value])]
    return [message for message in messages if message is not None]


def _read_message(value: Any) -> Message | None:
    if type(value) is not dict or value.get("jsonrpc") != "2.0":
        return None
    id, method, params = value.get("id"), value.get("method"), value.get("params")
    # A request whose id we cannot send back becomes a notification.
    if not _is_id(id) or (type(id) is str and len(id) > _MAX_ID_CHARS):
        id = None
    if type(method) is str:
        params = params if type(params) is dict else {}
        return RpcNotification(method, params) if id is None else RpcRequest(id, method, params)
    if type(value.get("result")) is dict and id is not None:
        return RpcResultResponse(id, value["result"])
    error = value.get("error")
    if type(error) is not dict:
        # The call that waits for this answer must not wait until its time is up.
        if id is None or "method" in value:
            return None
        return RpcErrorResponse(id, INTERNAL_ERROR, "the answer has neither a result nor an error")
    code, message = error.get("code"), error.get("message")
    message = message[:_MAX_ERROR_CHARS] if type(message) is str and message.strip() else "it gave no reason"
    return RpcErrorResponse(id, code if type(code) is int else INTERNAL_ERROR, message, error.get("data"))


def parse_message(value: Any) -> RpcRequest | RpcNotification | None:
    """Check a client's decoded message; RpcRequestRefused names the mistake.

    None for a response: our server sends no requests, so there is nothing that it could belong to.
    """
    if not isinstance(value, dict):
        raise RpcRequestRefused(INVALID_REQUEST, "A message must be a JSON object.")
    method, params = value.get("method"), value.get("params")
    # Read first, so that the errors below name the request that they answer.
    id = value.get("id") if _is_id(value.get("id")) else None
    if value.get("jsonrpc") != "2.0":
        raise RpcRequestRefused(INVALID_REQUEST, 'A message must have "jsonrpc": "2.0".', id=id)
    if method is None and ("result" in value or "error" in value):
        return None
    if not isinstance(method, str):
        raise RpcRequestRefused(INVALID_REQUEST, "A message must name its method in a string.", id=id)
    if "id" in value and id is None:
        raise RpcRequestRefused(INVALID_REQUEST, "The id of a request must be a string or an integer.")
    if params is not None and not isinstance(params, dict):
        raise RpcRequestRefused(INVALID_PARAMS, "The parameters must be an object.", id=id)
    return RpcNotification(method, params or {}) if id is None else RpcRequest(id, method, params or {})


def _is_id(value: Any) -> bool:
    return type(value) in (int, str)  # `isinstance` would take true for 1
