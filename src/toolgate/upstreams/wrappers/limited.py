"""A bulkhead: one deployment that stalls holds up those who wait for it and nobody else."""

import asyncio
from collections import deque

from toolgate.conversation.errors import Overloaded
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer, Model
from toolgate.upstreams.wrappers.answers import watched


class Limited:
    """A model that gives at most `concurrent` answers at a time; `queue` more requests wait, each up to `wait` seconds.

    A slot is held from the question until the answer is read to its end, breaks or is closed.
    """

    def __init__(self, model: Model, *, concurrent: int, queue: int = 0, wait: float = 10.0) -> None:
        self._model = model
        self._concurrent = concurrent
        self._queue = queue
        self._wait = wait
        self._busy = 0
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def busy(self) -> int:
        """How many slots are held."""
        return self._busy

    @property
    def waiting(self) -> int:
        """How many requests stand in line."""
        return len(self._line)

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer once a slot is free; Overloaded when the line is full or too slow."""
        if self._busy < self._concurrent:
            self._busy += 1
        else:
            await self._slot()
        try:
            answer = await self._model.ask(request)
        except BaseException:
            self._pass_on()
            raise
        if answer.whole:
            self._pass_on()
            return answer
        return watched(answer, lambda _: self._pass_on())

    async def _slot(self) -> None:
        """Stand in line for a slot."""
        if len(self._line) >= self._queue:
            raise self._full(
                f"All {self._concurrent} slots of the upstream are taken, and {self._queue} requests wait."
            )
        try:
            async with asyncio.timeout(self._wait):
                await self._turn()
        except TimeoutError:
            text = f"All {self._concurrent} slots of the upstream were taken for {self._wait:g} s."
            raise self._full(text) from None

    async def _turn(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place in self._line:
                self._line.remove(place)
            elif not place.cancelled():
                self._pass_on()  # our turn came while we were leaving
            raise

    def _pass_on(self) -> None:
        """Give the slot to whoever has waited longest."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy -= 1

    def _full(self, text: str) -> Overloaded:
        return Overloaded(text, code="upstream_full", retry_after=max(self._wait, 1.0))
