"""Turn the answer of a model into the events of a run, which ends in `RunEnd`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import PartDelta, PartEnd, PartStart, RunEnd, RunEvent, StepEnd, Usage
from toolgate.conversation.message import ToolCall
from toolgate.engine.ports import ModelStream


async def run_events(answer: ModelStream) -> AsyncGenerator[list[RunEvent], None]:
    """Yield the events of the whole run, in batches as they became known.

    A run that ends in an incomplete call ends with `length`: clients know that such a call is not to be run.
    """
    incomplete = False
    async with aclosing(answer.events()) as batches:
        async for batch in batches:
            if not batch:
                continue
            events: list[RunEvent] = [*batch]
            for event in batch:  # no generator expression: it would cost more than the check itself, at every delta
                if type(event) is PartEnd and isinstance(event.part, ToolCall) and not event.part.complete:
                    incomplete = True
            match batch[-1]:
                case StepEnd(reason, usage, stop_sequence, extra) as end:
                    if incomplete and reason in ("stop", "tool_calls"):
                        # In `StepEnd` too: some encoders read the reason there, before `RunEnd`.
                        reason = "length"
                        events[-1] = replace(end, reason=reason)
                    events.append(RunEnd(reason, usage or Usage(estimated=True), stop_sequence, extra))
            yield events


class WholeArgumentsEmitter:
    """Emits the arguments of each call in one delta, for clients that cannot join deltas."""

    def __init__(self) -> None:
        self._in_call = False

    def gather(self, batch: list[RunEvent]) -> list[RunEvent]:
        """Return the batch with the argument deltas of each call replaced by one, right before the call's end."""
        events: list[RunEvent] = []
        for event in batch:
            match event:
                case PartDelta() if self._in_call:
                    continue
                case PartStart(part):
                    self._in_call = isinstance(part, ToolCall)
                case PartEnd(ToolCall(arguments=arguments)) if arguments:
                    self._in_call = False
                    events.append(PartDelta(arguments))
            events.append(event)
        return events
