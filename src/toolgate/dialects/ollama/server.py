"""The side of Ollama's `/api/chat` that faces a client: its answers, whole and streamed, and its errors.

Reading requests has a file of its own, `requests.py`. Calls are told whole, as Ollama does. Seals of other dialects stay
out: there is no field in which a client would bring them back.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from toolgate.conversation import ids
from toolgate.conversation.errors import ToolgateError
from toolgate.conversation.events import Delta, Finish, ModelResponse, PartEnd, PartStart, RunEvent, ToolProgress, Usage
from toolgate.conversation.message import Media, Part, Reasoning, Refusal, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Encoder, Reply, tool_event, tool_events
from toolgate.dialects.ollama.requests import decode_request
from toolgate.dialects.ollama.words import (
    NAME,
    encode_line,
    write_call,
    write_date,
    write_measures,
    write_reason,
)

__all__ = [
    "decode_request",
    "encode_error",
    "encode_load",
    "encode_response",
    "encode_warning",
    "encoder",
    "is_load_request",
    "reply_id",
]

Said: TypeAlias = Callable[..., dict[str, Any]]
"""What a line says, in the words of its endpoint: `content` first, then `thinking` and `tool_calls` by name."""


def reply_id() -> str:
    """A fresh id for an answer; Ollama's clients do not see it."""
    return "ollama-" + ids.mint()


def said(content: str = "", **more: Any) -> dict[str, Any]:
    """What a line of `/api/chat` says."""
    return {"message": {"role": "assistant", "content": content, **more}}


def encoder(request: ModelRequest, reply: Reply) -> Encoder:
    """An encoder for the answer to this request."""
    return LineEncoder(request, reply, said)


def encode_response(response: ModelResponse, request: ModelRequest, reply: Reply) -> bytes:
    """A whole answer."""
    return whole(response, request, reply, said)


def encode_stream_error(error: ToolgateError) -> bytes:
    """An error in the middle of a stream."""
    return encode_error(error) + b"\n"


def encode_error(error: ToolgateError, request_id: str = "") -> bytes:
    """The body of an error response."""
    return encode_line({"error": error.message})


def encode_warning(warning: str, reply: Reply) -> bytes:
    """A warning in the middle of a stream, as a line that says nothing else."""
    return warning_line(warning, reply, said)


def is_load_request(body: Any) -> bool:
    """Whether the body asks to load or unload the model and nothing else."""
    return type(body) is dict and body.get("messages") in (None, [])


def encode_load(body: Any, reply: Reply) -> bytes:
    """The answer to such a body; no model needs to be asked for it."""
    return load(body, reply, said)


class LineEncoder:
    """Tells a run as lines of JSON; the fixed parts of a line are written once."""

    def __init__(self, request: ModelRequest, reply: Reply, said: Said) -> None:
        self._thinks = shows_thinking(request)
        self._head = encode_line(_head(reply))[:-1] + b","
        self._said = said
        self._tool_events = reply.tool_events
        self._times = reply.times
        self._calls = 0
        self._open_delta = (b"", b"")  # what stands around the text of a delta of the open part

    def encode(self, event: RunEvent) -> bytes:
        """The lines for this event."""
        match event:
            case Delta(text):
                before, after = self._open_delta
                return before + encode_line(text) + after if before else b""
            case PartStart(part):
                return self._start(part)
            case PartEnd() | ToolProgress() if self._tool_events and (told := tool_event(event)):
                return self._line({**self._said(), "toolgate": told})
            case PartEnd(ToolCall() as call) if is_shown(call):
                self._calls += 1
                return self._line(self._said(tool_calls=[write_call(call, call.id, self._calls - 1)]))
            case PartEnd(Text(logprobs=likely)) if likely:
                return self._line({**self._said(), "logprobs": likely})
            case Finish():
                return self._line(self._said(), ending(event, self._times()))
            case _:
                return b""

    def error(self, error: ToolgateError) -> bytes:
        """The error as the last line."""
        return encode_stream_error(error)

    def _start(self, part: Part) -> bytes:
        self._open_delta = (b"", b"")
        match part:
            case Text() | Refusal():
                self._open_delta = self._around(self._said("?"))
            case Reasoning() if self._thinks:
                self._open_delta = self._around(self._said(thinking="?"))
            case Media():
                return self._line(self._said(_link(part)))
        return b""

    def _line(self, fields: dict[str, Any], end: dict[str, Any] | None = None) -> bytes:
        return self._head + encode_line({**fields, "done": False, **(end or {})})[1:] + b"\n"

    def _around(self, fields: dict[str, Any]) -> tuple[bytes, bytes]:
        before, after = self._line(fields).rsplit(b'"?"', 1)
        return before, after


def shows_thinking(request: ModelRequest) -> bool:
    """Whether thoughts are shown: a client that says `think: false` shall not get those that a model has all the same."""
    return request.settings.thinking is None or request.settings.thinking.enabled


def whole(response: ModelResponse, request: ModelRequest, reply: Reply, said: Said) -> bytes:
    """A whole answer, in the words of its endpoint."""
    parts = response.parts
    text = "".join([shown for part in parts if (shown := _shown(part))])
    thought = "".join([part.text for part in parts if type(part) is Reasoning])
    calls = [part for part in parts if type(part) is ToolCall and is_shown(part)]
    more: dict[str, Any] = {}
    if thought and shows_thinking(request):
        more["thinking"] = thought
    if calls:
        more["tool_calls"] = [write_call(call, call.id, number) for number, call in enumerate(calls)]
    end = ending(response, reply.times())
    if likely := [entry for part in parts if type(part) is Text for entry in part.logprobs]:
        end["logprobs"] = likely
    return encode_line({**_head(reply), **said(text, **more), **tool_events(response, reply), **end})


def warning_line(warning: str, reply: Reply, said: Said) -> bytes:
    """A line with a warning in a field of our own, in the words of its endpoint."""
    told = {"type": "warning", "message": warning}
    return encode_line({**_head(reply), **said(), "done": False, "toolgate": told}) + b"\n"


def load(body: Any, reply: Reply, said: Said) -> bytes:
    """The answer to a body that says nothing, in the words of its endpoint."""
    reason = "unload" if body.get("keep_alive") in (0, "0", "0s", "0m") else "load"
    return encode_line({**_head(reply), **said(), "done_reason": reason, "done": True})


def is_shown(call: ToolCall) -> bool:
    """Whether a call is the client's to run; half a call cannot be told apart from a whole one here, so it is not shown."""
    return call.complete and call.executor == "client"


def ending(end: Finish | ModelResponse, times: tuple[float, float]) -> dict[str, Any]:
    """What a last line says beside the message; durations and the like of an Ollama upstream are passed on."""
    measures = write_measures(end.usage or Usage(), times)
    return {"done": True, "done_reason": write_reason(end.reason), **measures, **end.extra.get(NAME, {})}


def _head(reply: Reply) -> dict[str, Any]:
    return {"model": reply.model, "created_at": write_date(reply.created)}


def _shown(part: Part) -> str | None:
    match part:
        case Text(text) | Refusal(text):
            return text
        case Media():
            return _link(part)
        case _:
            return None


def _link(part: Media) -> str:
    """A picture as Markdown: the official client fails on an answer with `images`."""
    return f"![{part.kind}]({part.url or f'data:{part.mime};base64,{part.data}'})"
