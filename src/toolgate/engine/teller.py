"""How a run with tools is told: one step whatever the number of rounds, the gateway's calls marked as its own.

What the client hears and what is kept differ in two things: rounds are set apart by a blank line where a dialect has
nothing else between them, and a call that may have to wait for a person is told only when its fate is known.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.events import Delta, PartEnd, PartStart, StepEnd, StepEvent, StepStart
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.history import unanswered
from toolgate.conversation.message import ApprovalRequest, Message, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Toolbox

_BLANK_LINE = "\n\n"
_SHOWN = 200


class Manner(Struct, frozen=True):
    """How a run is told.

    A `native` dialect shows the gateway's calls; elsewhere rounds are set apart by a blank line. An `asking` one shows
    approvals as questions and ends there; a `pausing` one has a word for a turn that is to be gone on with. With `status`,
    a dialect that is not native tells of our calls in lines of text.
    """

    native: bool = False
    asking: bool = False
    pausing: bool = False
    status: bool = False


class Heard(Struct, frozen=True):
    """What a client knows already of a run that goes on: the calls that it saw begin, and those of which it saw the end."""

    begun: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()


class Step:
    """One answer of the model, as it is kept."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.ours: list[ToolCall] = []
        self.theirs: list[ToolCall] = []
        self.end = StepEnd("stop")

    def keep(self, part: Part) -> None:
        """Remember a part that is complete."""
        self.parts.append(part)
        if isinstance(part, ToolCall) and part.executor != "provider":
            (self.ours if part.executor == "gateway" else self.theirs).append(part)


class Teller:
    """Turns what happens into what the client hears."""

    def __init__(self, manner: Manner, toolbox: Toolbox, request: ModelRequest) -> None:
        self._manner = manner
        self._toolbox = toolbox
        self._theirs = {tool.name for tool in request.tools}
        self._known = {call.id for call in unanswered(request.messages) if call.approval is None}  # to the client
        self._began = False
        self._held = False  # the open part is not told, or not yet
        self._spoke = False  # there was text in this answer of the model
        self._apart = False  # or in an earlier one, so that more of it begins with a blank line
        self._blank = ""  # what the open text begins with
        self._lead = ""  # the same, until it was told

    def tell(self, batch: Sequence[StepEvent], step: Step, last: bool) -> list[StepEvent]:
        """A batch of the model's events as the client hears it; our calls in the last round's answer are not told."""
        told: list[StepEvent] = []
        for event in batch:
            match event:
                case Delta(text):
                    if not self._held:
                        told.append(self._more(text) if self._lead else event)
                case PartStart(part):
                    told += self._start(self._owned(part), last)
                case PartEnd(part):
                    step.keep(self._owned(part))
                    told += self._end(self._owned(part))
                case StepStart():
                    told += self._begin(event)
                case StepEnd():
                    step.end = event
                    self._apart = self._spoke
                case _:
                    told.append(event)
        return told

    def recount(self, messages: Sequence[Message], heard: Heard | None = None) -> list[StepEvent]:
        """What an earlier attempt had said, told again to a client that did not hear its end."""
        told = self._begin(StepStart())
        if heard is not None:
            return told + self._go_on(messages, heard)
        waiting = {call.id for call in unanswered(messages)}
        for message in messages:
            for part in message.parts:
                if not isinstance(part, ToolCall) or part.id not in waiting:
                    told += self._whole(part)
            self._apart = self._spoke
        return told

    def _go_on(self, messages: Sequence[Message], heard: Heard) -> list[StepEvent]:
        """What is missing for a client that has heard every word of the model, but perhaps not how its calls ended."""
        self._known |= heard.begun
        self._apart = any(isinstance(part, Text) and part.text for message in messages for part in message.parts)
        calls = {part.id: part for message in messages for part in message.parts if isinstance(part, ToolCall)}
        results = [part for message in messages for part in message.parts if isinstance(part, ToolResult)]
        untold = [result for result in results if result.call_id not in heard.ended and result.call_id in calls]
        return [event for result in untold for event in self.outcome(calls[result.call_id], result)]

    def calling(self, calls: Sequence[ToolCall]) -> list[StepEvent]:
        """A line of text for each call that is about to run, if the client wants to know and would not otherwise."""
        if self._manner.native or not self._manner.status:
            return []
        lines = "\n".join([f"[{call.name} {call.arguments[:_SHOWN]}]" for call in calls])
        told = self._whole(Text(lines))
        self._apart = self._spoke
        return told

    def notice(self, text: str) -> list[StepEvent]:
        """A sentence of the gateway's own, where the model has said nothing."""
        return self._whole(Text(text))

    def outcome(self, call: ToolCall, outcome: ToolResult | ApprovalRequest) -> list[StepEvent]:
        """A result, behind its call if that was not told yet; a question only where the dialect can ask it."""
        if isinstance(outcome, ApprovalRequest):
            return unfold_part(outcome) if self._manner.asking else []
        return [*([] if call.id in self._known else unfold_part(call)), *unfold_part(outcome)]

    def waiting(self, asked: Sequence[ApprovalRequest]) -> list[StepEvent]:
        """How the client hears of calls that still wait, where the dialect has no questions."""
        if self._manner.asking:
            return []
        if self._manner.pausing:
            return [event for one in asked if one.call.id not in self._known for event in unfold_part(one.call)]
        return [event for one in asked for event in self._whole(Text(_notice(one)))]

    def _begin(self, start: StepStart) -> list[StepEvent]:
        if self._began:
            return []
        self._began = True
        return [start]

    def _start(self, part: Part, last: bool) -> list[StepEvent]:
        self._held = False
        self._blank = self._lead = ""
        if isinstance(part, ToolCall) and part.executor == "gateway":
            self._held = last or self._toolbox.may_ask(part.name)
            if not self._held:
                self._known.add(part.id)
        elif isinstance(part, Text):
            self._blank = self._lead = _BLANK_LINE if self._apart and not self._manner.native else ""
        return [] if self._held else [PartStart(part)]

    def _more(self, text: str) -> Delta:
        lead, self._lead = self._lead, ""
        return Delta(lead + text)

    def _end(self, part: Part) -> list[StepEvent]:
        if self._held:
            self._held = False
            return []
        if isinstance(part, Text) and part.text:
            part = replace(part, text=self._blank + part.text) if self._blank else part
            self._spoke, self._apart = True, False
        return [PartEnd(part)]

    def _whole(self, part: Part) -> list[StepEvent]:
        """A part told at once."""
        start, *rest = unfold_part(part)
        told = self._start(part, last=False)
        if not told:
            return []
        return [start, *[self._more(event.text) for event in rest if isinstance(event, Delta)], *self._end(part)]

    def _owned(self, part: Part) -> Part:
        if isinstance(part, ToolCall) and part.executor == "client" and part.name not in self._theirs:
            return replace(part, executor="gateway")
        return part


def _notice(asked: ApprovalRequest) -> str:
    return (
        f"The call of {asked.call.name} waits for approval {asked.id}. "
        f"Once it is answered (`toolgate approvals approve {asked.id}`), send the same request again."
    )
