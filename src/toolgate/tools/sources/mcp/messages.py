"""JSON-RPC 2.0 as MCP uses it, to bytes and back. Knows no transport, and trusts nothing that it reads."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from toolgate.tools.sources.mcp.pieces import LARGE
from toolgate.wire.jsontext import check_structure, decode_event, encode

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
UNSUPPORTED_VERSION = -32022
_LONGEST_WORDS = 2000
_LONGEST_ID = 1024

Id: TypeAlias = int | str


class Request(Struct, frozen=True):
    """A message that wants an answer."""

    id: Id
    method: str
    params: Mapping[str, Any] | UnsetType = UNSET

    def encode(self) -> bytes:
        """One line of JSON, without its end."""
        return encode({"jsonrpc": "2.0", "id": self.id, "method": self.method, **_given(self.params)})


class Notice(Struct, frozen=True):
    """A message that wants none."""

    method: str
    params: Mapping[str, Any] | UnsetType = UNSET

    def encode(self) -> bytes:
        """One line of JSON, without its end."""
        return encode({"jsonrpc": "2.0", "method": self.method, **_given(self.params)})

    def field(self, name: str) -> Any:
        """A parameter, or None."""
        return None if self.params is UNSET else self.params.get(name)


class Success(Struct, frozen=True):
    """The answer to a request."""

    id: Id
    result: Mapping[str, Any]

    def encode(self) -> bytes:
        """One line of JSON, without its end."""
        return encode({"jsonrpc": "2.0", "id": self.id, "result": self.result})


class Failure(Struct, frozen=True):
    """The refusal of a request; it has no id when the other side could not read it."""

    id: Id | None
    code: int
    message: str
    details: Any = None

    def encode(self) -> bytes:
        """One line of JSON, without its end."""
        return encode({"jsonrpc": "2.0", "id": self.id, "error": {"code": self.code, "message": self.message}})


Message: TypeAlias = Request | Notice | Success | Failure


def read(text: bytes) -> list[Message]:
    """The messages in a piece of JSON, a batch or a single one; Garbled if it is no JSON, nothing if it is no message.

    InvalidRequest if it holds so much that decoding it would keep the interpreter to itself, even in a thread.
    """
    if len(text) > LARGE:
        check_structure(text)
    value = decode_event(text)
    found = [_message(item) for item in (value if type(value) is list else [value])]
    return [message for message in found if message is not None]


def _message(value: Any) -> Message | None:
    if type(value) is not dict or value.get("jsonrpc") != "2.0":
        return None
    id = value.get("id")
    if type(id) not in (int, str) or (type(id) is str and len(id) > _LONGEST_ID):
        id = None
    method, params = value.get("method"), value.get("params")
    if type(method) is str:
        given = params if type(params) is dict else UNSET
        return Notice(method, given) if id is None else Request(id, method, given)
    if type(value.get("result")) is dict and id is not None:
        return Success(id, value["result"])
    if type(value.get("error")) is dict:
        return _failure(id, value["error"])
    return None


def _failure(id: Id | None, error: Mapping[str, Any]) -> Failure:
    code, message = error.get("code"), error.get("message")
    words = message[:_LONGEST_WORDS] if type(message) is str and message.strip() else "it gave no reason"
    return Failure(id, code if type(code) is int else INTERNAL_ERROR, words, error.get("data"))


def _given(params: Mapping[str, Any] | UnsetType) -> dict[str, Any]:
    return {} if params is UNSET else {"params": params}
