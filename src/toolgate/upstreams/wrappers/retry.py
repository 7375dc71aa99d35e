"""Retry requests to the same upstream, where that is safe and while there is a budget for it.

A model's work costs money, so a request is repeated only if the upstream could not be reached or reported that it is busy
or broken. An upstream that fell silent or broke off may have done the work already, so that only `unsafe` repeats it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamError, UpstreamTimeout, UpstreamUnavailable
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Model, ModelStream
from toolgate.upstreams.wrappers.breaker import CIRCUIT_OPEN

# All but the last would fail again a second later; the last may have been processed, and billed, already.
_LASTING = frozenset({CIRCUIT_OPEN, "upstream_auth", "upstream_redirect", "upstream_closed"})


class RetryBudget:
    """A budget shared by all requests to one upstream: each adds a fraction of a retry, each retry takes one.

    Under a constant failure retries stay at `ratio` of the requests plus `floor`, which comes back in `per` seconds so
    that an upstream with few requests is asked again too. `most` is what a long good time can save up.
    """

    def __init__(
        self,
        ratio: float = 0.2,
        floor: float = 3.0,
        per: float = 10.0,
        most: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ratio = ratio
        self._floor = floor
        self._per = per
        self._most = max(most, floor)
        self._clock = clock
        self._balance = floor
        self._seen = clock()

    def deposit(self) -> None:
        """Add the share of one request."""
        if self._balance < self._most:
            self._balance = min(self._most, self._balance + self._ratio)

    def withdraw(self) -> bool:
        """Take one retry from the budget; False if there is none."""
        # Time fills the budget up to `floor` only; what lies above has been earned by requests.
        now = self._clock()
        earned = (now - self._seen) * self._floor / self._per
        self._seen = now
        if self._balance < self._floor:
            self._balance = min(self._floor, self._balance + earned)
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


class RetryingModel:
    """A model asked up to `attempts` times, with a random wait before each retry that grows from `first` to `longest`.

    A longer wait that the upstream demands is kept up to `patience` seconds; beyond that the fault is raised at once,
    so that another upstream may be tried. `unsafe` also retries timeouts and garbled beginnings, which may be billed twice.
    """

    def __init__(
        self,
        model: Model,
        budget: RetryBudget,
        *,
        attempts: int = 3,
        first: float = 0.25,
        longest: float = 4.0,
        patience: float = 10.0,
        unsafe: bool = False,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._budget = budget
        self._attempts = attempts
        self._first = first
        self._longest = longest
        self._patience = patience
        self._retried = (
            (UpstreamUnavailable, UpstreamTimeout, InvalidUpstreamAnswer) if unsafe else (UpstreamUnavailable,)
        )
        self._sleep = sleep
        self._chance = chance

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the first response that begins; when none does, raise the last fault."""
        self._budget.deposit()
        attempt = 1
        while True:
            try:
                return await self._model.ask(request)
            except UpstreamError as fault:
                if attempt >= self._attempts or not isinstance(fault, self._retried) or fault.code in _LASTING:
                    raise
                # The budget comes last: a request that is not retried must take nothing from it.
                too_long = fault.retry_after is not None and fault.retry_after > self._patience
                if too_long or not self._budget.withdraw():
                    raise
                # The random share keeps callers that failed together from retrying together.
                jitter = self._chance() * min(self._longest, self._first * 2.0 ** (attempt - 1))
                wait = (fault.retry_after or 0.0) + jitter
            # Outside of the handler, which would keep the fault, its frames and the request in memory meanwhile.
            await self._sleep(wait)
            attempt += 1
