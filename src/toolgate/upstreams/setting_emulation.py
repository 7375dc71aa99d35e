"""Emulate settings that an upstream's API lacks: stop texts, JSON answers and forced calls.

Responses has no stop texts, so the answer is cut here. Messages has no JSON mode without a schema, so the answer is the
input of a tool that must be called. Models of editors have neither.
Ollama has no setting that forces a call, so its output format is that of a call. Each
substitute changes the request before it is encoded and has a rewriter that turns the answer back, event by event.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEnd, StepEvent
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import (
    ModelRequest,
    StructuredOutputFormat,
    ToolChoice,
    ToolDef,
    schema_with_description,
)
from toolgate.dialects.dialect import Quirks

# A limit, because the client chooses the texts, and every piece of the answer is compared with their beginnings.
LONGEST_STOP = 256
_SLICE_CHARACTERS = 256 * 1024  # searched at a time: a search keeps the interpreter until it returns
_ANSWER_TOOL = "json_answer"
_ANSWER_USE = "Give your whole answer to the user as the input of this tool, and say nothing else."
_ANSWER_FIELD = "answer"  # holds an answer that is no object, which no tool takes as its input
_ANY_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
_DEFINITIONS = ("$defs", "definitions")  # what a schema's references point to; the second is its name before 2019


class EmulatedResponseRewriter(Protocol):
    """Rewrites the events of one response for the client."""

    # Whether the response has ended here, though the upstream may continue.
    done: bool

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events for the client."""


class _InTurn:
    """Several rewriters, one after the other."""

    def __init__(self, rewriters: tuple[EmulatedResponseRewriter, ...]) -> None:
        self.done = False
        self._rewriters = rewriters

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        for rewriter in self._rewriters:
            events = rewriter.restore(events)
            self.done = self.done or rewriter.done
        return events


def in_turn(rewriters: tuple[EmulatedResponseRewriter, ...]) -> EmulatedResponseRewriter | None:
    """Return one rewriter for all of them; the first is next to the upstream."""
    return None if not rewriters else rewriters[0] if len(rewriters) == 1 else _InTurn(rewriters)


class EmulatedSettingsRequest(Struct, frozen=True):
    """The request for the upstream, the rewriters of its response, and warnings."""

    request: ModelRequest
    rewriters: tuple[EmulatedResponseRewriter, ...] = ()
    dropped: tuple[str, ...] = ()


def substitute(request: ModelRequest, dialect: str, quirks: Quirks) -> EmulatedSettingsRequest:
    """Emulate what this upstream cannot do; a request in its own dialect never needs that."""
    settings, choice = request.settings, request.tool_choice
    if request.dialect == dialect:
        return EmulatedSettingsRequest(request)
    if dialect == "openai_responses" and settings.stop:
        return _cut_here(request, settings.stop)
    if dialect == "anthropic":
        output = settings.output
        if not settings.stop and output is None:
            return EmulatedSettingsRequest(request)
        # Anthropic refuses stop texts of blanks alone with status 400; all others it finds itself.
        blank = tuple([text for text in settings.stop if not text.strip()])
        cut = _cut_here(request, blank) if blank else EmulatedSettingsRequest(request)
        if output is None or (output.schema is not None and quirks.output_format == "schema"):
            return cut
        answer = _answer_by_tool(cut.request, output)
        return replace(answer, rewriters=(*answer.rewriters, *cut.rewriters), dropped=(*answer.dropped, *cut.dropped))
    if dialect == "vscode" and (settings.stop or settings.output is not None):
        cut = _cut_here(request, settings.stop) if settings.stop else EmulatedSettingsRequest(request)
        if settings.output is None or quirks.output_format == "none":
            return cut
        answer = _answer_by_tool(cut.request, settings.output)
        return replace(answer, rewriters=(*answer.rewriters, *cut.rewriters), dropped=(*answer.dropped, *cut.dropped))
    if dialect == "ollama" and request.tools and choice is not None and choice.mode == "required":
        return _call_by_format(request, choice, quirks)
    return EmulatedSettingsRequest(request)


def _cut_here(request: ModelRequest, stops: tuple[str, ...]) -> EmulatedSettingsRequest:
    """Cut the response at stop texts here; too many or too long ones are left out, because each piece is compared."""
    left = tuple([text for text in request.settings.stop if text not in stops])
    cutter = StopCutter(tuple([text for text in stops if 0 < len(text) <= LONGEST_STOP]))
    long = any(len(text) > LONGEST_STOP for text in stops)
    dropped = (f"stop texts of more than {LONGEST_STOP} characters were left out",) if long else ()
    return EmulatedSettingsRequest(replace(request, settings=replace(request.settings, stop=left)), (cutter,), dropped)


