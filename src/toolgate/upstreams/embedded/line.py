"""One answer at a time: who comes next, and who is sent away. Knows nothing of models."""

import asyncio
from collections import deque

from toolgate.conversation.errors import Overloaded

_RETRY = 5.0


class Ticket:
    """The right to be answered now, given back once."""

    def __init__(self, line: "Line") -> None:
        self._line: Line | None = line

    def leave(self) -> None:
        """Let the next one in."""
        line, self._line = self._line, None
        if line is not None:
            line.pass_on()


class Line:
    """People in line for one desk; `places` of them may wait, each up to `seconds`."""

    def __init__(self, places: int, seconds: float) -> None:
        self._places = places
        self._seconds = seconds
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._waiting)

    async def enter(self) -> Ticket:
        """The right to be answered; Overloaded says how many were before us."""
        if not self._busy:
            self._busy = True
            return Ticket(self)
        if len(self._waiting) >= self._places:
            raise self._full(f"the line is full: {self._places} requests wait already")
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
        return Ticket(self)

    def pass_on(self) -> None:
        """The desk is free: the next one, please."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._busy = False

    def _gave_up(self, place: asyncio.Future[None]) -> int:
        """Leave the line, and tell how many were before us, whoever is being answered included."""
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
