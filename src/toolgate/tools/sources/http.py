"""A tool that is one HTTP operation of a service: how its request leaves and what becomes of the answer.

Knows nothing of where operations are described. Credentials are added here, and only to requests for the service's own
origin; where a request may go at all is the guard's business.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from toolgate.conversation.message import Media, Text
from toolgate.tools.egress import Http, HttpAnswer, HttpRequest, Refused
from toolgate.tools.egress.http import account_of
from toolgate.tools.egress.url import read_url
from toolgate.tools.tool import Invocation, Output, Preparation, ToolSpec

MAX_ERROR = 4000
_ACCEPT = {"Accept": "application/json, text/*;q=0.9, */*;q=0.5", "User-Agent": "toolgate/1.0"}
_TEXTUAL = (
    "text/",
    "application/xml",
    "application/yaml",
    "application/javascript",
    "application/x-www-form-urlencoded",
)

Compose: TypeAlias = Callable[[Mapping[str, Any]], HttpRequest]
"""Turns arguments into a request, without credentials; ToolFailure says what is wrong with them."""


class HttpTool:
    """Calls one operation of a service at `base_url`; `headers` are its credentials."""

    def __init__(self, spec: ToolSpec, compose: Compose, base_url: str, headers: Mapping[str, str], http: Http) -> None:
        self._spec = spec
        self._compose = compose
        self._origin = read_url(base_url).origin
        self._headers = headers
        self._http = http

    @property
    def spec(self) -> ToolSpec:
        """What the document says of the operation."""
        return self._spec

    async def prepare(self, invocation: Invocation) -> Preparation:
        """The request that would be made, without its credentials."""
        request = self._compose(invocation.arguments)
        return Preparation(message=f"{request.method} {request.url}"[:2000])

    async def invoke(self, invocation: Invocation) -> Output:
        """The service's answer; a status of 400 or more makes it an error."""
        request = self._compose(invocation.arguments)
        if read_url(request.url).origin != self._origin:
            raise Refused("the request would leave the service that this tool belongs to")
        headers = merged(_ACCEPT, _key(request, invocation), request.headers, self._headers)
        seconds = self._spec.timeout or request.seconds
        answer = await self._http.send(
            replace(request, headers=headers, account=account_of(invocation), seconds=seconds)
        )
        return output_of(answer)


def _key(request: HttpRequest, invocation: Invocation) -> dict[str, str]:
    """A repetition of a call that changes something can be recognised by its key, where the service knows the header."""
    changes = request.method.upper() not in ("GET", "HEAD", "OPTIONS")
    return {"Idempotency-Key": invocation.key} if changes and invocation.key else {}


def merged(*many: Mapping[str, str]) -> dict[str, str]:
    """Headers of which the last spelling of a name wins; cookies are joined."""
    kept: dict[str, tuple[str, str]] = {}
    for headers in many:
        for name, value in headers.items():
            key = name.lower()
            if key == "cookie" and key in kept:
                value = f"{kept[key][1]}; {value}"
            kept[key] = (name, value)
    return dict(kept.values())


def output_of(answer: HttpAnswer) -> Output:
    """The answer as a tool gives it back: JSON as text and data, pictures as media, other bytes by their size alone."""
    meta = {"status": answer.status}
    if answer.status >= 300:
        words = _words(answer)[:MAX_ERROR]
        return Output((Text(f"HTTP {answer.status}\n{words}".rstrip()),), is_error=True, meta=meta)
    if not answer.body:
        return Output((Text(f"HTTP {answer.status}, no content"),), meta=meta)
    kind = answer.media_type
    if kind.startswith("image/") and kind != "image/svg+xml" and not answer.truncated:
        picture = Media("image", kind, data=b64encode(answer.body).decode("ascii"))
        return Output((picture,), meta=meta)
    text = _words(answer)
    if answer.truncated:
        text += f"\n[truncated: only the first {len(answer.body)} bytes of the answer are shown]"
    return Output((Text(text),), structured=None if answer.truncated else _data(answer), meta=meta)


def _words(answer: HttpAnswer) -> str:
    kind = answer.media_type
    textual = not kind or kind.startswith(_TEXTUAL) or is_json(kind) or kind.endswith(("+xml", "+yaml"))
    if textual and b"\0" not in answer.body[:8192]:
        return answer.body.decode("utf-8", "replace")
    return f"[{len(answer.body)} bytes of {kind or 'binary data'}, which cannot be shown]" if answer.body else ""


def is_json(kind: str) -> bool:
    """Whether a media type is JSON's or one of its kin."""
    return kind == "application/json" or kind.endswith("+json")


def _data(answer: HttpAnswer) -> Any:
    if not is_json(answer.media_type):
        return None
    try:
        return msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
