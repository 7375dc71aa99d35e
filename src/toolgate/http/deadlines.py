"""Deadlines of one connection: by when the client must have sent a head or a body, and read what was written.

Every request passes here, so a deadline that is met costs an assignment instead of a timer made and cancelled: one timer
serves all deadlines and is moved only when something falls due earlier than it would fire. When it fires, its owner looks
at what is due and arms it again.

Knows clocks and limits. It must not know what happens when a deadline is missed.
"""

import asyncio
from collections.abc import Callable

from toolgate.http.request_limits import RequestLimits
from toolgate.http.request_reader import BODY, HEAD, IDLE

NEVER = float("inf")

_STALL_BYTES = 16 * 1024  # a client that reads fewer in one stall period is not reading


class DeadlineTimer:
    """Calls back once, at the earliest of the times that were given."""

    __slots__ = ("_call", "_handle", "_loop", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.at = NEVER
        self._loop = loop
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def by(self, when: float) -> None:
        """Call no later than `when`."""
        if when >= self.at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self.at = when
        self._handle = self._loop.call_at(when, self._fire)

    def cancel(self) -> None:
        """Call no more."""
        self.at = NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self.at = NEVER
        self._handle = None
        self._call()


class ConnectionDeadlines:
    """The deadlines of a connection.

    `client_by` is when the client must have sent more, `body_by` when its body must be complete, and `stalled_by` when it
    must have read some of what was written.
    """

    __slots__ = ("_limits", "_stall_bytes", "body_by", "check_seconds", "client_by", "stalled_by", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: RequestLimits, check: Callable[[], None]) -> None:
        """`check` is called when something may be due, and at least every `check_seconds`."""
        self.client_by = self.body_by = self.stalled_by = NEVER
        self.check_seconds = limits.write_stall_seconds
        self.timer = DeadlineTimer(loop, check)
        self._limits = limits
        self._stall_bytes = 0

    def arm(self, now: float) -> None:
        """Have the timer fire for what is due first, and often enough to find a close that got stuck."""
        self.timer.by(min(self.client_by, self.stalled_by, now + self.check_seconds))

    def set_for_phase(self, phase: int, before: int, is_first: bool, now: float) -> None:
        """Give the client its time for what it has begun to send; more bytes of a head do not buy more time."""
        limits = self._limits
        if phase == BODY:
            # Every piece of a body buys time up to its whole deadline, or one byte at a time would hold a place for ever.
            if before != BODY:
                self.body_by = now + limits.body_seconds
            self.client_by = min(now + limits.body_idle_seconds, self.body_by)
        elif phase == IDLE and before == BODY:
            self.client_by = now + limits.keep_alive_seconds
        elif phase == HEAD != before and not is_first:
            self.client_by = now + limits.head_seconds

    def extend_body(self, now: float) -> None:
        """Give the client its time for the body again, because the application has not read what came."""
        self.client_by = now + self._limits.body_idle_seconds
        self.body_by = now + self._limits.body_seconds

    def watch_writes(self, unsent: int, now: float) -> None:
        """Give the client a stall period to read some of the unsent bytes."""
        self._stall_bytes = unsent
        self.stalled_by = now + self._limits.write_stall_seconds

    def unread_seconds(self, now: float) -> float:
        """Return for how long the client has not read what was written; 0 if that is not watched."""
        return max(0.0, now - self.stalled_by + self._limits.write_stall_seconds)

    def is_stalled(self, unsent: int, now: float) -> bool:
        """Return whether the client read too little in the stall period that is over; the next one begins."""
        before = self._stall_bytes
        self.watch_writes(unsent, now)
        return before - unsent < _STALL_BYTES
