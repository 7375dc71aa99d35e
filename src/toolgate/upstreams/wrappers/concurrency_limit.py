"""Limit the concurrent requests to one deployment, so that one that stalls holds up no other."""

import asyncio

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Model, ModelStream
from toolgate.scheduling import FairSlots, QueueFull
from toolgate.upstreams.wrapped_streams import with_end_listener


class ConcurrencyLimitedModel:
    """A model that gives at most `concurrent` answers at a time; `queue` more requests wait, each up to `wait` seconds.

    A slot is held from the request until the response is read to its end, fails or is closed. Waiting requests are served
    caller by caller in turn; when the queue is full, the caller with the most of them gets GatewayOverloaded.
    """

    def __init__(self, model: Model, *, concurrent: int, queue: int = 0, wait: float = 10.0) -> None:
        self._model = model
        self._concurrent = concurrent
        self._queue = queue
        self._wait = wait
        self._slots = FairSlots(concurrent, queue)

    @property
    def busy(self) -> int:
        """The number of slots in use."""
        return self._slots.busy

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return self._slots.waiting

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Ask the model once a slot is free; GatewayOverloaded when the queue is full or the wait too long."""
        slots = self._slots
        if not slots.try_acquire():
            try:
                async with asyncio.timeout(self._wait):
                    await slots.wait(request.caller)
            except QueueFull:
                raise self._full(
                    f"All {self._concurrent} slots of the upstream are taken, and {self._queue} requests wait."
                ) from None
            except TimeoutError:
                text = f"All {self._concurrent} slots of the upstream were taken for {self._wait:g} s."
                raise self._full(text) from None
        try:
            answer = await self._model.ask(request)
        except BaseException:
            slots.release()
            raise
        if answer.whole:  # the upstream is done with it already
            slots.release()
            return answer
        return with_end_listener(answer, lambda _: slots.release())

    def _full(self, text: str) -> GatewayOverloaded:
        return GatewayOverloaded(text, code="upstream_full", retry_after=max(self._wait, 1.0))
