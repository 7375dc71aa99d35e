"""Encode errors of HTTP requests that are no JSON-RPC messages, such as a missing key or malformed JSON."""

from toolgate.conversation.errors import ClientRequestError, ToolgateError
from toolgate.mcp.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RpcErrorResponse


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """Encode the body of an error response that belongs to no message."""
    if error.code == "invalid_json":
        code = PARSE_ERROR
    else:
        code = INVALID_REQUEST if isinstance(error, ClientRequestError) else INTERNAL_ERROR
    return RpcErrorResponse(None, code, error.message, {"code": error.code}).encode()
