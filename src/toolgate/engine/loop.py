"""A run: steps of a model, told as one stream that ends in `Finish`.

Tools are the client's to run here, so a run is one step.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from toolgate.conversation.events import Finish, RunEvent, StepEnd, Usage
from toolgate.engine.ports import Answer


async def run(answer: Answer) -> AsyncGenerator[list[RunEvent], None]:
    """The events of the whole run, in batches as they became known."""
    async with aclosing(answer.events()) as batches:  # type: ignore[type-var]  # every implementation is a generator
        async for batch in batches:
            told: list[RunEvent] = [*batch]
            match batch[-1]:
                case StepEnd(reason, usage, stop_sequence, extra):
                    told.append(Finish(reason, usage or Usage(estimated=True), stop_sequence, extra))
            yield told
