"""The interface of budgets, which one process keeps alone (`local_budgets`) or several share (`shared_budgets`)."""

from typing import Protocol

from toolgate.limits.local_budgets import BudgetReservation
from toolgate.limits.policy import KeyBudget, Period


class Budgets(Protocol):
    """What each key has spent, and what is reserved for its running requests."""

    async def open(self) -> None:
        """Read what was spent before; later calls cost nothing."""

    async def refresh(self) -> None:
        """Read again what was spent, which other processes may have changed."""

    def spent(self, key: str, period: Period) -> float:
        """Return what a key has spent in the current period."""

    async def reserve(self, key: str, budget: KeyBudget, cost: float) -> BudgetReservation | None:
        """Reserve what a request may cost; None if that is more than is left of the budget now."""

    def settle(self, reservation: BudgetReservation, cost: float) -> None:
        """Replace a reservation by the cost of its request; a second time does nothing."""

    def spend(self, key: str, cost: float) -> None:
        """Add what a key has spent without a reservation."""

    def note_cost(self, key: str, cost: float) -> None:
        """Note what a request of this key has cost: at least as much is reserved for later ones."""

    def renews_in(self, budget: KeyBudget) -> float | None:
        """Return the seconds until the next period; None if there is none."""

    async def aclose(self) -> None:
        """Write what is not yet written; GatewayOverloaded if that fails."""
