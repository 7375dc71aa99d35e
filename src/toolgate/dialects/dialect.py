"""What a dialect is: two pure translators between one wire format and the conversation's values.

The server half faces a client, the upstream half faces a model; each is a module of functions. They do no I/O, know no
clock and never see each other. Where the client's dialect is also the upstream's, a `Relay` passes frames on and mends only
what would break a client.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.conversation.errors import Rejected, ToolgateError, UpstreamFault
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
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest, ToolServer
from toolgate.wire.frames import Frame, FrameDecoder
from toolgate.wire.ndjson import NdjsonDecoder
from toolgate.wire.sse import SseDecoder

Framing: TypeAlias = Literal["sse", "ndjson"]


def timeless() -> tuple[float, float]:
    """Nobody holds a watch."""
    return 0.0, 0.0


class Reply(Struct, frozen=True):
    """How our answer presents itself: its id, the second it was created and the model's public name.

    `tool_events` asks a dialect that has no words for the server's tools to tell of them in fields of our own;
    `shows_server_tools` is false where the dialect has such words and this client cannot read them.
    `request_id` is what an error in the middle of the answer names.
    `times` are the seconds that the first piece of the answer took, and those that all of it took so far.
    """

    id: str
    created: int
    model: str
    tool_events: bool = False
    times: Callable[[], tuple[float, float]] = timeless
    shows_server_tools: bool = True
    request_id: str = ""


def warning_comment(warning: str, reply: Reply) -> bytes:
    """A warning as a comment of an event stream; old clients would take a blank line behind it for an empty event."""
    return b": toolgate-warning: " + warning.encode("ascii", "replace") + b"\n"


def tool_event(event: RunEvent) -> dict[str, Any] | None:
    """What is told of the server's tools where a dialect has no words for them, if this event is about them."""
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


def tool_events(response: ModelResponse, reply: Reply) -> dict[str, Any]:
    """The same for a whole answer, as a field of its own, if it is wanted and there is anything to tell."""
    if not reply.tool_events:
        return {}
    told = [event for part in response.parts if (event := tool_event(PartEnd(part)))]
    return {"toolgate": told} if told else {}


class Quirks(Struct, frozen=True, forbid_unknown_fields=True):
    """How one upstream differs from its dialect's letter; every field is a column of the provider table."""

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


class PassedText:
    """The texts of an answer that passes, kept in pieces: its tokens are counted if its upstream does not report them."""

    __slots__ = ("calls", "text", "thoughts")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thoughts: list[str] = []
        self.calls: dict[Any, list[str]] = {}
        """The name and the pieces of the arguments of each call."""

    def parts(self) -> list[Part]:
        """The texts as parts."""
        text, thoughts = "".join(self.text), "".join(self.thoughts)
        calls = [ToolCall("", name, "".join(pieces)) for name, *pieces in self.calls.values()]
        return [*([Text(text)] if text else []), *([Reasoning(thoughts)] if thoughts else []), *calls]


class Encoder(Protocol):
    """Tells one run to the client, event by event."""

    def encode(self, event: RunEvent) -> bytes:
        """The frames for this event; empty when the dialect does not speak of it."""

    def error(self, error: ToolgateError) -> bytes:
        """The dialect's own way to say that the stream failed, and its terminator."""


class ServerHalf(Protocol):
    """Faces the client. Satisfied by a module."""

    def decode_request(self, body: Any) -> ModelRequest:
        """The request that the body makes; InvalidRequest names the field that is wrong."""

    def reply_id(self) -> str:
        """A fresh id for an answer."""

    def encoder(self, request: ModelRequest, reply: Reply) -> Encoder:
        """An encoder for the answer to this request."""

    def encode_response(self, response: ModelResponse, request: ModelRequest, reply: Reply) -> bytes:
        """A whole answer."""

    def encode_error(self, error: ToolgateError, request_id: str = "") -> bytes:
        """The body of an error response; `request_id` is given where the dialect has a place for it."""

    def encode_warning(self, warning: str, reply: Reply) -> bytes:
        """A warning in the middle of a stream, whose headers have gone out, in a form that clients pass over."""


class Decoder(Protocol):
    """Reads one streamed answer of an upstream."""

    done: bool
    """The answer is complete: whatever the socket does next, nothing more is awaited."""

    usage: Usage | None
    """What the upstream has reported so far."""

    def feed(self, frame: Frame) -> list[StepEvent]:
        """What this frame makes certain; raises UpstreamFault if it tells of a failure."""

    def end(self) -> list[StepEvent]:
        """What the end of the stream makes certain; raises Garbled if it was cut short."""


