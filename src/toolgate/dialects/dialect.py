"""Define what a dialect is: two pure codecs between one wire format and the values of a conversation.

The server codec decodes requests of clients and encodes answers; the upstream codec encodes requests to upstreams and
decodes answers. Each is a module of functions. They do no I/O, read no clock and do not know each other. Where client and
upstream use the same dialect, a `StreamRelay` passes frames on and repairs only what would break a client.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import ToolgateError, UpstreamError, UpstreamRejected
from toolgate.conversation.events import (
    FinishReason,
    ModelResponse,
    PartEnd,
    RunEvent,
    StepEvent,
    ToolProgress,
    Usage,
)
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest, ToolServer
from toolgate.conversation.tool_name_matching import CallNameCorrector
from toolgate.wire.ndjson_decoder import NdjsonDecoder
from toolgate.wire.received_stream_frames import EventFrameDecoder, ReceivedStreamFrame
from toolgate.wire.sse_decoder import SseDecoder

Framing: TypeAlias = Literal["sse", "ndjson"]

CALL_NOT_DEMANDED = "the model cannot be made to call a tool"

# A warning as a comment of an event stream. No blank line follows, as old clients read one as an empty event.
WARNING_COMMENT = b": toolgate-warning: %b\n"


def no_times() -> tuple[float, float]:
    """Return no times, for answers that are not measured."""
    return 0.0, 0.0


class AnswerMetadata(Struct, frozen=True):
    """The id of an answer, the second it was created and the model's public name.

    `tool_events` asks a dialect without native server tools to show them in a field of our own;
    `shows_server_tools` is false where the dialect has them and this client cannot read them.
    `request_id` is shown in an error in the middle of the answer. `loses_errors` is set if the client does not show such
    an error to its user unless it comes in another form.
    `times` are the seconds until the first event of the answer, and until now.
    """

    id: str
    created: int
    model: str
    tool_events: bool = False
    times: Callable[[], tuple[float, float]] = no_times
    shows_server_tools: bool = True
    request_id: str = ""
    loses_errors: bool = False


def warning_comment(warning: str, metadata: AnswerMetadata) -> bytes:
    """Encode a warning as a comment of an event stream."""
    return WARNING_COMMENT % warning.encode("ascii", "replace")


def tool_event(event: RunEvent) -> dict[str, Any] | None:
    """Return an event about server tools in our own form, for dialects without native ones; None for other events."""
    match event:
        case PartEnd(ToolCall(executor="gateway") as call):
            return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        case PartEnd(ToolResult() as result):
            text = plain_text(result.content)
            return {"type": "tool_result", "id": result.call_id, "is_error": bool(result.is_error), "text": text}
        case ToolProgress(call_id, message, done, total):
            return {"type": "tool_progress", "id": call_id, "message": message, "done": done, "total": total}
        case _:
            return None


def tool_events(response: ModelResponse, metadata: AnswerMetadata) -> dict[str, Any]:
    """Return the field of a whole answer with its tool events, if they were requested and there are any."""
    if not metadata.tool_events:
        return {}
    events = [event for part in response.parts if (event := tool_event(PartEnd(part)))]
    return {"toolgate": events} if events else {}


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How one upstream differs from its dialect's specification; every field is a column of the provider table."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    system_role: Literal["system", "developer"] = "system"
    reasoning_field: Literal["reasoning_content", "reasoning"] | None = None
    images_in_tool_results: bool = False
    usage_in_streams: bool = True
    output_format: Literal["schema", "json", "none"] = "schema"
    call_id_pattern: str | None = None
    name_limit: int = 64
    freeform_tools: bool = False
    default_max_tokens: int = 8192
    thinking: Literal["adaptive", "always", "budget"] = "adaptive"
    system_in_place: bool | None = None
    unsupported: tuple[str, ...] = ()


class FragmentsForTokenCount:
    """The text fragments of a relayed answer, whose tokens are counted if its upstream does not report them."""

    __slots__ = ("calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[Any, list[str]] = {}  # of each call the name, then its argument fragments

    def parts(self) -> list[Part]:
        """Return the fragments as parts."""
        text, reasoning = "".join(self.text), "".join(self.reasoning)
        calls = [ToolCall("", name, "".join(fragments)) for name, *fragments in self.calls.values()]
        return [*([Text(text)] if text else []), *([Reasoning(reasoning)] if reasoning else []), *calls]


class StreamEncoder(Protocol):
    """Encodes one run for a client, event by event."""

    def encode(self, event: RunEvent) -> bytes:
        """Return the frames of this event; empty if the dialect cannot express it."""

    def error(self, error: ToolgateError) -> bytes:
        """Encode an error in the middle of the stream, and the terminator."""


class ServerCodec(Protocol):
    """Decodes requests of clients and encodes answers. Implemented by a module."""

    def decode_request(self, body: Any) -> ModelRequest:
        """Decode the body of a request; raise InvalidRequest with the path of the wrong field."""

    def reply_id(self, request_id: str) -> str:
        """Return an id for the answer to a request."""

    def encoder(self, request: ModelRequest, metadata: AnswerMetadata) -> StreamEncoder:
        """Return an encoder for the streamed answer to this request."""

    def encode_response(self, response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata) -> bytes:
        """Encode a whole answer."""

    def encode_error(self, error: ToolgateError, request_id: str = "") -> bytes:
        """Encode the body of an error response; `request_id` is used where the dialect has a field for it."""

    def encode_warning(self, warning: str, metadata: AnswerMetadata) -> bytes:
        """Encode a warning in the middle of a stream, whose headers are sent, in a form that clients ignore."""


class UpstreamStreamDecoder(Protocol):
    """Decodes one streamed answer of an upstream."""

    # The answer is complete. Some upstreams keep the connection open behind it, so nothing more is awaited.
    done: bool

    # What the upstream has reported so far: a client that leaves early is charged for it.
    usage: Usage | None

    def feed(self, frame: ReceivedStreamFrame) -> list[StepEvent]:
        """Return the events that this frame makes certain; raise UpstreamError if it reports an error."""

    def end(self) -> list[StepEvent]:
        """Return the last events; raise InvalidUpstreamAnswer if the stream was cut short."""


def relayed_usage(written: dict[str, Any], given: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
    """Return the usage of a relayed whole answer: all fields of the dialect, and the `given` ones with their own values.

    Where a count was estimated, the `written` ones win, since the upstream's own are missing or make no sense.
    """
    return {**given, **written} if usage is not None and usage.estimated else {**written, **given}


class StreamRelay(Protocol):
    """Relays one streamed answer to a client of the same dialect: unknown fields stay, what breaks clients is repaired.

    An answer that is complete without usage, or with one count of two, is `done`, but its end is held back until `end_with`
    gets an estimate.
    """

    done: bool
    usage: Usage | None
    names: CallNameCorrector

    @property
    def lacks_usage(self) -> bool:
        """Whether the end is held back because the upstream did not report both counts."""

    def end_with(self, usage: Usage) -> bytes:
        """Return the end that was held back, with this usage."""

    def received(self) -> list[Part]:
        """Return the parts so far, for counting their tokens."""

    @property
    def reason(self) -> FinishReason | None:
        """The finish reason, once the answer has ended."""

    @property
    def calls(self) -> int:
        """The number of tool calls so far."""

    def feed(self, frame: ReceivedStreamFrame) -> bytes:
        """Return the frame as the client should receive it; raise UpstreamError if it reports an error."""

    def end(self) -> bytes:
        """Return the last frames; raise InvalidUpstreamAnswer if the stream was cut short."""

    def error(self, error: ToolgateError) -> bytes:
        """Encode an error in the middle of the stream, and the terminator."""


class UpstreamCodec(Protocol):
    """Encodes requests to upstreams and decodes their answers. Implemented by a module."""

    def path(self, request: ModelRequest) -> str:
        """Return the path to post to, relative to the upstream's base URL."""

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Return the headers with the credentials and the version of this dialect."""

    def encode_request(self, request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Encode the body to post, and list as warnings what this dialect cannot express."""

    def decoder(self, request: ModelRequest) -> UpstreamStreamDecoder:
        """Return a decoder for the streamed answer to this request."""

    def relay(self, request: ModelRequest, metadata: AnswerMetadata) -> StreamRelay:
        """Return a relay for the streamed answer to this request."""

    def decode_response(self, body: Any, request: ModelRequest) -> ModelResponse:
        """Decode a whole answer; raise UpstreamError if it is an error despite its status."""

    def usage_of(self, body: Any) -> Usage | None:
        """Return the usage that a whole answer reports, even one that cannot be decoded."""

    def relay_response(
        self, body: Any, response: ModelResponse, request: ModelRequest, metadata: AnswerMetadata
    ) -> dict[str, Any]:
        """Return a whole answer, decoded as `response`, as a client of the same dialect should receive it."""

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """Decode an error response."""


