"""Present a run with tools as the events of one step, however many rounds it takes.

The gateway's calls are marked as its own. What is emitted differs from what is recorded in two ways: rounds are separated
by a blank line where the dialect has nothing else between them, and a call that may need approval is emitted only when
it starts, or when it is refused.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEnd, StepEvent, StepStart
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.history import unanswered_calls
from toolgate.conversation.message import ApprovalRequestPart, Message, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import RunTools

_BLANK_LINE = "\n\n"
_SHOWN_ARGUMENTS = 200  # characters: a status line names the call, and must not hold a whole file


class Presentation(Struct, frozen=True):
    """How a run is emitted to a client.

    With `native_tools` the gateway's calls are emitted as parts; otherwise rounds are separated by a blank line. With
    `native_approvals` approval requests are emitted and end the run; with `native_pause` a run that waits ends with the
    reason `pause`. With `status`, a dialect without native tools gets a line of text for each call. `approve` is the
    command that approves a call, without the id.
    """

    native_tools: bool = False
    native_approvals: bool = False
    native_pause: bool = False
    status: bool = False
    approve: str = "toolgate approvals approve"


class AlreadySentCalls(Struct, frozen=True):
    """The calls of a resumed run whose start and whose end the client has already received."""

    begun: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()


class CollectedStepAnswer:
    """One answer of the model, as it is recorded."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.gateway_calls: list[ToolCall] = []
        self.client_calls: list[ToolCall] = []
        self.end = StepEnd("stop")

    def add(self, part: Part) -> None:
        """Record a complete part."""
        self.parts.append(part)
        if isinstance(part, ToolCall) and part.executor != "provider":
            (self.gateway_calls if part.executor == "gateway" else self.client_calls).append(part)


