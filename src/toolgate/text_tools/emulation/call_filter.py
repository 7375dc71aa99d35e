"""Filter what the parser found in an answer: drop results that the model made up and calls that may not be made.

Takes part events and returns part events. Knows no prompts, no upstream and no tokens.
"""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from toolgate.conversation.arguments import is_object
from toolgate.conversation.call_ids import new_call_id
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.emulation.emulation_notes import EmulationNote, OnNote
from toolgate.text_tools.emulation.fake_results import FakeResultFilter
from toolgate.text_tools.parsing.argument_repair import repair, unwrap

# Calls that are accepted from one answer: a model that writes more of them repeats itself without end.
MAX_CALLS = 512


class DisallowedCallFilter:
    """Filters the parts of one answer; `done` once the rest of it is ignored.

    `fake_results` finds results that were made up. `allowed` are the tools that may be called, `single` allows one call
    only; `prefix` is put before the first text.
    """

    def __init__(
        self, fake_results: FakeResultFilter, allowed: Collection[str], single: bool, on_note: OnNote, prefix: str = ""
    ) -> None:
        self.done = False
        self.calls: list[ToolCall] = []
        self.refused: list[str] = []  # names of tools whose calls were dropped
        self.unreadable: list[tuple[str, str]] = []  # name and arguments of lines that stand for calls
        self.has_text = False  # whether text has passed
        self._allowed = allowed
        self._single = single
        self._on_note = on_note
        self._prefix = prefix
        self._fake_results = fake_results
        self._text: list[str] | None = None  # of the open text part
        self._blanks = ""  # at its start, emitted with the first text behind them
        self._dropping = False  # inside a call that is dropped

    def filter(self, events: Iterable[StepEvent]) -> list[StepEvent]:
        """Return the events that pass."""
        passed: list[StepEvent] = []
        for event in events:
            if self.done:
                break
            match event:
                case PartDelta(text) if self._text is not None:
                    self._emit_text(self._fake_results.feed(text), passed)
                case PartStart(Text()):
                    self._text = []
                case PartEnd(Text()):
                    self._end_text(passed)
                case PartStart(ToolCall() as call):
                    self._begin_call(call, passed)
                case PartEnd(ToolCall()) if self._dropping:
                    self._dropping = False
                case PartEnd(ToolCall() as call):
                    self.calls.append(call)
                    passed.append(event)
                case _ if not self._dropping:
                    passed.append(event)
            if self._fake_results.cut and not self.done:
                self._end_text(passed)
                self.done = True
                self._on_note(EmulationNote("cut_results", "the model made up results of tools"))
        return passed

    def end(self) -> list[StepEvent]:
        """Return the last events: without other calls, lines that stand for calls become calls if they can be parsed."""
        passed: list[StepEvent] = []
        if self._text is not None:
            self._end_text(passed)
        # Behind real calls, such a line repeats a call, as the heading of a result.
        lines = [] if self.calls else self._fake_results.calls
        for name, arguments in lines[:1] if self._single else lines:
            repaired = repair(arguments)
            if name not in self._allowed:
                self.refused.append(name)
            elif repaired is None:
                self.unreadable.append((name, arguments))
            else:
                self._on_note(EmulationNote("repaired_call", "a call was written like a line of results", name))
                self.calls.append(ToolCall(new_call_id(), name, repaired.arguments))
                passed += unfold_part(self.calls[-1])
        return passed

    def _emit_text(self, text: str, passed: list[StepEvent]) -> None:
        if not text or self._text is None:
            return
        if not self._text:
            # Blanks wait for text behind them: of a text that is blanks alone, nothing is emitted.
            self._blanks += text
            if text.isspace():
                return
            passed.append(PartStart(Text("")))
            text, self._prefix, self._blanks = self._prefix + self._blanks, "", ""
            self.has_text = True
        self._text.append(text)
        passed.append(PartDelta(text))

    def _end_text(self, passed: list[StepEvent]) -> None:
        self._emit_text(self._fake_results.release(), passed)
        if self._text:
            passed.append(PartEnd(Text("".join(self._text))))
        self._text, self._blanks = None, ""

    def _begin_call(self, call: ToolCall, passed: list[StepEvent]) -> None:
        self._fake_results.after_call = True
        if call.name not in self._allowed:
            self._dropping = True
            self.refused.append(call.name)
            self._on_note(EmulationNote("forbidden_call", "the client does not want this tool called now", call.name))
        elif self.calls and (self._single or len(self.calls) >= MAX_CALLS):
            self.done = True
            reason = "only one call is allowed" if self._single else f"it made more than {MAX_CALLS} calls"
            self._on_note(EmulationNote("cut_calls", reason, call.name))
        else:
            passed.append(PartStart(call))


def is_broken(call: ToolCall) -> bool:
    """Return whether a call cannot be run as it is written."""
    return not call.complete or not is_object(call.arguments)


def repair_call(call: ToolCall, tool: ToolDef | None, on_note: OnNote) -> ToolCall:
    """Return the call with repaired arguments, if they can mean only one thing; else the call as it is."""
    repaired = repair(call.arguments, cut=not call.complete)
    repaired = (repaired and tool and unwrap(repaired.arguments, tool)) or repaired
    if repaired is None or (call.complete and not repaired.fixes):
        return call
    on_note(EmulationNote("repaired_call", "; ".join(repaired.fixes), call.name))
    return replace(call, arguments=repaired.arguments, complete=True)
