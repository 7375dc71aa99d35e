"""What a budget is asked: the port that a purse of one process and a vault of many fill alike."""

from typing import Protocol

from toolgate.limits.policy import Budget, Period
from toolgate.limits.purse import Held


class Budgets(Protocol):
    """What each key has spent and holds back."""

    async def open(self) -> None:
        """Read what was spent before; later calls cost nothing."""

    def spent(self, key: str, period: Period) -> float:
        """What a key has spent in the running period."""

    async def take(self, key: str, budget: Budget, cost: float) -> Held | None:
        """Hold back what a request may cost; None if the budget has no room for it now."""

    def settle(self, held: Held, cost: float) -> None:
        """The request is over and has cost so much; a second time does nothing."""

    def spend(self, key: str, cost: float) -> None:
        """Add what a key has spent without a hold."""

    def note(self, key: str, cost: float) -> None:
        """A request of this key has cost so much: no later one is expected to cost less."""

    def renews_in(self, budget: Budget) -> float | None:
        """Seconds until a new period begins; None if none ever does."""

    async def aclose(self) -> None:
        """Write down what is left; Overloaded if that cannot be."""
