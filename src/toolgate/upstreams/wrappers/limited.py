"""A bulkhead: one deployment that stalls holds up those who wait for it and nobody else."""

import asyncio

from toolgate.conversation.errors import Overloaded
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer, Model
from toolgate.scheduling import FairSlots, QueueFull
from toolgate.upstreams.wrappers.answers import watched


class Limited:
    """A model that gives at most `concurrent` answers at a time; `queue` more requests wait, each up to `wait` seconds.

    A slot is held from the question until the answer is read to its end, breaks or is closed. Those who wait are served
    caller by caller in turn, and where too many wait, it is the caller with the most who is turned away.
    """

    def __init__(self, model: Model, *, concurrent: int, queue: int = 0, wait: float = 10.0) -> None:
        self._model = model
        self._concurrent = concurrent
        self._queue = queue
        self._wait = wait
        self._slots = FairSlots(concurrent, queue)

    @property
    def busy(self) -> int:
        """How many slots are held."""
        return self._slots.busy

    @property
    def waiting(self) -> int:
        """How many requests stand in line."""
        return self._slots.waiting

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer once a slot is free; Overloaded when the line is full or too slow."""
        slots = self._slots
        if not slots.take():
            await self._slot(request.caller)
        try:
            answer = await self._model.ask(request)
        except BaseException:
            slots.free()
            raise
        if answer.whole:
            slots.free()
            return answer
        return watched(answer, lambda _: slots.free())

    async def _slot(self, caller: str) -> None:
        """Wait for a slot."""
        try:
            async with asyncio.timeout(self._wait):
                await self._slots.wait(caller)
        except QueueFull:
            raise self._full(
                f"All {self._concurrent} slots of the upstream are taken, and {self._queue} requests wait."
            ) from None
        except TimeoutError:
            text = f"All {self._concurrent} slots of the upstream were taken for {self._wait:g} s."
            raise self._full(text) from None

    def _full(self, text: str) -> Overloaded:
        return Overloaded(text, code="upstream_full", retry_after=max(self._wait, 1.0))