# Split a request into one without the tool servers that it names and that are known here, and those servers.
ExtractServers: TypeAlias = Callable[
    [ModelRequest, Callable[[ToolServer], bool]], tuple[ModelRequest, tuple[ToolServer, ...]]
]


# Return the request without what an upstream rejected in it, and a warning; None if nothing can be left out.
RepairRejected: TypeAlias = Callable[[ModelRequest, UpstreamRejected], tuple[ModelRequest, str] | None]


class UpstreamTokenCountCodec(Protocol):
    """Encodes requests that ask an upstream to count tokens. Implemented by a module."""

    def path(self) -> str:
        """Return the path to post to, relative to the upstream's base URL."""

    def encode_request(self, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
        """Encode the body to post."""

    def decode_count(self, body: Any) -> int:
        """Decode the number of tokens; raise InvalidUpstreamAnswer if there is none."""


class Dialect(Struct, frozen=True):
    """One wire format: its codecs for clients and for upstreams, and what it can express."""

    name: str
    server: ServerCodec
    upstream: UpstreamCodec
    framing: Framing = "sse"
    # Request headers of a client that an upstream of the same dialect should receive.
    forwarded_headers: tuple[str, ...] = ()
    # No two events may leave in one write, because the dialect's specification forbids it.
    one_event_per_write: bool = False
    # The dialect can express calls and results of tools that the server runs.
    native_tools: bool = False
    # The dialect can ask the client to approve a call.
    native_approvals: bool = False
    # The dialect has a finish reason for a turn that the client should continue.
    native_pause: bool = False
    extract_servers: ExtractServers = lambda request, is_known: (request, ())
    # Whether the client that sent a request can read calls of server tools.
    reads_server_tools: Callable[[ModelRequest], bool] = lambda request: True
    repair_rejected: RepairRejected = lambda request, fault: None
    token_count: UpstreamTokenCountCodec | None = None
    # A shorter way to decode a whole answer that is nothing but a text and its usage; None for any other. If the answer
    # is to be relayed, which the second argument says, a client of the dialect may receive its bytes unchanged.
    decode_plain_answer: Callable[[bytes, bool], ModelResponse | None] = lambda raw, relayed: None

    def frame_decoder(self) -> EventFrameDecoder:
        """Return a decoder that splits a streamed body of this dialect into frames."""
        return SseDecoder() if self.framing == "sse" else NdjsonDecoder()

    @property
    def stream_type(self) -> str:
        """The content type of a streamed body."""
        return "text/event-stream" if self.framing == "sse" else "application/x-ndjson"
