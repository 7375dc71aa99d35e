"""Failures outside any request, told as JSON-RPC tells them: what the HTTP edge says where MCP is spoken."""

from toolgate.conversation.errors import ClientFault, ToolgateError
from toolgate.server.mcp.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from toolgate.server.mcp.jsonrpc import error as error_message
from toolgate.wire.jsontext import encode


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """The body of an error response that belongs to no message."""
    if error.code == "invalid_json":
        code = PARSE_ERROR
    else:
        code = INVALID_REQUEST if isinstance(error, ClientFault) else INTERNAL_ERROR
    return encode(error_message(None, code, error.message, {"code": error.code}))
