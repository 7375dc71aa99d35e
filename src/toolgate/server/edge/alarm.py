"""One timer for many deadlines: it is moved only when something falls due earlier than it would fire.

Deadlines that are met, which is nearly all of them, then cost an assignment instead of a timer made and cancelled.
Whoever is called looks at what is due by now, and asks again.
"""

import asyncio
from collections.abc import Callable

NEVER = float("inf")


class Alarm:
    """Calls back by the earliest time that was asked for, once."""

    __slots__ = ("_call", "_loop", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.at = NEVER
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None

    def by(self, when: float) -> None:
        """Make sure to call no later than `when`."""
        if when >= self.at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.at = when
        self._timer = self._loop.call_at(when, self._ring)

    def off(self) -> None:
        """Call no more."""
        self.at = NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self.at = NEVER
        self._timer = None
        self._call()
