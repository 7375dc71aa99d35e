"""What the parser found in an answer, sifted: results that the model made up and calls that nobody wants stay behind.

Takes part events and gives part events. Knows no prompts, no upstream and no tokens.
"""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from toolgate.conversation.arguments import is_object
from toolgate.conversation.events import Delta, PartEnd, PartStart, StepEvent
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.ids import new_call_id
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.repair import repair, unwrapped
from toolgate.upstreams.emulation.imitation import Imitations
from toolgate.upstreams.emulation.notes import Note, Noted

MAX_CALLS = 512
"""Calls that are taken from one answer: a model that writes more of them repeats itself without end."""


class Sieve:
    """Sifts the parts of one answer; `over` once nothing more of it is wanted.

    `imitations` looks for results that were made up. `allowed` are the tools that may be called, `single` says that one call
    is all; `lead` is put before the first text.
    """

    def __init__(
        self, imitations: Imitations, allowed: Collection[str], single: bool, noted: Noted, lead: str = ""
    ) -> None:
        self.over = False
        self.calls: list[ToolCall] = []
        self.refused: list[str] = []  # names of tools whose calls were left out
        self.unread: list[tuple[str, str]] = []  # lines that stand for calls and cannot be read: name and arguments
        self.spoke = False  # text was let through
        self._allowed = allowed
        self._single = single
        self._noted = noted
        self._lead = lead
        self._imitations = imitations
        self._text: list[str] | None = None  # of the text that is open
        self._blanks = ""  # with which it begins, if there is more to it
        self._skipping = False

    def sift(self, events: Iterable[StepEvent]) -> list[StepEvent]:
        """The events that are let through."""
        told: list[StepEvent] = []
        for event in events:
            if self.over:
                break
            match event:
                case Delta(text) if self._text is not None:
                    self._say(self._imitations.feed(text), told)
                case PartStart(Text()):
                    self._text = []
                case PartEnd(Text()):
                    self._end_text(told)
                case PartStart(ToolCall() as call):
                    self._begin(call, told)
                case PartEnd(ToolCall() as call):
                    self._end(call, told)
                case _ if not self._skipping:
                    told.append(event)
            if self._imitations.cut and not self.over:
                self._cut(told)
        return told

    def end(self) -> list[StepEvent]:
        """The last events: lines that stand for calls become calls, if no others were made and they can be read."""
        told: list[StepEvent] = []
        if self._text is not None:
            self._end_text(told)
        lines = [] if self.calls else self._imitations.calls
        for name, arguments in lines[:1] if self._single else lines:
            found = repair(arguments)
            if name not in self._allowed:
                self.refused.append(name)
            elif found is None:
                self.unread.append((name, arguments))
            else:
                self._noted(Note("repaired_call", "a call was written like a line of results", name))
                told += unfold_part(self._kept(ToolCall(new_call_id(), name, found.arguments)))
        return told

    def _say(self, text: str, told: list[StepEvent]) -> None:
        if not text or self._text is None:
            return
        if not self._text:
            self._blanks += text
            if text.isspace():
                return
            told.append(PartStart(Text("")))
            text, self._lead, self._blanks = self._lead + self._blanks, "", ""
            self.spoke = True
        self._text.append(text)
        told.append(Delta(text))

    def _end_text(self, told: list[StepEvent]) -> None:
        self._say(self._imitations.release(), told)
        if self._text:
            told.append(PartEnd(Text("".join(self._text))))
        self._text, self._blanks = None, ""

    def _begin(self, call: ToolCall, told: list[StepEvent]) -> None:
        if call.name not in self._allowed:
            self._skipping = True
            self.refused.append(call.name)
            self._noted(Note("forbidden_call", "the client does not want this tool called now", call.name))
        elif self.calls and (self._single or len(self.calls) >= MAX_CALLS):
            self.over = True
            wanted = "only one call was wanted" if self._single else f"it made more than {MAX_CALLS} calls"
            self._noted(Note("cut_calls", wanted, call.name))
        else:
            told.append(PartStart(call))

    def _end(self, call: ToolCall, told: list[StepEvent]) -> None:
        if self._skipping:
            self._skipping = False
        else:
            told.append(PartEnd(self._kept(call)))

    def _kept(self, call: ToolCall) -> ToolCall:
        self.calls.append(call)
        return call

    def _cut(self, told: list[StepEvent]) -> None:
        self._end_text(told)
        self.over = True
        self._noted(Note("cut_results", "the model made up results of tools"))


def is_broken(call: ToolCall) -> bool:
    """Whether a call cannot be run as it is written."""
    return not call.complete or not is_object(call.arguments)


def mended(call: ToolCall, tool: ToolDef | None, noted: Noted) -> ToolCall:
    """The call; if its arguments can mean only one thing, it has that."""
    found = repair(call.arguments, cut=not call.complete)
    found = (found and tool and unwrapped(found.arguments, tool)) or found
    if found is None or (call.complete and not found.fixes):
        return call
    noted(Note("repaired_call", "; ".join(found.fixes), call.name))
    return replace(call, arguments=found.arguments, complete=True)
