"""The answer to a request that never reaches the application.

It must not know why a request was refused, nor which dialect a path speaks: whoever composes the server says how to
word an error for a path, and `plain_refusal` stands in.
"""

import uuid
from collections.abc import Callable

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from toolgate.conversation.errors import ToolgateError
from toolgate.server.edge.head import Headers

Refuse = Callable[[str | None, ToolgateError], tuple[int, bytes]]
"""Words an error for a path, which is unknown when not even that could be read; returns status and JSON."""


def plain_refusal(path: str | None, error: ToolgateError) -> tuple[int, bytes]:
    """Word a refusal as OpenAI's API does, for want of knowing better."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return error.status, msgspec.json.encode({"error": said})


def encode_refusal(status: int, body: bytes, retry_after: float | None, headers: Headers) -> bytes:
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
    return STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % line for line in lines) + b"\r\n" + body
