"""A tool registered while we run, whose calls are posted to an address of its owner's.

The address goes through the guard at every call and no redirect is followed. A call is posted once: whether a failed one may
be repeated is decided outside, by the tool's annotations, and `Idempotency-Key` tells the owner that it was.
"""

import hmac
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolgate.conversation.message import Media, MediaKind, Text
from toolgate.tools.egress import Http, HttpAnswer, HttpRequest
from toolgate.tools.egress.http import account_of
from toolgate.tools.egress.url import read_url
from toolgate.tools.sources.http import is_json, merged, output_of
from toolgate.tools.tool import Invocation, Output, Preparation, ToolSpec

LONGEST_WAIT = 600.0
_KINDS: Mapping[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video", "file": "file"}


class CallbackTool:
    """Posts calls to `url`; with a `secret` they are signed."""

    def __init__(
        self,
        spec: ToolSpec,
        url: str,
        headers: Mapping[str, str],
        http: Http,
        secret: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises Refused for a URL that could never be opened."""
        self._url = read_url(url).url
        self._spec = spec
        self._headers = headers
        self._http = http
        self._secret = secret
        self._now = now

    @property
    def spec(self) -> ToolSpec:
        """As it was registered."""
        return self._spec

    async def prepare(self, invocation: Invocation) -> Preparation:
        """Who will run it."""
        return Preparation(message=f"Call {self._spec.display_name or self._spec.name} at {read_url(self._url).host}")

    async def invoke(self, invocation: Invocation) -> Output:
        """The owner's answer; time limits are the caller's."""
        body = msgspec.json.encode(
            {
                "call_id": invocation.call_id,
                "name": self._spec.origin or self._spec.name,
                "arguments": invocation.arguments,
                "caller": invocation.caller,
            }
        )
        request = HttpRequest(
            self._url,
            "POST",
            merged(self._headers, self._own_headers(invocation, body)),
            body,
            account_of(invocation),
            seconds=self._spec.timeout or LONGEST_WAIT,
            redirects=0,
        )
        return read_answer(await self._http.send(request))

    def _own_headers(self, invocation: Invocation, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/plain;q=0.9",
            "Idempotency-Key": invocation.key or invocation.call_id,
        }
        if self._secret is not None:
            headers["X-Toolgate-Signature"] = signature(self._secret, int(self._now()), body)
        return headers


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """The header by which an owner knows that we sent this body, and when: `t=…,v1=…`, HMAC-SHA256 of `t.body`."""
    digest = hmac.digest(secret.encode(), b"%d.%s" % (timestamp, body), "sha256").hex()
    return f"t={timestamp},v1={digest}"


def read_answer(answer: HttpAnswer) -> Output:
    """An owner's `{"content": …, "is_error": …}`, or anything else as it is."""
    plain = output_of(answer)
    match plain.structured:
        case {"content": str() | list() as content, **rest} if is_json(answer.media_type):
            parts = (Text(content),) if isinstance(content, str) else tuple(map(_part, content))
            return Output(parts, rest.get("is_error") is True, rest.get("structured"), plain.meta)
        case {"text": str(text), **rest} if rest.keys() <= {"is_error", "structured"}:
            return Output((Text(text),), rest.get("is_error") is True, rest.get("structured"), plain.meta)
    return plain


def _part(part: Any) -> Text | Media:
    """A part of the content; one that is not understood is shown as the JSON that it is."""
    match part:
        case str(text) | {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": str(kind), "data": str(data), **rest} if kind in _KINDS and _is_base64(data):
            mime = rest.get("mime_type") or rest.get("mimeType") or rest.get("mime")
            return Media(_KINDS[kind], mime if isinstance(mime, str) else None, data=data)
    return Text(msgspec.json.encode(part).decode())


def _is_base64(data: str) -> bool:
    try:
        b64decode(data, validate=True)
    except (NotBase64, ValueError):
        return False
    return True
