"""What one run may use up before it must answer with what it has, and the watch over a model that turns in circles."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.conversation.message import ToolCall


class Price(Struct, frozen=True):
    """What a million tokens cost."""

    input: float = 0.0
    output: float = 0.0

    def of(self, usage: Usage) -> float:
        """The cost of this usage."""
        return (usage.input * self.input + usage.output * self.output) / 1_000_000


class Budget(Struct, frozen=True):
    """Limits of one run; 0 means none. A person's thinking time counts for nothing."""

    rounds: int = 10
    calls: int = 128
    tokens: int = 0
    seconds: float = 900.0
    cost: float = 0.0
    repeats: int = 3


class Spent:
    """What a run has used up so far."""

    def __init__(self, budget: Budget, price: Price = Price()) -> None:  # noqa: B008  # an immutable value
        self.usage: Usage | None = None
        self.rounds = self.calls = 0
        self._budget = budget
        self._price = price
        self._seen: Counter[tuple[str, str]] = Counter()

    def step(self, usage: Usage | None) -> None:
        """Account for one answer of the model."""
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    def exceeded(self, calls: int, seconds: float) -> str | None:
        """Which limit one more round of so many calls would pass, in words; None if it may go on."""
        budget, usage = self._budget, self.usage or Usage()
        if budget.rounds and self.rounds >= budget.rounds:
            return f"the limit of {budget.rounds} tool rounds is reached"
        if budget.calls and self.calls + calls > budget.calls:
            return f"the limit of {budget.calls} tool calls is reached"
        if budget.tokens and usage.input + usage.output >= budget.tokens:
            return f"the limit of {budget.tokens} tokens is reached"
        if budget.seconds and seconds >= budget.seconds:
            return f"the limit of {budget.seconds:g} seconds is reached"
        if budget.cost and self._price.of(usage) >= budget.cost:
            return f"the limit of {budget.cost:g} in cost is reached"
        return None

    def round(self, calls: Sequence[ToolCall]) -> set[str]:
        """Account for one round; the ids of the calls that were made too often in the very same words."""
        self.rounds += 1
        self.calls += len(calls)
        circling = set()
        for call in calls:
            self._seen[(call.name, call.arguments)] += 1
            if self._budget.repeats and self._seen[(call.name, call.arguments)] > self._budget.repeats:
                circling.add(call.id)
        return circling
