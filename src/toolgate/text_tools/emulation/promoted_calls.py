"""Promote calls that a model with tool support sometimes writes as text to tool calls.

Only a complete call of a declared tool is promoted, and only in an answer without other calls that was not cut off; prose
and code never are. That is known at the end of the answer, so text from such a leaked call on is held until then; before it
everything passes as it comes. It is used for models whose configuration asks for it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEnd, StepEvent
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef
from toolgate.conversation.tool_name_matching import correction_warning
from toolgate.engine.ports import Model, ModelStream
from toolgate.text_tools.emulation.bounded_batches import sliced
from toolgate.text_tools.emulation.call_filter import MAX_CALLS, is_broken
from toolgate.text_tools.emulation.emulation_notes import EmulationNote, OnNote, ignore_note
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.parsing.syntax import Syntax
from toolgate.text_tools.syntaxes import AUTO
from toolgate.text_tools.syntaxes import syntax as syntax_named


class PromotedCallsModel:
    """A model whose leaked calls are promoted; `syntax` names their format, `auto` looks for all formats."""

    def __init__(self, model: Model, *, syntax: str = AUTO, on_note: OnNote = ignore_note) -> None:
        self._model = model
        self._syntax = syntax_named(syntax)
        self._on_note = on_note

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the model's answer; unchanged where no tool may be called or several choices are requested."""
        choice = request.tool_choice or ToolChoice()
        functions = [tool for tool in request.tools if tool.kind == "function"]
        tools = [tool for tool in functions if not choice.names or tool.name in choice.names]
        if not tools or choice.mode == "none" or request.settings.choices > 1:
            return await self._model.ask(request)
        # A relayed answer would reach the client as it is, with its leaked calls as text.
        answer = await self._model.ask(replace(request, relay=False))
        return PromotedCallsStream(answer, LeakedCallFinder(self._syntax, tools, self._on_note))


class PromotedCallsStream:
    """An answer whose leaked calls are promoted."""

    dialect: str | None = None

    def __init__(self, answer: ModelStream, finder: "LeakedCallFinder") -> None:
        self.upstream = answer.upstream
        self.whole = answer.whole
        self._answer = answer
        self._finder = finder

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the answer, and those about corrected names in leaked calls."""
        return (*self._answer.warnings, *self._finder.warnings)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the step's events in batches."""
        async with aclosing(self._answer.events()) as batches:
            async for batch in sliced(batches):
                if events := self._finder.find(batch):
                    yield events

    async def aclose(self) -> None:
        """Close the answer."""
        await self._answer.aclose()


class LeakedCallFinder:
    """Finds calls in the texts of one answer, and holds everything from the first one on until the answer ends."""

    def __init__(self, syntax: Syntax, tools: Sequence[ToolDef], on_note: OnNote) -> None:
        self._syntax = syntax
        self._tools = tools
        self._on_note = on_note
        self.warnings: list[str] = []
        self._renamed: dict[str, str] = {}
        self._has_proper_calls = False  # the answer has calls as such
        self._text: _LeakyText | None = None  # the open text part
        self._held: list[tuple[list[StepEvent], list[StepEvent]]] = []  # each part as it came, and as calls

    def find(self, batch: Sequence[StepEvent]) -> list[StepEvent]:
        """Return the events to emit after this batch."""
        emitted: list[StepEvent] = []
        for event in batch:
            match event:
                case PartStart(Text()) if not self._has_proper_calls:
                    self._text = _LeakyText(TextParser(self._syntax, self._tools, answer=None), hold=bool(self._held))
                case PartDelta(text) if self._text is not None:
                    emitted += self._text.feed(text)
                case PartEnd(Text() as part) if self._text is not None:
                    emitted += self._text.end(part)
                    self._renamed |= self._text.renamed
                    if self._text.held:
                        self._held.append((self._text.unpromoted(part), self._text.held))
                    self._text = None
                case PartStart(ToolCall()):
                    # A model that calls properly means its text as text, even if that looks like a call.
                    self._has_proper_calls = True
                    emitted += [*self._release(promote=False), event]
                case StepEnd(reason):
                    calls = self._held_calls()
                    runnable = len(calls) <= MAX_CALLS and not any(is_broken(call) for call in calls)
                    promote = bool(self._held) and reason in ("stop", "tool_calls") and runnable
                    emitted += self._release(promote=promote)
                    emitted.append(replace(event, reason="tool_calls") if promote else event)
                case _ if self._held:
                    self._held.append(([event], [event]))
                case _:
                    emitted.append(event)
        return emitted

    def _held_calls(self) -> list[ToolCall]:
        parts = [event.part for _, promoted in self._held for event in promoted if isinstance(event, PartEnd)]
        return [part for part in parts if isinstance(part, ToolCall)]

    def _release(self, *, promote: bool) -> list[StepEvent]:
        """Return what is held, with its calls as calls or as the text that they were."""
        if promote:
            for call in self._held_calls():
                self._on_note(EmulationNote("promoted_call", "the model wrote a call as text", call.name))
            self.warnings += [correction_warning(written, name) for written, name in self._renamed.items()]
        held, self._held = self._held, []
        return [event for unpromoted, promoted in held for event in (promoted if promote else unpromoted)]


class _LeakyText:
    """One text part of an answer: emitted as it comes up to the first call in it, held from there on."""

    def __init__(self, parser: TextParser, hold: bool) -> None:
        self.held: list[StepEvent] = []
        self._parser = parser
        self._hold = hold  # everything, because something before it is held
        self._received_delta = False
        self._emitted: list[str] = []
        self._is_open = False

    @property
    def renamed(self) -> dict[str, str]:
        """The declared names of tools, by the names that the model wrote instead."""
        return dict(self._parser.renamed)

    def feed(self, text: str) -> list[StepEvent]:
        """Parse more of the text and return the events to emit."""
        self._received_delta = True
        return self._hold_calls(self._parser.feed(text))

    def end(self, part: Text) -> list[StepEvent]:
        """Parse the rest of the text and return the events to emit."""
        rest = [] if self._received_delta else self._parser.feed(part.text)
        events = self._hold_calls([*rest, *self._parser.end(cut=False)])
        # Where nothing was taken out, the part itself ends the text, with its log probabilities.
        unchanged = PartEnd(Text(part.text))
        return [PartEnd(part) if event == unchanged else event for event in events]

    def unpromoted(self, part: Text) -> list[StepEvent]:
        """Return the events that end the text if nothing in it is a call."""
        emitted = "".join(self._emitted)
        if not part.text.startswith(emitted):  # reasoning was taken out of it
            calls = [event.part for event in self.held if isinstance(event, PartEnd)]
            texts = [Text(f"{call.name} {call.arguments}") for call in calls if isinstance(call, ToolCall)]
            return [event for text in texts for event in unfold_part(text)]
        if self._is_open:
            return [PartDelta(part.text[len(emitted) :]), PartEnd(part)]
        return unfold_part(part)

    def _hold_calls(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the events before the first call; the others are held."""
        first = len(events)
        for place, event in enumerate(events):
            if isinstance(event, (PartStart, PartEnd)) and isinstance(event.part, ToolCall):
                first = place
                break
        if first < len(events) and first and isinstance(events[first - 1], PartEnd):
            first -= 1  # the end of the text before the call: if that is no call, the text goes on
        first = 0 if self._hold or self.held else first
        for event in events[:first]:
            self._is_open = isinstance(event, PartDelta) or (
                isinstance(event, PartStart) and isinstance(event.part, Text)
            )
            self._emitted += [event.text] if isinstance(event, PartDelta) else []
        self.held += events[first:]
        return events[:first]