class StopCutter:
    """Ends a response before the first stop text; a possible beginning of one is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.done = False
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        # Found by their hash: compared with each stop text, each character would cost as much as all of them together.
        self._beginnings = frozenset([stop[:size] for stop in stops for size in range(1, len(stop))])
        self._text: list[str] | None = None  # of the open text: the pieces that were passed on
        self._held = ""
        self._stop: str | None = None

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events up to the stop text."""
        restored: list[StepEvent] = []
        for event in events:
            if self._stop is not None:
                # It came in the same batch, so its usage is known: it replaces the end that `_read` made without.
                if isinstance(event, StepEnd):
                    restored[-1] = replace(event, reason="stop", stop_sequence=self._stop)
                continue
            match event:
                case PartStart(Text()):
                    self._text, self._held = [], ""
                    restored.append(event)
                case PartDelta(text) if self._text is not None:
                    for start in range(0, len(text), _SLICE_CHARACTERS):
                        if self._stop is None:
                            restored += self._read(text[start : start + _SLICE_CHARACTERS])
                case PartEnd(Text()) if self._text is not None:
                    if self._held:
                        restored.append(PartDelta(self._held))
                    self._text = None
                    restored.append(event)
                case _:
                    restored.append(event)
        return restored

    def _read(self, text: str) -> list[StepEvent]:
        text, passed = self._held + text, self._text or []
        found = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            place, self._stop = min(found, key=lambda one: one[0])
            passed.append(text[:place])
            self.done = True
            end: list[StepEvent] = [PartEnd(Text("".join(passed))), StepEnd("stop", stop_sequence=self._stop)]
            return [PartDelta(text[:place]), *end] if place else end
        # Hold back the longest end of the text that may begin a stop text: of `Hi</` with the stop text `</s>`, two
        # characters. It is shorter than the longest of them.
        ends = range(max(len(text) - self._longest + 1, 0), len(text))
        held = next((len(text) - place for place in ends if text[place:] in self._beginnings), 0)
        sure, self._held = text[: len(text) - held], text[len(text) - held :]
        self._text = passed
        passed.append(sure)
        return [PartDelta(sure)] if sure else []


def _answer_by_tool(request: ModelRequest, output: StructuredOutputFormat) -> EmulatedSettingsRequest:
    """Demand the answer as the input of a tool; with other tools or with thinking the call is not forced."""
    choice, settings = request.tool_choice, replace(request.settings, output=None)
    if request.tools and choice is not None and choice.mode == "required":
        lost = "the output format was left out: a tool call is demanded"
        return EmulatedSettingsRequest(replace(request, settings=settings), dropped=(lost,))
    tool, wrapped = _answer_tool(output, {tool.name for tool in request.tools})
    # Beside tools of the client the model may call one of them first, so that some call is demanded and not this one.
    free = request.tools and (choice is None or choice.mode == "auto")
    parallel = choice.parallel if free and choice is not None else None if free else False
    forced = ToolChoice("required", () if free else (tool.name,), parallel)
    dropped: tuple[str, ...] = ()
    # Anthropic refuses a forced call together with thinking.
    if settings.thinking is not None and settings.thinking.enabled:
        forced = ToolChoice("auto", (), choice.parallel if choice else None)
        dropped = (
            "the output format is asked for and not enforced: the upstream cannot demand it of a model that thinks",
        )
    changed = replace(request, tools=(*request.tools, tool), tool_choice=forced, settings=settings)
    return EmulatedSettingsRequest(changed, (AnswerToolDecoder(tool.name, wrapped),), dropped)


def _answer_tool(output: StructuredOutputFormat, taken: set[str]) -> tuple[ToolDef, bool]:
    name = _ANSWER_TOOL
    while name in taken:
        name += "_"
    schema = schema_with_description(output)
    if schema is None:
        return ToolDef(name, f"{_ANSWER_USE} It is one JSON object.", _ANY_OBJECT), False
    if schema.get("type") == "object":
        return ToolDef(name, _ANSWER_USE, schema), False
    # References such as `#/$defs/Item` point to the root, so that definitions stay there and only the rest moves inside.
    beside = {key: schema[key] for key in _DEFINITIONS if key in schema}
    bare = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    whole = {"type": "object", "properties": {_ANSWER_FIELD: bare}, "required": [_ANSWER_FIELD], **beside}
    return ToolDef(name, _ANSWER_USE, whole), True


