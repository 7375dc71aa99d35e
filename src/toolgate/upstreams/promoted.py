"""A model that has tools of its own but sometimes writes a call as text: such a call is promoted to one.

Only a call that names a tool on offer and can be read is, and only in an answer that makes no call in the proper way and was
not cut off; prose and code never are. That is known when the answer is over, so text from a leaked call on waits for its
end; until then everything passes as it comes. For models whose row asks for it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import Delta, PartEnd, PartStart, StepEnd, StepEvent
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Part, Text, ToolCall
from toolgate.conversation.names import renamed
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.engine.ports import Answer, Model
from toolgate.text.parser import Parser
from toolgate.text.syntax import Syntax
from toolgate.text.syntaxes import AUTO
from toolgate.text.syntaxes import syntax as syntax_named
from toolgate.upstreams.emulation.notes import Note, Noted, unnoticed
from toolgate.upstreams.emulation.sieve import MAX_CALLS, is_broken
from toolgate.upstreams.emulation.slices import sliced


class Promoted:
    """A model whose leaked calls are calls; `syntax` names the form in which it leaks them, or that all are looked for."""

    def __init__(self, model: Model, *, syntax: str = AUTO, noted: Noted = unnoticed) -> None:
        self._model = model
        self._syntax = syntax_named(syntax)
        self._noted = noted

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer; where no tool may be called it is passed on as it came."""
        tools = _callable(request)
        if not tools:
            return await self._model.ask(request)
        answer = await self._model.ask(replace(request, relay=False))
        return PromotedAnswer(answer, Leaks(self._syntax, tools, self._noted))


def _callable(request: ModelRequest) -> list[ToolDef]:
    """The functions that the answer may call."""
    choice = request.tool_choice
    if choice is not None and choice.mode == "none":
        return []
    names = choice.names if choice else ()
    return [tool for tool in request.tools if tool.kind == "function" and (not names or tool.name in names)]


class PromotedAnswer:
    """An answer whose leaked calls are calls."""

    dialect: str | None = None

    def __init__(self, answer: Answer, leaks: "Leaks") -> None:
        self.upstream = answer.upstream
        self.whole = answer.whole
        self._answer = answer
        self._leaks = leaks

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the answer, and which names in leaked calls were corrected."""
        return (*self._answer.warnings, *self._leaks.warnings)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """The step's events in batches."""
        async with aclosing(self._answer.events()) as batches:  # type: ignore[type-var]  # each of ours can be closed
            async for batch in sliced(batches):
                if told := self._leaks.hear(batch):
                    yield told

    async def aclose(self) -> None:
        """Stop listening."""
        await self._answer.aclose()


class Leaks:
    """Looks for calls in the texts of one answer, and holds everything from the first one on until it is over."""

    def __init__(self, syntax: Syntax, tools: Sequence[ToolDef], noted: Noted) -> None:
        self._syntax = syntax
        self._tools = tools
        self._noted = noted
        self.warnings: list[str] = []
        self._renamed: dict[str, str] = {}
        self._proper = False  # the answer has made a call in the proper way
        self._text: _LeakyText | None = None  # the text that is open
        self._held: list[tuple[list[StepEvent], list[StepEvent]]] = []  # as it came, and as calls

    def hear(self, batch: Sequence[StepEvent]) -> list[StepEvent]:
        """The events to tell, now that these have come."""
        told: list[StepEvent] = []
        for event in batch:
            match event:
                case PartStart(Text()) if not self._proper:
                    self._text = _LeakyText(Parser(self._syntax, self._tools, answer=None), waits=bool(self._held))
                case Delta(text) if self._text is not None:
                    told += self._text.more(text)
                case PartEnd(Text() as part) if self._text is not None:
                    told += self._end_text(self._text, part)
                case PartStart(ToolCall()):
                    self._proper = True
                    told += [*self._settle(proper=True), event]
                case StepEnd(reason):
                    leaked = bool(self._held) and reason in ("stop", "tool_calls") and not self._is_broken()
                    told += self._settle(proper=not leaked)
                    told.append(replace(event, reason="tool_calls") if leaked else event)
                case _ if self._held:
                    self._held.append(([event], [event]))
                case _:
                    told.append(event)
        return told

    def _end_text(self, text: "_LeakyText", part: Text) -> list[StepEvent]:
        told, self._text = text.end(part), None
        self._renamed |= text.renamed
        if text.held:
            self._held.append((text.as_it_came(part), text.held))
        return told

    def _is_broken(self) -> bool:
        """Whether a call in what is held cannot be run as it is written, or there are more than anybody means."""
        parts = [event.part for _, calls in self._held for event in calls if isinstance(event, PartEnd)]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        return len(calls) > MAX_CALLS or any(is_broken(call) for call in calls)

    def _settle(self, proper: bool) -> list[StepEvent]:
        """What is held: as it came if there are proper calls, else as calls."""
        held, self._held = self._held, []
        for event in [event for _, calls in held for event in calls if not proper]:
            if isinstance(event, PartEnd) and isinstance(event.part, ToolCall):
                self._noted(Note("promoted_call", "the model wrote a call as text", event.part.name))
        if held and not proper:
            self.warnings += [renamed(written, name) for written, name in self._renamed.items()]
        return [event for came, calls in held for event in (came if proper else calls)]


class _LeakyText:
    """One text of an answer: told as it comes up to the first call in it, held from there on."""

    def __init__(self, parser: Parser, waits: bool) -> None:
        self.held: list[StepEvent] = []
        self._parser = parser
        self._waits = waits
        self._came: list[str] = []
        self._told: list[str] = []
        self._open = False

    @property
    def renamed(self) -> dict[str, str]:
        """Names of tools that were written otherwise than they were declared."""
        return dict(self._parser.renamed)

    def more(self, text: str) -> list[StepEvent]:
        self._came.append(text)
        return self._sorted(self._parser.feed(text))

    def end(self, part: Text) -> list[StepEvent]:
        rest = [] if self._came else self._parser.feed(part.text)
        events = self._sorted([*rest, *self._parser.end(cut=False)])
        unchanged = PartEnd(Text(part.text))
        return [PartEnd(part) if event == unchanged else event for event in events]

    def as_it_came(self, part: Text) -> list[StepEvent]:
        """The events by which the text ends if nothing in it is a call."""
        told = "".join(self._told)
        if not part.text.startswith(told):  # reasoning was taken out of it
            calls = [event.part for event in self.held if isinstance(event, PartEnd) and _is_call(event)]
            return [event for call in calls for event in unfold_part(_as_text(call))]
        if self._open:
            return [Delta(part.text[len(told) :]), PartEnd(part)]
        return unfold_part(part)

    def _sorted(self, events: list[StepEvent]) -> list[StepEvent]:
        """The events to tell now; the others are held."""
        first = next((place for place, event in enumerate(events) if _is_call(event)), len(events))
        if first < len(events) and first and isinstance(events[first - 1], PartEnd):
            first -= 1  # the end of the text before the call: if it is none, the text goes on
        first = 0 if self._waits or self.held else first
        for event in events[:first]:
            self._open = isinstance(event, Delta) or (isinstance(event, PartStart) and isinstance(event.part, Text))
            self._told += [event.text] if isinstance(event, Delta) else []
        self.held += events[first:]
        return events[:first]


def _is_call(event: StepEvent) -> bool:
    return isinstance(event, (PartStart, PartEnd)) and isinstance(event.part, ToolCall)


def _as_text(part: Part) -> Text:
    return Text(f"{part.name} {part.arguments}" if isinstance(part, ToolCall) else "")
