"""One answer of a model that only writes text, heard while it comes: its words go through the parser, the rest as it is.

Where nothing may be told too early, events are held; then a bad answer can still be taken back and asked for again.
`problems` says, in words for the model, what is wrong with an answer. Knows no upstream.
"""

from collections.abc import Collection, Sequence

from toolgate.conversation.events import Delta, PartEnd, PartStart, StepEnd, StepEvent, StepStart
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.conversation.names import renamed
from toolgate.text.parser import Parser
from toolgate.text.prompts.wording import CALL_MARK
from toolgate.text.repair import complaint
from toolgate.text.syntax import Syntax
from toolgate.upstreams.emulation.imitation import Imitations, result_marks
from toolgate.upstreams.emulation.notes import Note, Noted
from toolgate.upstreams.emulation.plan import Plan
from toolgate.upstreams.emulation.sieve import Sieve, is_broken, mended

_LONGEST_REREAD = 16 * 1024
"""Characters of an answer that is read a second time, for a call of an unknown tool at its end."""

EMPTY = "It is empty: it says nothing to the user and calls no tool."


class Ear:
    """How a model's text is read; the options are the parser's own."""

    def __init__(
        self,
        syntax: Syntax,
        *,
        answer: str | None = "final_answer",
        thinking: bool = False,
        calls_end_thinking: bool = False,
    ) -> None:
        self.syntax = syntax
        self._answer = answer
        self._thinking = thinking
        self._calls_end_thinking = calls_end_thinking

    def parser(self, plan: Plan, first: bool = True, any_tool: bool = False) -> Parser:
        """A parser for one answer, or for what follows something other than text in it."""
        return Parser(
            self.syntax,
            plan.tools,
            answer=self._answer,
            thinking=self._thinking and first,
            calls_end_thinking=self._calls_end_thinking,
            any_tool=any_tool,
        )