class AnswerToolDecoder:
    """Turns the call of the answer tool back into text; other text is dropped."""

    done = False

    def __init__(self, name: str, wrapped: bool) -> None:
        self._name = name
        self._wrapped = wrapped
        self._in_answer = False
        self._in_text = False
        self._texts: list[StepEvent] = []  # held until it is known whether the answer tool is called
        self._called = False
        self._answered = False

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events with the answer as text."""
        restored: list[StepEvent] = []
        for event in events:
            match event:
                case PartStart(Text()):
                    self._in_text = True
                case PartEnd(Text()):
                    self._texts += unfold_part(event.part)
                    self._in_text = False
                case PartDelta() if self._in_text or (self._in_answer and self._wrapped):
                    continue
                case PartStart(ToolCall(name=name)) if name == self._name:
                    # Text before it, such as "Here is the JSON:", would spoil the answer.
                    self._texts, self._in_answer = [], True
                    if not self._wrapped:  # then the arguments are the answer, and their deltas stream through
                        restored.append(PartStart(Text("")))
                case PartEnd(ToolCall(name=name) as call) if name == self._name:
                    self._in_answer, self._answered = False, True
                    restored += self._answer(call)
                case PartStart(ToolCall()):
                    self._called = True
                    restored += [*self._take_texts(), event]
                case StepEnd():
                    restored += [] if self._answered else self._take_texts()
                    ended = self._answered and not self._called and event.reason == "tool_calls"
                    restored.append(replace(event, reason="stop") if ended else event)
                case _:
                    restored.append(event)
        return restored

    def _take_texts(self) -> list[StepEvent]:
        texts, self._texts = self._texts, []
        return texts

    def _answer(self, call: ToolCall) -> list[StepEvent]:
        if not self._wrapped:
            return [PartEnd(Text(call.arguments))]
        # As raw bytes: the answer keeps the numbers and the order of fields that the model wrote.
        try:
            text = bytes(_decode_wrapped(call.arguments).answer).decode()
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            text = call.arguments
        return unfold_part(Text(text))


class _Wrapped(Struct):
    answer: msgspec.Raw


class _Call(Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_decode_wrapped = msgspec.json.Decoder(_Wrapped).decode
_decode_call = msgspec.json.Decoder(_Call).decode


def _call_by_format(request: ModelRequest, choice: ToolChoice, quirks: Quirks) -> EmulatedSettingsRequest:
    """Demand a call by the output format; where the upstream accepts no schema, the encoder warns of the choice."""
    tools = [
        tool for tool in request.tools if tool.kind == "function" and (not choice.names or tool.name in choice.names)
    ]
    if quirks.output_format != "schema" or not tools:
        return EmulatedSettingsRequest(request)
    dropped = ("the output format was left out: a tool call is demanded",) if request.settings.output else ()
    # The schema of a call of one of the tools; definitions move to its root, where references point.
    definitions: dict[str, dict[str, Any]] = {}
    calls = []
    for tool in tools:
        schema = dict(tool.input_schema or _ANY_OBJECT)
        for key in _DEFINITIONS:
            own, known = schema.pop(key, {}), definitions.get(key, {})
            if any(known.get(name, value) != value for name, value in own.items()):
                schema = {"type": "object"}  # two definitions of one name: the arguments stay free
            elif own:
                definitions[key] = {**known, **own}
        properties = {"name": {"type": "string", "enum": [tool.name]}, "arguments": schema}
        calls.append({"type": "object", "properties": properties, "required": ["name", "arguments"]})
    form = {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), **definitions}
    settings = replace(request.settings, output=StructuredOutputFormat(form))
    changed = replace(request, settings=settings, tool_choice=ToolChoice("auto", choice.names))
    return EmulatedSettingsRequest(changed, (CallFromJsonDecoder({tool.name for tool in tools}),), dropped)


class CallFromJsonDecoder:
    """Turns a text in the form of a call into that call; calls of the upstream itself pass unchanged."""

    done = False

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._in_text = False
        self._called = False

    def restore(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events with a call in place of the text."""
        restored: list[StepEvent] = []
        for event in events:
            match event:
                case PartStart(Text()):
                    self._in_text = True
                case PartDelta() if self._in_text:
                    continue
                case PartEnd(Text(text)):
                    self._in_text = False
                    restored += self._read(text) or unfold_part(event.part)
                case StepEnd(reason="stop") if self._called:
                    restored.append(replace(event, reason="tool_calls"))
                case _:
                    restored.append(event)
        return restored

    def _read(self, text: str) -> list[StepEvent]:
        try:
            call = _decode_call(text)
            arguments = bytes(call.arguments).decode()
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return []
        # Text that only looks like a call stays text.
        if call.name not in self._names or not arguments.startswith("{"):
            return []
        self._called = True
        return unfold_part(ToolCall(new_call_id(), call.name, arguments))
