"""The limits of one key. Values only."""

from typing import Literal, TypeAlias

from msgspec import Struct

Period: TypeAlias = Literal["day", "month", "total"]


class KeyBudget(Struct, frozen=True):
    """The amount that a key may spend in a day or a month of UTC, or in total."""

    amount: float
    period: Period = "month"


class KeyLimits(Struct, frozen=True):
    """The limits of one key; 0 and None mean no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    budget: KeyBudget | None = None

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrency or self.budget)