class Relay(Protocol):
    """Passes one streamed answer to a client of the same dialect; unknown fields stay, what breaks clients is mended.

    An answer that is complete without usage is `done`, but its end is held back until `end_with` brings an estimate.
    """

    done: bool
    usage: Usage | None
    names: CallNames

    @property
    def lacks_usage(self) -> bool:
        """Whether the end is held back because the upstream reported no usage."""

    def end_with(self, usage: Usage) -> bytes:
        """The end that was held back, with this usage."""

    def received(self) -> list[Part]:
        """What has passed so far, for counting its tokens."""

    @property
    def reason(self) -> FinishReason | None:
        """Why the answer ended, once it has."""

    @property
    def calls(self) -> int:
        """How many tool calls it holds so far."""

    def feed(self, frame: Frame) -> bytes:
        """The frame as the client should see it; raises UpstreamFault if it tells of a failure."""

    def end(self) -> bytes:
        """What is left to say; raises Garbled if the stream was cut short."""

    def error(self, error: ToolgateError) -> bytes:
        """The dialect's own way to say that the stream failed, and its terminator."""


class UpstreamHalf(Protocol):
    """Faces the model. Satisfied by a module."""

    def path(self, request: ModelRequest) -> str:
        """Where to post, relative to the upstream's base URL."""

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The credentials and version headers of this dialect."""

    def encode_request(self, request: ModelRequest, quirks: Quirks) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The body to post, and what could not be said in this dialect, in words for a person."""

    def decoder(self, request: ModelRequest) -> Decoder:
        """A decoder for the streamed answer to this request."""

    def relay(self, request: ModelRequest, reply: Reply) -> Relay:
        """A relay for the streamed answer to this request."""

    def decode_response(self, body: Any, request: ModelRequest) -> ModelResponse:
        """A whole answer; raises UpstreamFault if it is an error in disguise."""

    def usage_of(self, body: Any) -> Usage | None:
        """What a whole answer says that it used, even one that cannot be decoded."""

    def relay_response(self, body: Any, response: ModelResponse, request: ModelRequest, reply: Reply) -> dict[str, Any]:
        """A whole answer, decoded as `response`, as a client of the same dialect should see it."""

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamFault:
        """The failure that an answer with a bad status tells of."""


TakeServers: TypeAlias = Callable[
    [ModelRequest, Callable[[ToolServer], bool]], tuple[ModelRequest, tuple[ToolServer, ...]]
]


def _no_servers(
    request: ModelRequest, is_known: Callable[[ToolServer], bool]
) -> tuple[ModelRequest, tuple[ToolServer, ...]]:
    return request, ()


MendRefused: TypeAlias = Callable[[ModelRequest, Rejected], tuple[ModelRequest, str] | None]


def _cannot_mend(request: ModelRequest, fault: Rejected) -> None:
    return None


def _reads_all(request: ModelRequest) -> bool:
    return True


class CountingHalf(Protocol):
    """Asks a model's server how many tokens a request has. Satisfied by a module."""

    def path(self) -> str:
        """Where to post, relative to the upstream's base URL."""

    def encode_request(self, request: ModelRequest, quirks: Quirks) -> dict[str, Any]:
        """The body to post."""

    def decode_count(self, body: Any) -> int:
        """The number of tokens; raises Garbled if the answer holds none."""


class Dialect(Struct, frozen=True):
    """A wire format with both its halves.

    `passed_headers` are headers in which a client says things that an upstream of the same dialect should hear;
    with `one_event_a_write`, no two events leave in one piece, as the dialect's specification wants it.
    One that is `native` to tools that the server runs shows their calls and results, one that is `asking` has words for an
    approval, one that is `pausing` for a turn to be gone on with; `reads_server_tools` says whether the client that made a
    request can read such calls. `take_servers` are the tool servers that a request names and that the given function knows,
    and the request without them. `counting` asks for the tokens of a request. `mend_refused` gives the request without what
    an upstream refused in it and a warning of that, or None if there is nothing to be done.
    """

    name: str
    server: ServerHalf
    upstream: UpstreamHalf
    framing: Framing = "sse"
    passed_headers: tuple[str, ...] = ()
    one_event_a_write: bool = False
    native: bool = False
    asking: bool = False
    pausing: bool = False
    take_servers: TakeServers = _no_servers
    reads_server_tools: Callable[[ModelRequest], bool] = _reads_all
    mend_refused: MendRefused = _cannot_mend
    counting: CountingHalf | None = None

    def frame_decoder(self) -> FrameDecoder:
        """Cuts a streamed body of this dialect into frames."""
        return SseDecoder() if self.framing == "sse" else NdjsonDecoder()

    @property
    def stream_type(self) -> str:
        """The content type of a streamed body."""
        return "text/event-stream" if self.framing == "sse" else "application/x-ndjson"
