"""Limit what one run may use before it must answer, and detect a model that repeats the same call."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from toolgate.conversation.events import Usage
from toolgate.conversation.message import ToolCall


class Price(Struct, frozen=True):
    """The price of a million tokens."""

    input: float = 0.0
    output: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the cost of this usage."""
        return (usage.input * self.input + usage.output * self.output) / 1_000_000


class RunLimits(Struct, frozen=True):
    """Limits of one run; 0 means none. The time that approvals take does not count."""

    rounds: int = 10
    calls: int = 128
    tokens: int = 0
    seconds: float = 900.0
    cost: float = 0.0
    repeats: int = 3


class RunLimitTracker:
    """Tracks what a run has used so far, and which limit it would exceed."""

    def __init__(
        self,
        limits: RunLimits,
        price: Price = Price(),  # noqa: B008  # an immutable value
        prices: Mapping[str, Price] = {},
    ) -> None:
        """`price` is that of the model that was asked for, `prices` are those of its fallbacks as well, by name."""
        self.usage: Usage | None = None
        self.rounds = self.calls = 0
        self._limits = limits
        self._price = price
        self._prices = prices
        self._seen: Counter[tuple[str, str]] = Counter()

    def add_step(self, usage: Usage | None) -> None:
        """Add the usage of one answer of the model."""
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage

    def exceeded(self, calls: int, seconds: float, by_model: Mapping[str, Usage] = {}) -> str | None:
        """Return which limit one more round of so many calls would exceed, as text; None if it may run.

        `by_model` is the usage of each model that has answered.
        """
        limits, usage = self._limits, self.usage or Usage()
        if limits.rounds and self.rounds >= limits.rounds:
            return f"the limit of {limits.rounds} tool rounds is reached"
        if limits.calls and self.calls + calls > limits.calls:
            return f"the limit of {limits.calls} tool calls is reached"
        if limits.tokens and usage.input + usage.output >= limits.tokens:
            return f"the limit of {limits.tokens} tokens is reached"
        if limits.seconds and seconds >= limits.seconds:
            return f"the limit of {limits.seconds:g} seconds is reached"
        # The higher of two sums: `by_model` also has failed requests, but is empty for a run without a tally.
        cost = sum([self._prices.get(model, self._price).of(used) for model, used in by_model.items()])
        if limits.cost and max(cost, self._price.of(usage)) >= limits.cost:
            return f"the limit of {limits.cost:g} in cost is reached"
        return None

    def add_round(self, calls: Sequence[ToolCall]) -> set[str]:
        """Count one round, and return the ids of the calls that were made too often with the same arguments."""
        self.rounds += 1
        self.calls += len(calls)
        repeated = set()
        for call in calls:
            # By the exact text: a model that is stuck writes the very same arguments, byte by byte.
            self._seen[(call.name, call.arguments)] += 1
            if self._limits.repeats and self._seen[(call.name, call.arguments)] > self._limits.repeats:
                repeated.add(call.id)
        return repeated
