"""A tool that was registered at runtime: its calls are posted to the URL of its owner.

The HTTP client checks the URL at every call, and no redirect is followed. A call is posted once: the runner decides by the
tool's annotations whether a failed one is repeated, and `Idempotency-Key` lets the owner recognise the repetition.
"""

import hmac
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from toolgate.conversation.message import Media, MediaKind, Text
from toolgate.tools.egress import EgressHttpClient, EgressRequest, EgressResponse
from toolgate.tools.egress.http import account_of
from toolgate.tools.egress.url import read_url
from toolgate.tools.sources.openapi_operation_tool import is_json, merged, output_of, read_response
from toolgate.tools.tool import CallPreview, ServerToolDefinition, ToolCallInput, ToolOutput

# For a tool without a time limit of its own; the runner's limit, which is mostly shorter, cancels the request.
LONGEST_WAIT = 600.0
# Parts of a content; a response with more is passed on as it is.
MAX_PARTS = 1000
_KINDS: Mapping[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video", "file": "file"}


class CallbackTool:
    """Posts calls to `url`; with a `secret` they are signed."""

    def __init__(
        self,
        spec: ServerToolDefinition,
        url: str,
        headers: Mapping[str, str],
        http: EgressHttpClient,
        secret: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises EgressRefused for a URL that could never be reached."""
        self._url = read_url(url).url
        self._spec = spec
        self._headers = headers
        self._http = http
        self._secret = secret
        self._now = now

    @property
    def spec(self) -> ServerToolDefinition:
        """The definition as it was registered."""
        return self._spec

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Name the host that will run the call."""
        return CallPreview(message=f"Call {self._spec.display_name or self._spec.name} at {read_url(self._url).host}")

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Post the call and parse the owner's response."""
        body = msgspec.json.encode(
            {
                "call_id": invocation.call_id,
                "name": self._spec.origin or self._spec.name,
                "arguments": invocation.arguments,
                "caller": invocation.caller,
            }
        )
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/plain;q=0.9",
            "Idempotency-Key": invocation.key or invocation.call_id,
        }
        if self._secret is not None:
            headers["X-Toolgate-Signature"] = signature(self._secret, int(self._now()), body)
        request = EgressRequest(
            self._url,
            "POST",
            merged(self._headers, headers),
            body,
            account_of(invocation),
            seconds=self._spec.timeout or LONGEST_WAIT,
            redirects=0,  # the call, its signature and the owner's headers are meant for this URL alone
        )
        return await read_response(await self._http.send(request), parse_response)


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Sign a body for its owner: `t=…,v1=…`, the HMAC-SHA256 of `t.body`."""
    # The time is signed, too, so that the owner can refuse a call that was recorded and is sent again later.
    digest = hmac.digest(secret.encode(), b"%d.%s" % (timestamp, body), "sha256").hex()
    return f"t={timestamp},v1={digest}"


def parse_response(response: EgressResponse) -> ToolOutput:
    """Parse an owner's `{"content": …, "is_error": …}`; any other response is passed on as it is."""
    plain = output_of(response)
    match plain.structured:
        case {"content": list(content)} if len(content) > MAX_PARTS:
            return plain
        case {"content": str() | list() as content, **rest} if is_json(response.media_type):
            parts = (Text(content),) if isinstance(content, str) else tuple(map(_part, content))
            return ToolOutput(parts, rest.get("is_error") is True, rest.get("structured"), plain.meta)
        # Only if there is nothing else: a service may well have a field `text` in data of its own.
        case {"text": str(text), **rest} if rest.keys() <= {"is_error", "structured"}:
            return ToolOutput((Text(text),), rest.get("is_error") is True, rest.get("structured"), plain.meta)
    return plain


def _part(part: Any) -> Text | Media:
    """Parse a part of the content; an unknown one is passed on as JSON text."""
    match part:
        case str(text) | {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": str(kind), "data": str(data), **rest} if kind in _KINDS:
            # `mimeType` is MCP's spelling.
            mime = rest.get("mime_type") or rest.get("mimeType") or rest.get("mime")
            with suppress(ValueError):  # what is no base64 would make the upstream refuse the whole conversation
                b64decode(data, validate=True)
                return Media(_KINDS[kind], mime if isinstance(mime, str) else None, data=data)
    return Text(msgspec.json.encode(part).decode())
