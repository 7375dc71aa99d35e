"""What one key may use. Values only."""

from typing import Literal, TypeAlias

from msgspec import Struct

Period: TypeAlias = Literal["day", "month", "total"]


class Budget(Struct, frozen=True):
    """What a key may spend in a day or a month of UTC, or ever."""

    amount: float
    period: Period = "month"


class KeyLimits(Struct, frozen=True):
    """The limits of one key; 0 and None mean that there is none."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0
    budget: Budget | None = None

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrency or self.budget)
