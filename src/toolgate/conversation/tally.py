"""What the upstreams that were asked for one request have used: one small object that grows while the request is served."""

from collections.abc import Callable
from typing import Protocol

from toolgate.conversation.events import Usage


class OpenStep(Protocol):
    """A question to an upstream of which it is not certain yet what its answer used."""

    async def count(self) -> Usage | None:
        """What it used, counted from what was asked and received; never less than the upstream reported."""

    def count_roughly(self) -> Usage | None:
        """The same by the length of the texts, when there is no time to count."""


class UsageTally:
    """Adds up usage step by step.

    Every question to an upstream is a step: those of a run with tools, corrections, attempts that failed. A step is open
    until its usage is certain; `settle` counts those that were left or broke off before their upstream reported it.
    """

    __slots__ = ("_listener", "_open", "usage")

    def __init__(self) -> None:
        self.usage: Usage | None = None
        """The sum of what is certain."""
        self._open: list[OpenStep] = []
        self._listener: Callable[[Usage], None] | None = None

    def listen(self, listener: Callable[[Usage], None]) -> None:
        """Call the listener with the usage of each step when it becomes certain."""
        self._listener = listener

    def open(self, step: OpenStep) -> None:
        """An upstream is being asked."""
        self._open.append(step)

    def close(self, step: OpenStep, usage: Usage | None) -> None:
        """It is certain what a step used; a second time changes nothing."""
        if step in self._open:
            self._open.remove(step)
            self.add(usage)

    def add(self, usage: Usage | None) -> None:
        """Add what was used."""
        if usage is None:
            return
        self.usage = usage if self.usage is None else self.usage + usage
        if self._listener is not None:
            self._listener(usage)

    async def settle(self) -> Usage | None:
        """Close all steps and return the sum; what is left when this is cancelled is counted roughly."""
        try:
            while self._open:
                self.close(self._open[0], await self._open[0].count())
        finally:
            for step in tuple(self._open):
                self.close(step, step.count_roughly())
        return self.usage
