"""Queue requests for one answer at a time. Knows nothing of models."""

import asyncio
from collections import deque

from toolgate.conversation.errors import Overloaded

_RETRY = 5.0


class QueueTicket:
    """The turn of a request, ended once."""

    def __init__(self, line: "RequestQueue") -> None:
        self._line: RequestQueue | None = line

    def leave(self) -> None:
        """Give the turn to the next request."""
        line, self._line = self._line, None
        if line is not None:
            line.pass_on()


class RequestQueue:
    """A queue for one turn at a time; `places` requests may wait, each up to `seconds`."""

    def __init__(self, places: int, seconds: float) -> None:
        self._places = places
        self._seconds = seconds
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiting)

    async def enter(self) -> QueueTicket:
        """Wait for a turn; Overloaded says how many requests were ahead."""
        if not self._busy:
            self._busy = True
            return QueueTicket(self)
        if len(self._waiting) >= self._places:
            raise self._full(f"the queue is full: {self._places} requests wait already")
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._seconds):
                await place
        except TimeoutError:
            before = self._gave_up(place)
            raise self._full(f"{before} requests were still before this one after {self._seconds:g} s") from None
        except asyncio.CancelledError:
            self._gave_up(place)
            raise
        return QueueTicket(self)

    def pass_on(self) -> None:
        """Give the turn to the next request."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy = False

    def _gave_up(self, place: asyncio.Future[None]) -> int:
        """Leave the queue and return how many requests were ahead, with the running one."""
        if place in self._waiting:
            before = self._waiting.index(place) + 1
            self._waiting.remove(place)
            return before
        if not place.cancelled():
            self.pass_on()  # our turn came while we were leaving
        return 1

    def _full(self, text: str) -> Overloaded:
        message = f"The embedded model answers one request at a time, and {text}."
        return Overloaded(message, code="upstream_full", retry_after=_RETRY)