class ClientVisibleEventFilter:
    """Turns the events of a run into those that the client receives."""

    def __init__(self, presentation: Presentation, tools: RunTools, request: ModelRequest) -> None:
        self._presentation = presentation
        self._tools = tools
        self._client_tools = {tool.name for tool in request.tools}
        # Ids of the calls that the client has received: a call that its own request ends in is such a one, unless an
        # approval was requested for it, since that request was all that the client got.
        self._shown = {call.id for call in unanswered_calls(request.messages) if call.approval is None}
        self._started = False
        self._held = False  # the open part is not emitted, or not yet
        self._has_text = False  # this answer of the model has text
        self._separate = False  # an earlier answer has text, so that a blank line comes before the next text
        self._separator = _BLANK_LINE  # what the last text lacks of it
        self._prefix = ""  # what the open text begins with
        self._unsent_prefix = ""  # the same, until it was emitted

    def present(self, batch: Sequence[StepEvent], step: CollectedStepAnswer, last: bool) -> list[StepEvent]:
        """Record a batch of the model's events and return those to emit; in the `last` round our calls are left out."""
        events: list[StepEvent] = []
        for event in batch:
            match event:
                case PartDelta(text):
                    if not self._held:
                        events.append(self._prefixed(text) if self._unsent_prefix else event)
                case PartStart(part):
                    events += self._start(self._with_executor(part), last)
                case PartEnd(part):
                    part = self._with_executor(part)
                    step.add(part)
                    events += self._end(part)
                case StepStart():
                    events += self._start_step(event)
                case StepEnd():
                    step.end = event
                    self._separate = self._has_text
                case _:
                    events.append(event)
        return events

    def replay(self, messages: Sequence[Message], shown: AlreadySentCalls | None = None) -> list[StepEvent]:
        """Return the events of an earlier attempt, for a client that did not receive its end."""
        events = self._start_step(StepStart())
        if shown is not None:
            # This client has received all text, but perhaps not all results.
            self._shown |= shown.begun
            parts = [part for message in messages for part in message.parts]
            self._separate = any(isinstance(part, Text) and part.text for part in parts)
            calls = {part.id: part for part in parts if isinstance(part, ToolCall)}
            for part in parts:
                if isinstance(part, ToolResult) and part.call_id not in shown.ended and part.call_id in calls:
                    events += self.outcome(calls[part.call_id], part)
            return events
        # A waiting call is emitted when it starts, or when it is refused.
        waiting = {call.id for call in unanswered_calls(messages)}
        for message in messages:
            for part in message.parts:
                if not isinstance(part, ToolCall) or part.id not in waiting:
                    events += self._whole(part)
            self._separate = self._has_text
        return events

    def calling(self, calls: Sequence[ToolCall]) -> list[StepEvent]:
        """Return a line of text for each call that is about to run, if the presentation has status lines."""
        if self._presentation.native_tools or not self._presentation.status:
            return []
        lines = "\n".join([f"[{call.name} {call.arguments[:_SHOWN_ARGUMENTS]}]" for call in calls])
        events = self._whole(Text(lines))
        self._separate = self._has_text
        return events

    def notice(self, text: str) -> list[StepEvent]:
        """Return a sentence of the gateway's own, where the model has written nothing."""
        return self._whole(Text(text))

    def started(self, call: ToolCall) -> list[StepEvent]:
        """Return a call that was held back while it could still need approval; now it is permitted and runs."""
        if call.id in self._shown:
            return []
        self._shown.add(call.id)
        return unfold_part(call)

    def outcome(self, call: ToolCall, outcome: ToolResult | ApprovalRequestPart) -> list[StepEvent]:
        """Return a result, preceded by its call if that was not emitted yet, or a native approval request."""
        if isinstance(outcome, ApprovalRequestPart):
            return unfold_part(outcome) if self._presentation.native_approvals else []
        return [*self.started(call), *unfold_part(outcome)]

    def waiting(self, requests: Sequence[ApprovalRequestPart]) -> list[StepEvent]:
        """Return what shows the client that calls wait for approval, where the dialect has no approval requests."""
        if self._presentation.native_approvals:
            return []
        if self._presentation.native_pause:
            return [event for one in requests if one.call.id not in self._shown for event in unfold_part(one.call)]
        notices = [
            f"The call of {one.call.name} waits for approval {one.id}. "
            f"Once it is answered (`{self._presentation.approve} {one.id}`), send the same request again."
            for one in requests
        ]
        return [event for text in notices for event in self._whole(Text(text))]

    def _start_step(self, start: StepStart) -> list[StepEvent]:
        """Return the start of the first step only: all rounds are one step to the client."""
        if self._started:
            return []
        self._started = True
        return [start]

    def _start(self, part: Part, last: bool) -> list[StepEvent]:
        self._held = False
        self._prefix = self._unsent_prefix = ""
        if isinstance(part, ToolCall) and part.executor == "gateway":
            # In the last round calls are not run, and one that waits for approval may never be.
            self._held = last or self._tools.rules(part.name).may_wait
            if not self._held:
                self._shown.add(part.id)
        elif isinstance(part, Text) and self._separate and not self._presentation.native_tools:
            self._prefix = self._unsent_prefix = self._separator
        return [] if self._held else [PartStart(part)]

    def _prefixed(self, text: str) -> PartDelta:
        prefix, self._unsent_prefix = self._unsent_prefix, ""
        return PartDelta(prefix + text)

    def _end(self, part: Part) -> list[StepEvent]:
        if self._held:
            self._held = False
            return []
        if isinstance(part, Text) and part.text:
            # Line breaks that the model itself wrote at the end count as part of the blank line.
            self._separator = _BLANK_LINE[len(part.text) - len(part.text.rstrip("\n")) :]
            # `PartEnd` carries all that the deltas had, so the prefix too; the recorded part has none.
            part = replace(part, text=self._prefix + part.text) if self._prefix else part
            self._has_text, self._separate = True, False
        return [PartEnd(part)]

    def _whole(self, part: Part) -> list[StepEvent]:
        """Return all events of a complete part, unless it is held back."""
        start, *rest = unfold_part(part)
        if not self._start(part, last=False):
            return []
        return [
            start,
            *[self._prefixed(event.text) for event in rest if isinstance(event, PartDelta)],
            *self._end(part),
        ]

    def _with_executor(self, part: Part) -> Part:
        """Mark a call of a tool that the client did not declare as the gateway's."""
        if isinstance(part, ToolCall) and part.executor == "client" and part.name not in self._client_tools:
            return replace(part, executor="gateway")
        return part
