"""Decode one answer of a model that only writes text, while it comes: its text is parsed, everything else passes.

While events may still have to be taken back, they are held; then a bad answer can be discarded and requested again.
`problems` describes, for the model, what is wrong with an answer. Knows no upstream.
"""

from collections.abc import Sequence

from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEnd, StepEvent, StepStart
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Part, Reasoning, Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.conversation.tool_name_matching import correction_warning
from toolgate.text_tools.emulation.call_filter import DisallowedCallFilter, is_broken, repair_call
from toolgate.text_tools.emulation.emulation_notes import EmulationNote, OnNote
from toolgate.text_tools.emulation.fake_results import FakeResultFilter, result_marks
from toolgate.text_tools.emulation.request_plan import EmulationPlan
from toolgate.text_tools.parsing.argument_repair import describe_problem
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.parsing.syntax import Syntax
from toolgate.text_tools.prompts.prompt_renderer import CALL_MARK

# Characters of an answer that is parsed a second time, for a call of an unknown tool at its end: that parse is not
# sliced, so it must not keep the event loop busy for long.
_LONGEST_REPARSED = 16 * 1024

EMPTY = "It is empty: it says nothing to the user and calls no tool."


class TextDecoderOptions:
    """How a model's text is parsed; the options are those of `TextParser`."""

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

    def parser(
        self, tools: Sequence[ToolDef], first: bool = True, any_tool: bool = False, plain: bool = False
    ) -> TextParser:
        """Return a parser for an answer, or, if not `first`, for the text behind another part of it.

        A `plain` answer is to a request without tools: the model was not told how to mark its answer.
        """
        return TextParser(
            self.syntax,
            tools,
            answer=None if plain else self._answer,
            thinking=self._thinking and first,
            calls_end_thinking=self._calls_end_thinking,
            any_tool=any_tool,
        )


