"""Split the events of an answer into slices of bounded text, for parsers whose work grows with the text.

A whole answer comes as one batch, and so does everything that an upstream sends at once. Parsing 1,000 characters takes one
to thirty milliseconds; between two slices the event loop serves other requests. Knows no syntax.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from toolgate.conversation.events import PartDelta, StepEvent

# Characters of text that are parsed without yielding to the event loop.
SLICE = 1_000


async def sliced(batches: AsyncIterator[Sequence[StepEvent]]) -> AsyncGenerator[Sequence[StepEvent]]:
    """Yield the same events in batches of at most `SLICE` characters; longer deltas are split."""
    async for batch in batches:
        # The usual batch of a stream has a few words and passes as it is.
        if sum([len(event.text) for event in batch if type(event) is PartDelta]) <= SLICE:
            yield batch
            continue
        slice: list[StepEvent] = []
        size = 0
        for event in batch:
            pieces = [event]
            if type(event) is PartDelta and len(event.text) > SLICE:
                pieces = [PartDelta(event.text[at : at + SLICE]) for at in range(0, len(event.text), SLICE)]
            for piece in pieces:
                length = len(piece.text) if type(piece) is PartDelta else 0
                if size + length > SLICE:
                    yield slice
                    await asyncio.sleep(0)
                    slice, size = [], 0
                slice.append(piece)
                size += length
        yield slice
