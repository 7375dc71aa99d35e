"""A tool that calls one HTTP operation of a service: send its request and turn the response into an output.

Knows nothing of where operations are described. Credentials are added here, and only to requests for the service's own
origin; the HTTP client decides which hosts may be reached.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.json_depth import MAX_DEPTH
from toolgate.conversation.message import Media, Text
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.tools.egress import EgressHttpClient, EgressRefused, EgressRequest, EgressResponse
from toolgate.tools.egress.http import account_of
from toolgate.tools.egress.url import read_url
from toolgate.tools.tool import CallPreview, ServerToolDefinition, ToolCallInput, ToolOutput
from toolgate.wire.jsontext import check_structure

MAX_ERROR = 4000
_ACCEPT = {"Accept": "application/json, text/*;q=0.9, */*;q=0.5", "User-Agent": "toolgate/1.0"}
_TEXTUAL = (
    "text/",
    "application/xml",
    "application/yaml",
    "application/javascript",
    "application/x-www-form-urlencoded",
)

# Makes a request of arguments, without credentials; ToolCallFailed names the mistake.
Compose: TypeAlias = Callable[[Mapping[str, Any]], EgressRequest]


class OpenApiOperationTool:
    """Calls one operation of a service at `base_url`; `headers` are its credentials."""

    def __init__(
        self,
        spec: ServerToolDefinition,
        compose: Compose,
        base_url: str,
        headers: Mapping[str, str],
        http: EgressHttpClient,
    ) -> None:
        self._spec = spec
        self._compose = compose
        self._origin = read_url(base_url).origin
        self._headers = headers
        self._http = http

    @property
    def spec(self) -> ServerToolDefinition:
        """The operation as a tool."""
        return self._spec

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Describe the request, without its credentials."""
        request = self._compose(invocation.arguments)
        return CallPreview(message=f"{request.method} {request.url}"[:2000])

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Send the request; a response with status 300 or more is an error."""
        request = self._compose(invocation.arguments)
        # If a mistake in the encoding ever let an argument change the host, the credentials would be sent there.
        if read_url(request.url).origin != self._origin:
            raise EgressRefused("the request would leave the service that this tool belongs to")
        has_effects = request.method.upper() not in ("GET", "HEAD", "OPTIONS")
        # By this key a service can recognise a call that is repeated.
        key = {"Idempotency-Key": invocation.key} if has_effects and invocation.key else {}
        # The operator's headers come last: no argument can replace a credential.
        headers = merged(_ACCEPT, key, request.headers, self._headers)
        seconds = self._spec.timeout or request.seconds
        response = await self._http.send(
            replace(request, headers=headers, account=account_of(invocation), seconds=seconds)
        )
        return await read_response(response, output_of)


async def read_response(response: EgressResponse, read: Callable[[EgressResponse], ToolOutput]) -> ToolOutput:
    """Turn a response into an output, in a thread if it is large: it may hold two megabytes of the smallest values."""
    return read(response) if len(response.body) <= LARGE_BODY else await run_in_thread(read, response)


def merged(*many: Mapping[str, str]) -> dict[str, str]:
    """Merge headers: the last value of a name wins, and cookies are joined."""
    kept: dict[str, tuple[str, str]] = {}
    for headers in many:
        for name, value in headers.items():
            key = name.lower()
            if key == "cookie" and key in kept:
                value = f"{kept[key][1]}; {value}"
            kept[key] = (name, value)
    return dict(kept.values())


def output_of(response: EgressResponse) -> ToolOutput:
    """Turn a response into an output: JSON as text and data, images as media, other bytes by their size alone."""
    meta = {"status": response.status}
    if response.status >= 300:
        text = _text(response)[:MAX_ERROR]
        return ToolOutput((Text(f"HTTP {response.status}\n{text}".rstrip()),), is_error=True, meta=meta)
    if not response.body:
        return ToolOutput((Text(f"HTTP {response.status}, no content"),), meta=meta)
    kind = response.media_type
    # SVG is text to a model, and no upstream accepts it as an image.
    if kind.startswith("image/") and kind != "image/svg+xml" and not response.truncated:
        image = Media("image", kind, data=b64encode(response.body).decode("ascii"))
        return ToolOutput((image,), meta=meta)
    text, structured = _text(response), None
    if response.truncated:
        text += f"\n[truncated: only the first {len(response.body)} bytes of the answer are shown]"
    elif is_json(kind):
        structured = _decoded(response.body)
    return ToolOutput((Text(text),), structured=structured, meta=meta)


def _decoded(body: bytes) -> Any:
    """Decode JSON; None for what is none, or holds too much or too deeply: the model reads the text in any case."""
    try:
        check_structure(body, MAX_DEPTH)
        return msgspec.json.decode(body)
    except (InvalidRequest, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(response: EgressResponse) -> str:
    kind = response.media_type
    textual = not kind or kind.startswith(_TEXTUAL) or is_json(kind) or kind.endswith(("+xml", "+yaml"))
    if textual and b"\0" not in response.body[:8192]:
        return response.body.decode("utf-8", "replace")
    return f"[{len(response.body)} bytes of {kind or 'binary data'}, which cannot be shown]" if response.body else ""


def is_json(kind: str) -> bool:
    """Whether a media type is JSON or a type derived from it."""
    return kind == "application/json" or kind.endswith("+json")
