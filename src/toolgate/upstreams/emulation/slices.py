"""Events of an answer in slices of bounded text, for readers whose work grows with the text.

A whole answer comes as one batch, and so does whatever an upstream sends at once. Reading 1,000 characters takes one to
thirty milliseconds; between two slices the event loop serves others. Knows no syntax.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from toolgate.conversation.events import Delta, StepEvent

SLICE = 1_000
"""Characters of text that are read without a pause."""


async def sliced(batches: AsyncIterator[Sequence[StepEvent]]) -> AsyncIterator[Sequence[StepEvent]]:
    """Yield the same events in batches of at most `SLICE` characters; longer deltas are split."""
    async for batch in batches:
        if sum([len(event.text) for event in batch if type(event) is Delta]) <= SLICE:
            yield batch
            continue
        slice: list[StepEvent] = []
        size = 0
        for event in _split(batch):
            length = len(event.text) if type(event) is Delta else 0
            if size + length > SLICE and slice:
                yield slice
                await asyncio.sleep(0)
                slice, size = [], 0
            slice.append(event)
            size += length
        yield slice


def _split(batch: Sequence[StepEvent]) -> list[StepEvent]:
    events: list[StepEvent] = []
    for event in batch:
        if type(event) is Delta and len(event.text) > SLICE:
            events += [Delta(event.text[at : at + SLICE]) for at in range(0, len(event.text), SLICE)]
        else:
            events.append(event)
    return events
