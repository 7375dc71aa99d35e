"""Decode Ollama's chat requests.

Older versions have no ids of calls and results, and clients leave out those that newer servers send. A call without an id
gets one from its position in the history, so that the same history always has the same ids, and a result without one is
matched by its tool's name or else by its order among the calls without a result.
"""

from collections import deque
from itertools import count
from typing import Any

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import (
    NO_EXTRA,
    Extra,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import (
    ModelRequest,
    ReasoningSettings,
    RequestSettings,
    StructuredOutputFormat,
    ToolDef,
)
from toolgate.dialects.ollama.shared_codec import NAME, PROMPT, THINKING, image_mime, read_arguments
from toolgate.wire.fields import Fields

# Stop texts that the upstream does not take cut the answer here: each delta is compared with all of them.
MAX_STOPS = 64


def decode_request(body: Any) -> ModelRequest:
    """Decode the body of a request; without messages it only loads the model."""
    fields = Fields(body)
    model = fields.required_text("model")
    messages = _MessageDecoder().decode(fields)
    tools: list[ToolDef] = []
    for number, value in enumerate(fields.items("tools") or []):
        tool = Fields(value, f"tools[{number}]")
        if tool.text("type") not in (None, "", "function"):
            raise InvalidRequest(f"{tool.at('type')} must be function.", param=tool.at("type"), code="invalid_tool")
        function = tool.object("function")
        if function is None:
            raise InvalidRequest(f"{tool.at('function')} is required.", param=tool.at("function"), code="invalid_tool")
        name = function.required_text("name")
        description, schema = function.text("description"), function.mapping("parameters")
        inner = {"function": function.rest} if function.rest else {}
        tools.append(ToolDef(name, description, schema, extra=own_extra({**inner, **tool.rest})))
    # Ollama streams by default.
    settings, stream = read_settings(fields), fields.flag("stream") is not False
    fields.raw(PROMPT)  # a client must not set our own key
    return ModelRequest(model, messages, tuple(tools), None, settings, stream, NAME, own_extra(fields.rest))


def own_extra(rest: dict[str, Any]) -> Extra:
    """Return the unread fields of an object as the extra of this dialect."""
    return {NAME: rest} if rest else NO_EXTRA


class _OpenCalls:
    """Calls without a result yet, each found by id or by name at the same cost, however many there are."""

    def __init__(self) -> None:
        self._calls: dict[int, ToolCall] = {}
        self._numbers = count()
        self._queues: dict[tuple[str, str | None], deque[int]] = {}

    def add(self, call: ToolCall) -> None:
        """Add a call behind the others."""
        number = next(self._numbers)
        self._calls[number] = call
        for key in (("id", call.id), ("name", call.name), ("any", None)):
            self._queues.setdefault(key, deque()).append(number)

    def take(self, *keys: tuple[str, str | None]) -> ToolCall | None:
        """Remove and return the first call of the first key that has one."""
        for key in keys:
            queue = self._queues.get(key)
            while queue:
                if (call := self._calls.pop(queue.popleft(), None)) is not None:  # else it was taken by another key
                    return call
        return None


class _MessageDecoder:
    """Decodes messages, and keeps the calls of the last turn that have no result yet."""

    def __init__(self) -> None:
        self._known_ids: set[str] = set()
        self._open_calls = _OpenCalls()
        self._made_ids = False  # open calls got their ids here, so that no result can have them
        self._turn_ended = False  # a turn's calls may come in several messages, until a result or a user message

    def decode(self, fields: Fields) -> tuple[Message, ...]:
        """Decode all messages of a body."""
        messages: list[Message] = []
        for number, value in enumerate(fields.items("messages") or []):
            inner = Fields(value, f"messages[{number}]")
            role = inner.required_text("role").lower()
            match role:
                case "user" | "system" | "developer":
                    self._turn_ended = True
                    content = _content(inner)
                    messages.append(Message("user" if role == "user" else "system", content, own_extra(inner.rest)))
                case "assistant":
                    messages.append(self._assistant(inner, number))
                case "tool":
                    messages.append(self._result(inner, number))
                case _:  # some models have roles of their own, which only their template understands
                    messages.append(Message("system", (Opaque(NAME, dict(value)),)))
        return tuple(messages)

    def _assistant(self, fields: Fields, number: int) -> Message:
        thinking = fields.text("thinking")
        parts: list[Part] = [Reasoning(thinking, THINKING)] if thinking else []
        parts += [part for part in _content(fields) if part != Text("")]
        values = fields.items("tool_calls") or []
        if values and self._turn_ended:
            self._open_calls, self._made_ids, self._turn_ended = _OpenCalls(), False, False
        for position, value in enumerate(values):
            entry = Fields(value, f"{fields.at('tool_calls')}[{position}]")
            given = entry.text("id")
            self._made_ids = self._made_ids or not given
            id = given or f"call_turn{number:04d}_{position:04d}"
            entry.raw("type")
            function = entry.object("function") or Fields({}, entry.at("function"))
            function.raw("index")  # it is counted anew when the call is encoded
            name, arguments = function.required_text("name"), read_arguments(function.raw("arguments")).strip()
            inner = {"function": function.rest} if function.rest else {}
            call = ToolCall(id, name, arguments or "{}", extra=own_extra({**entry.rest, **inner}))
            self._open_calls.add(call)
            self._known_ids.add(call.id)
            parts.append(call)
        return Message("assistant", tuple(parts), own_extra(fields.rest))

    def _result(self, fields: Fields, number: int) -> Message:
        self._turn_ended = True
        given = fields.text("tool_call_id")
        name = fields.text("tool_name") or fields.text("name")
        # A result with a known id answers only that call. An id that no call has counts only if no call got its id here.
        if given and (given in self._known_ids or not self._made_ids):
            call = self._open_calls.take(("id", given))
        else:
            call = self._open_calls.take(("name", name), ("any", None))
        id = call.id if call else given or f"call_turn{number:04d}_none"
        content = tuple([part for part in _content(fields) if isinstance(part, (Text, Media))])
        result = ToolResult(id, content, name=name or (call.name if call else None))
        return Message("tool", (result,), own_extra(fields.rest))


def _content(fields: Fields) -> tuple[Part, ...]:
    text, images = fields.text("content"), read_images(fields)
    return (Text(text), *images) if text or (text is not None and not images) else tuple(images)


def read_images(fields: Fields) -> list[Media]:
    """Decode the images of a message: plain base64, or data URLs, which some clients send."""
    images = []
    for number, value in enumerate(fields.items("images") or []):
        if type(value) is not str:
            raise fields.wrong(f"images[{number}]", "a base64 string")
        data = value.partition(",")[2] if value.startswith("data:") else value
        images.append(Media("image", image_mime(data), data))
    return images


def read_settings(fields: Fields) -> RequestSettings:
    """Decode options, format and thinking; options that no other dialect knows stay in `rest`."""
    options = fields.object("options") or Fields({}, "options")
    limit = options.integer("num_predict")
    if limit is not None and limit < 1:  # unlimited, or until the context is full
        options.rest["num_predict"], limit = limit, None
    stop = options.raw("stop")
    stops = [stop] if type(stop) is str else [] if stop is None else stop
    if type(stops) is not list or not all(type(one) is str for one in stops):
        raise options.wrong("stop", "a list of strings")
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"options.stop may hold at most {MAX_STOPS} strings.", param="options.stop")
    settings = RequestSettings(
        max_tokens=limit,
        temperature=options.number("temperature"),
        top_p=options.number("top_p"),
        top_k=options.integer("top_k"),
        stop=tuple(stops),
        seed=options.integer("seed"),
        frequency_penalty=options.number("frequency_penalty"),
        presence_penalty=options.number("presence_penalty"),
        output=_output(fields),
        thinking=_thinking(fields),
        logprobs=value if type(value := fields.rest.get("logprobs")) is bool else None,
        top_logprobs=value if type(value := fields.rest.get("top_logprobs")) is int else None,
    )
    if options.rest:
        fields.rest["options"] = options.rest
    return settings


def _output(fields: Fields) -> StructuredOutputFormat | None:
    match fields.raw("format"):
        case None | "":
            return None
        case "json":
            return StructuredOutputFormat()
        case dict(schema):
            return StructuredOutputFormat(schema)
        case _:
            raise fields.wrong("format", "json or a JSON Schema")


def _thinking(fields: Fields) -> ReasoningSettings | None:
    match fields.raw("think"):
        case None | "":
            return None
        case bool(enabled):
            return ReasoningSettings(enabled)
        case str(effort):
            return ReasoningSettings(True, effort)
        case _:
            raise fields.wrong("think", "true, false or a word such as high")
