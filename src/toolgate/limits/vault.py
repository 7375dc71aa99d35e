"""Budgets that several nodes share: what a request may cost is held back in a book that all of them read.

The same rule as a `Purse`'s, kept in one place for all: many at once pass a budget by one of them at most, whichever
nodes they run on. A request of a key with a budget therefore waits for the book; without it none is let in, because what
cannot be written down would be given away.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from toolgate.conversation import ids
from toolgate.conversation.errors import Overloaded
from toolgate.limits.policy import Budget, Period
from toolgate.limits.purse import Held, Purse

Settlement: TypeAlias = tuple[str, str, Sequence[str], float]
"""The id of a hold, its key, the labels of the periods, and what it has cost."""

_AGAIN = 1.0


class Book(Protocol):
    """Where all nodes hold back and write down; every change of it is made whole or not at all."""

    async def take(
        self, id: str, key: str, period: str, budget: float, cost: float, settled: Sequence[Settlement]
    ) -> tuple[bool, float]:
        """Settle these, then hold back a cost if the budget has room for it: whether it had, and what is spent."""

    async def settle(self, settled: Sequence[Settlement]) -> None:
        """Let these holds go and add what they have cost; those that are settled already are left out."""


class Vault:
    """A purse whose holds are in a book."""

    def __init__(self, purse: Purse, book: Book) -> None:
        self._purse = purse
        self._book = book
        self._unsettled: dict[str, Settlement] = {}
        self._settling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read what was spent before."""
        await self._purse.open()

    def spent(self, key: str, period: Period) -> float:
        """What a key has spent in the running period, as far as this node knows."""
        return self._purse.spent(key, period)

    def renews_in(self, budget: Budget) -> float | None:
        """Seconds until a new period begins; None if none ever does."""
        return self._purse.renews_in(budget)

    def spend(self, key: str, cost: float) -> None:
        """Add what a key has spent without a hold."""
        self._purse.spend(key, cost)

    def note(self, key: str, cost: float) -> None:
        """A request of this key has cost so much."""
        self._purse.note(key, cost)

    async def take(self, key: str, budget: Budget, cost: float) -> Held | None:
        """Hold back what a request may cost; None if the budget has no room for it now.

        What this node has yet to settle is settled with it: a client that asks one thing after the other waits for nothing.
        """
        await self._purse.open()
        held = Held(key, budget, self._purse.at_least(key, cost), id=ids.mint(24))
        settled, period = tuple(self._unsettled.values()), self._purse.label(budget.period)
        granted, spent = await self._book.take(held.id, key, period, budget.amount, held.amount, settled)
        self._forget(settled)
        self._purse.learn({(key, period): spent})
        return held if granted else None

    def settle(self, held: Held, cost: float) -> None:
        """The request is over and has cost so much; a second time does nothing."""
        if held.settled:
            return
        held.settled = True
        self._purse.note(held.key, cost)
        self._unsettled[held.id] = (held.id, held.key, self._purse.labels(), cost)
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def aclose(self) -> None:
        """Settle what is left; Overloaded if that cannot be."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})
        if self._unsettled:
            await self._book.settle(tuple(self._unsettled.values()))
        await self._purse.aclose()

    async def _settle(self) -> None:
        while self._unsettled:
            settled = tuple(self._unsettled.values())
            try:
                await self._book.settle(settled)
            except Overloaded:  # nothing is lost: what is held stays held until it is settled
                await asyncio.sleep(_AGAIN)
            else:
                self._forget(settled)

    def _forget(self, settled: Sequence[Settlement]) -> None:
        for id, *_ in settled:
            self._unsettled.pop(id, None)