class Hearing:
    """Hears one answer."""

    def __init__(self, plan: Plan, ear: Ear, noted: Noted, lead: str = "") -> None:
        self.start: StepStart | None = None
        self.stop: StepEnd | None = None
        self.thought: list[Part] = []
        self.warnings: list[str] = []
        self._plan = plan
        self._ear = ear
        self._noted = noted
        single = plan.choice.parallel is False
        imitations = Imitations([tool.name for tool in plan.tools], result_marks(ear.syntax.name))
        self._sieve = Sieve(imitations, plan.allowed, single, noted, lead)
        self._parser: Parser | None = ear.parser(plan)
        self._said: list[str] = []
        self._in_text = False
        self._others = False  # there was something other than text and reasoning
        self._thinking = False
        self._heard_delta = False
        self._held: list[StepEvent] | None = [] if plan.held else None
        self._spoilt: dict[str, str] = {}  # tools whose calls the parser could not read, and why
        self._tools = {tool.name: tool for tool in plan.tools}

    @property
    def over(self) -> bool:
        """Whether nothing more of the answer is wanted."""
        return self._sieve.over

    @property
    def said(self) -> str:
        """The model's text, as it wrote it."""
        return "".join(self._said)

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls that it made."""
        return self._sieve.calls

    @property
    def spoke(self) -> bool:
        """Whether the client has been told some text."""
        return self._sieve.spoke and self._held is None

    @property
    def has_content(self) -> bool:
        """Whether it says something: a call, text that was let through, or what is neither text nor reasoning."""
        return bool(self.calls) or self._sieve.spoke or self._others

    def hear(self, batch: Sequence[StepEvent]) -> list[StepEvent]:
        """The events to tell, now that these have come."""
        told: list[StepEvent] = []
        for event in batch:
            match event:
                case Delta(text) if self._in_text:
                    self._heard_delta = True
                    told += self._read(text)
                case PartStart(Text()):
                    self._in_text, self._heard_delta = True, False
                case PartEnd(Text(text)):
                    told += [] if self._heard_delta else self._read(text)
                    self._in_text = False
                case StepStart():
                    self.start = event
                case StepEnd():
                    self.stop = event
                case _:
                    told += self._pass(event)
        return self._tell(told)

    def only_end(self, batch: Sequence[StepEvent]) -> list[StepEvent]:
        """Nothing to tell: of an answer that is not wanted any more, only how it ends is heard."""
        self.stop = next((event for event in batch if isinstance(event, StepEnd)), self.stop)
        return []

    def end(self) -> list[StepEvent]:
        """The last events, unless they are held."""
        cut = self.stop is not None and self.stop.reason in ("length", "content_filter")
        return self._tell([*self._finish(cut), *self._sieve.end()])

    def problems(self) -> list[str]:
        """What is wrong with the answer and has not been told yet, in words for the model."""
        if self.stop is not None and self.stop.reason in ("length", "content_filter"):
            return []
        found = self._broken() if self._held is not None else []
        found += [self._complaint(name, arguments) for name, arguments in self._sieve.unread]
        if self._sieve.refused and not self.calls and (not self._sieve.spoke or self._plan.choice.mode == "required"):
            found += [self._refusal(name) for name in dict.fromkeys(self._sieve.refused)]
        if found or self.calls:
            return found
        if self._held is not None and (unknown := self._unknown()):
            self._noted(Note("unknown_tool", "a call of a tool that is not on offer", unknown))
            return [f"There is no tool called {unknown!r}; there are: {', '.join(sorted(self._plan.allowed))}."]
        if self._plan.choice.mode != "required":
            return [] if self.has_content else [EMPTY]
        self._noted(Note("choice_unmet", "the client insists on a call, and there is none"))
        return [self._insisting()]

    def rest(self, problems: Sequence[str]) -> list[StepEvent]:
        """What was not told yet, as it is told in the end: what cannot be used is plain text."""
        held, self._held = self._held or [], None
        if not problems:
            return held
        parts = [event.part for event in held if isinstance(event, PartEnd)]
        lines = [Text(f"{CALL_MARK}{name}({arguments})") for name, arguments in self._sieve.unread]
        spoilt = {call.id for call in self._spoilt_calls()}
        self._sieve.calls[:] = [call for call in self.calls if call.id not in spoilt]
        told: list[Part] = [*[_as_text(part) if _is_one_of(part, spoilt) else part for part in parts], *lines]
        if not self._sieve.spoke and not self.calls and self.said.strip():
            told = [*[part for part in parts if not isinstance(part, ToolCall)], Text(self.said)]
        return [event for part in told for event in unfold_part(part)]

    def _read(self, text: str) -> list[StepEvent]:
        self._said.append(text)
        if self._parser is None:
            self._parser = self._ear.parser(self._plan, first=False)
        return self._sieve.sift(self._parser.feed(text))

    def _pass(self, event: StepEvent) -> list[StepEvent]:
        """Something other than text: the text before it is over."""
        before = self._finish(cut=False) if isinstance(event, PartStart) else []
        if isinstance(event, PartEnd) and isinstance(event.part, Reasoning):
            self.thought.append(event.part)
        elif isinstance(event, PartEnd):
            self._others = True
        return [*before, *self._sieve.sift([event])]

    def _finish(self, cut: bool) -> list[StepEvent]:
        parser, self._parser = self._parser, None
        if parser is None:
            return []
        told = self._sieve.sift(parser.end(cut=cut))
        for written, name in parser.renamed.items():
            self.warnings.append(renamed(written, name))
            self._noted(Note("renamed_call", self.warnings[-1], name))
        for problem in parser.problems:
            self._spoilt[problem.name] = problem.reason
            self._noted(Note("broken_call", problem.reason, problem.name))
        return told

    def _tell(self, events: list[StepEvent]) -> list[StepEvent]:
        """The events, or nothing while they are held; a call that is wanted ends the waiting of a stream."""
        if self._held is None:
            return events
        thoughts = self._leading_thoughts(events) if self._plan.asked.stream and not self._held else []
        self._held += events[len(thoughts) :]
        if not self._plan.asked.stream or not any(_is_call(event) for event in self._held):
            return thoughts
        held, self._held = self._held, None
        return [*thoughts, *held]

    def _leading_thoughts(self, events: list[StepEvent]) -> list[StepEvent]:
        """The reasoning with which the events begin: it need not wait, for it is no answer."""
        for place, event in enumerate(events):
            match event:
                case PartStart(part):
                    self._thinking = isinstance(part, Reasoning)
            if not self._thinking:
                return events[:place]
            if isinstance(event, PartEnd):
                self._thinking = False
        return events

    def _broken(self) -> list[str]:
        """The calls that cannot be read even when mended; those that can be are mended."""
        self._held = [self._mended(event) for event in self._held or ()]
        self._sieve.calls[:] = _calls(self._held)
        return [self._complaint(call.name, call.arguments) for call in self._spoilt_calls()]

    def _mended(self, event: StepEvent) -> StepEvent:
        match event:
            case PartEnd(ToolCall() as call):
                return PartEnd(mended(call, self._tools.get(call.name), self._noted))
            case _:
                return event

    def _spoilt_calls(self) -> list[ToolCall]:
        """Return the calls that are broken, or of which alone the parser can have complained."""
        broken = {call.id: call.name for call in self.calls if is_broken(call)}
        suspect = self._spoilt.keys() - broken.values()
        return [call for call in self.calls if call.id in broken or call.name in suspect]

    def _complaint(self, name: str, arguments: str) -> str:
        return complaint(name, arguments, self._tools.get(name), self._spoilt.get(name, ""))

    def _refusal(self, name: str) -> str:
        if not self._plan.allowed:
            return "No tool may be called now."
        return f"The tool {name} may not be called now; call {' or '.join(sorted(self._plan.allowed))}."

    def _insisting(self) -> str:
        names = " or ".join(self._plan.choice.names)
        return f"It calls no tool. You must call {names or 'one of the tools'} now."

    def _unknown(self) -> str | None:
        """The tool in a call that ends the answer and was taken for text, because it is not on offer."""
        if not self._plan.allowed or len(self.said) > _LONGEST_REREAD:
            return None
        parser = self._ear.parser(self._plan, any_tool=True)
        events = [*parser.feed(self.said), *parser.end(cut=False)]
        parts = [event.part for event in events if isinstance(event, PartEnd)]
        last = parts[-1] if parts else None
        return (
            last.name if isinstance(last, ToolCall) and not is_broken(last) and last.name not in self._tools else None
        )


def _calls(events: Sequence[StepEvent]) -> list[ToolCall]:
    return [event.part for event in events if isinstance(event, PartEnd) and isinstance(event.part, ToolCall)]


def _is_one_of(part: Part, ids: Collection[str]) -> bool:
    return isinstance(part, ToolCall) and part.id in ids


def _as_text(part: Part) -> Part:
    return Text(f"{part.name} {part.arguments}") if isinstance(part, ToolCall) else part


def _is_call(event: StepEvent) -> bool:
    return isinstance(event, PartStart) and isinstance(event.part, ToolCall)
