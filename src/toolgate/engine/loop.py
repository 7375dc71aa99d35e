"""A run: steps of a model, told as one stream that ends in `Finish`.

Tools are the client's to run here, so a run is one step.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import Delta, Finish, PartEnd, PartStart, RunEvent, StepEnd, Usage
from toolgate.conversation.message import ToolCall
from toolgate.engine.ports import Answer


async def run(answer: Answer) -> AsyncGenerator[list[RunEvent], None]:
    """The events of the whole run, in batches as they became known.

    A run that ends in a call which broke off ends with `length`: clients know that such a call is not to be run.
    """
    broken_off = False
    async with aclosing(answer.events()) as batches:  # type: ignore[type-var]  # every implementation is a generator
        async for batch in batches:
            if not batch:
                continue
            told: list[RunEvent] = [*batch]
            for event in batch:  # no generator: it would cost more than the look itself, at every delta
                if type(event) is PartEnd and _is_broken_off(event):
                    broken_off = True
            match batch[-1]:
                case StepEnd(reason, usage, stop_sequence, extra) as end:
                    if broken_off and reason in ("stop", "tool_calls"):
                        reason = "length"
                        told[-1] = replace(end, reason=reason)
                    told.append(Finish(reason, usage or Usage(estimated=True), stop_sequence, extra))
            yield told


def _is_broken_off(event: PartEnd) -> bool:
    return isinstance(event.part, ToolCall) and not event.part.complete


class WholeCalls:
    """Tells the arguments of each call in one piece, for clients that cannot put pieces together."""

    def __init__(self) -> None:
        self._in_call = False

    def gather(self, batch: list[RunEvent]) -> list[RunEvent]:
        """The batch with no argument text before a call is complete, and all of it then."""
        told: list[RunEvent] = []
        for event in batch:
            match event:
                case Delta() if self._in_call:
                    continue
                case PartStart(part):
                    self._in_call = isinstance(part, ToolCall)
                case PartEnd(ToolCall(arguments=arguments)) if arguments:
                    self._in_call = False
                    told.append(Delta(arguments))
            told.append(event)
        return told
