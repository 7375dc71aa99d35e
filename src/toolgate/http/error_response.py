"""Encode the error response to a request that never reaches the application.

It must not know why the request failed, nor which dialect a path has: the composition root passes an `EncodeError`, and
`openai_error_body` is the default.
"""

import uuid
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from toolgate.conversation.errors import ToolgateError
from toolgate.http.request_limits import Headers

# Returns the status and the JSON body of an error at a path, which is None when not even the path could be read.
EncodeError = Callable[[str | None, ToolgateError], tuple[int, bytes]]

# Made once for all: every response begins with one.
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"")) for status in range(100, 600)}


def openai_error_body(path: str | None, error: ToolgateError) -> tuple[int, bytes]:
    """Encode an error as OpenAI's API does."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    fields = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return error.status, msgspec.json.encode({"error": fields})


def encode_error_response(status: int, body: bytes, retry_after: float | None, headers: Headers) -> bytes:
    """Return the whole response, the last on its connection."""
    lines = [
        *headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", b"req_" + uuid.uuid4().hex.encode()),
        (b"connection", b"close"),
    ]
    if retry_after is not None:
        lines.append((b"retry-after", b"%d" % retry_after))
    return STATUS_LINES[status] + b"".join(b"%s: %s\r\n" % line for line in lines) + b"\r\n" + body