class TextStreamDecoder:
    """Decodes one answer: `decode` its batches, then `end` it; `prefix` is put before its first text."""

    def __init__(self, plan: EmulationPlan, options: TextDecoderOptions, on_note: OnNote, prefix: str = "") -> None:
        self.start: StepStart | None = None
        self.stop: StepEnd | None = None
        self.reasoning: list[Part] = []
        self.warnings: list[str] = []
        self._plan = plan
        self._options = options
        self._on_note = on_note
        single = plan.choice.parallel is False
        fake_results = FakeResultFilter([tool.name for tool in plan.tools], result_marks(options.syntax.name))
        self._filter = DisallowedCallFilter(fake_results, plan.allowed, single, on_note, prefix)
        self._parser: TextParser | None = options.parser(plan.tools)
        self._texts: list[str] = []
        self._in_text = False
        self._has_other_parts = False  # than text and reasoning
        self._in_reasoning = False
        self._received_delta = False
        self._held: list[StepEvent] | None = [] if plan.held else None
        self._malformed: dict[str, str] = {}  # tools whose calls the parser could not read, and why
        self._tools = {tool.name: tool for tool in plan.tools}

    @property
    def done(self) -> bool:
        """Whether the rest of the answer is ignored."""
        return self._filter.done

    @property
    def text(self) -> str:
        """The model's text, as it wrote it."""
        return "".join(self._texts)

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls that it made."""
        return self._filter.calls

    @property
    def text_was_sent(self) -> bool:
        """Whether text has been emitted to the client."""
        return self._filter.has_text and self._held is None

    @property
    def has_content(self) -> bool:
        """Whether the answer has a call, text that passed the filter, or a part that is neither text nor reasoning."""
        return bool(self.calls) or self._filter.has_text or self._has_other_parts

    def decode(self, batch: Sequence[StepEvent]) -> list[StepEvent]:
        """Decode a batch and return the events to emit now; once it is `done`, only the end of the step is noted."""
        if self.done:
            # The end has the usage, which is wanted although the text behind the last call is not.
            self.stop = next((event for event in batch if isinstance(event, StepEnd)), self.stop)
            return []
        events: list[StepEvent] = []
        for event in batch:
            match event:
                case PartDelta(text) if self._in_text:
                    self._received_delta = True
                    events += self._parse(text)
                case PartStart(Text()):
                    self._in_text, self._received_delta = True, False
                case PartEnd(Text(text)):
                    # A part without deltas has all its text here; with deltas it is the same text again.
                    events += [] if self._received_delta else self._parse(text)
                    self._in_text = False
                case StepStart():
                    self.start = event
                case StepEnd():
                    self.stop = event
                case _:
                    if isinstance(event, PartStart):
                        events += self._end_text(cut=False)  # another part ends the text before it
                    elif isinstance(event, PartEnd) and isinstance(event.part, Reasoning):
                        self.reasoning.append(event.part)
                    elif isinstance(event, PartEnd):
                        self._has_other_parts = True
                    events += self._filter.filter([event])
        return self._hold(events)

    def end(self) -> list[StepEvent]:
        """Return the last events, unless they are held."""
        return self._hold([*self._end_text(cut=self._was_cut()), *self._filter.end()])

    def problems(self) -> list[str]:
        """Describe, for the model, what is wrong with the answer and has not been emitted yet."""
        if self._was_cut():  # what is missing is no mistake of the model
            return []
        found: list[str] = []
        if self._held is not None:  # a call that was emitted already can be neither repaired nor taken back
            self._repair_held(self._held)
            found = [self._describe(call.name, call.arguments) for call in self._malformed_calls()]
        found += [self._describe(name, arguments) for name, arguments in self._filter.unreadable]
        required = self._plan.choice.mode == "required"
        if self._filter.refused and not self.calls and (not self._filter.has_text or required):
            allowed = " or ".join(sorted(self._plan.allowed))
            for name in dict.fromkeys(self._filter.refused):
                found.append(
                    f"The tool {name} may not be called now; call {allowed}."
                    if allowed
                    else "No tool may be called now."
                )
        if found or self.calls:
            return found
        # A call of an unknown tool is text to the parser. Without this, the client would get it as the answer.
        if self._held is not None and (unknown := self._unknown_tool()):
            self._on_note(EmulationNote("unknown_tool", "a call of a tool that is not declared", unknown))
            return [f"There is no tool called {unknown!r}; there are: {', '.join(sorted(self._plan.allowed))}."]
        if not required:
            return [] if self.has_content else [EMPTY]
        self._on_note(EmulationNote("choice_unmet", "the client requires a call, and there is none"))
        names = " or ".join(self._plan.choice.names)
        return [f"It calls no tool. You must call {names or 'one of the tools'} now."]

    def rest(self, problems: Sequence[str]) -> list[StepEvent]:
        """Return what is still held, at the very end: calls that cannot be used become plain text."""
        held, self._held = self._held or [], None
        if not problems:
            return held
        parts = [event.part for event in held if isinstance(event, PartEnd)]
        malformed = {call.id for call in self._malformed_calls()}
        self._filter.calls[:] = [call for call in self.calls if call.id not in malformed]
        rest: list[Part]
        if not self._filter.has_text and not self.calls and self.text.strip():  # nothing else is left of the answer
            rest = [*[part for part in parts if not isinstance(part, ToolCall)], Text(self.text)]
        else:
            rest = [
                Text(f"{part.name} {part.arguments}") if isinstance(part, ToolCall) and part.id in malformed else part
                for part in parts
            ]
            rest += [Text(f"{CALL_MARK}{name}({arguments})") for name, arguments in self._filter.unreadable]
        return [event for part in rest for event in unfold_part(part)]

    def _was_cut(self) -> bool:
        return self.stop is not None and self.stop.reason in ("length", "content_filter")

    def _parse(self, text: str) -> list[StepEvent]:
        self._texts.append(text)
        if self._parser is None:
            self._parser = self._options.parser(self._plan.tools, first=False)
        return self._filter.filter(self._parser.feed(text))

    def _end_text(self, cut: bool) -> list[StepEvent]:
        parser, self._parser = self._parser, None
        if parser is None:
            return []
        events = self._filter.filter(parser.end(cut=cut))
        for written, name in parser.renamed.items():
            self.warnings.append(correction_warning(written, name))
            self._on_note(EmulationNote("renamed_call", self.warnings[-1], name))
        for problem in parser.problems:
            self._malformed[problem.name] = problem.reason
            self._on_note(EmulationNote("broken_call", problem.reason, problem.name))
        return events

    def _hold(self, events: list[StepEvent]) -> list[StepEvent]:
        """Hold the events and return those to emit now; in a stream, the first call releases all of them."""
        if self._held is None:
            return events
        stream = self._plan.asked.stream
        # Reasoning is no answer, so a stream shows it while everything else is still held.
        reasoning = self._leading_reasoning(events) if stream and not self._held else []
        self._held += events[len(reasoning) :]
        if not stream or not _calls(self._held, PartStart):
            return reasoning
        # A call has begun, and with it what the client requires: from here on the answer streams.
        held, self._held = self._held, None
        return [*reasoning, *held]

    def _leading_reasoning(self, events: list[StepEvent]) -> list[StepEvent]:
        """Return the reasoning at the start of the events."""
        for place, event in enumerate(events):
            if isinstance(event, PartStart):
                self._in_reasoning = isinstance(event.part, Reasoning)
            if not self._in_reasoning:
                return events[:place]
            if isinstance(event, PartEnd):
                self._in_reasoning = False
        return events

    def _repair_held(self, held: list[StepEvent]) -> None:
        for place, event in enumerate(held):
            if isinstance(event, PartEnd) and isinstance(event.part, ToolCall):
                held[place] = PartEnd(repair_call(event.part, self._tools.get(event.part.name), self._on_note))
        self._filter.calls[:] = _calls(held, PartEnd)

    def _malformed_calls(self) -> list[ToolCall]:
        """Return the calls that cannot be run, or that alone can be what the parser reported by name."""
        # The parser reports a problem by the tool's name, not by the call's id. Where a broken call of that tool
        # explains it, other calls of the tool are not suspected.
        broken = {call.id: call.name for call in self.calls if is_broken(call)}
        suspect = self._malformed.keys() - broken.values()
        return [call for call in self.calls if call.id in broken or call.name in suspect]

    def _describe(self, name: str, arguments: str) -> str:
        return describe_problem(name, arguments, self._tools.get(name), self._malformed.get(name, ""))

    def _unknown_tool(self) -> str | None:
        """Return the name in a call at the end of the answer that was taken for text, because no such tool exists."""
        if not self._plan.allowed or len(self.text) > _LONGEST_REPARSED:
            return None
        parser = self._options.parser(self._plan.tools, any_tool=True)
        events = [*parser.feed(self.text), *parser.end(cut=False)]
        parts = [event.part for event in events if isinstance(event, PartEnd)]
        last = parts[-1] if parts else None
        if not isinstance(last, ToolCall) or is_broken(last) or last.name in self._tools:
            return None
        return last.name


def _calls(events: Sequence[StepEvent], kind: type[PartStart] | type[PartEnd]) -> list[ToolCall]:
    return [event.part for event in events if isinstance(event, kind) and isinstance(event.part, ToolCall)]
