"""Admit requests within the limits of their keys, and charge what they have used at their end.

Wraps handlers. A key without limits costs one look-up.
Knows headers, usage and prices; how things are counted is in `counters` and `budgets`.
"""

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from toolgate.conversation.errors import RateLimited
from toolgate.conversation.events import Usage
from toolgate.engine.run_limits import Price
from toolgate.http.application import AdmittedHttpRequest, Handler, HttpRoute
from toolgate.http.exchange import Header, HttpExchange
from toolgate.limits import Budgets, Counters, KeyBudget, KeyLimits, RateLimitReservation, RateLimitResult
from toolgate.limits.local_budgets import BudgetReservation
from toolgate.limits.prices import cost_of
from toolgate.limits.request_token_estimate import RequestTokenEstimate, estimate_cost
from toolgate.limits.sliding_window import SlidingWindow
from toolgate.telemetry.request_log import RequestRecord


class RequestPermit:
    """What is reserved for one request; it must be settled, whatever becomes of the request."""

    __slots__ = (
        "_budget",
        "_budget_kept",
        "_budgets",
        "_charged",
        "_counted_tokens",
        "_counters",
        "_reservation",
        "_used",
        "_used_tokens",
    )

    def __init__(
        self, counters: Counters, budgets: Budgets, reservation: RateLimitReservation, budget: BudgetReservation | None
    ) -> None:
        self._counters = counters
        self._budgets = budgets
        self._reservation = reservation
        self._budget = budget
        self._budget_kept = False
        self._used = 0.0
        self._charged = 0.0  # the part of it that was spent already
        self._used_tokens = 0
        self._counted_tokens = 0  # the part of them that was counted already

    def keep_budget(self) -> BudgetReservation | None:
        """Return the reservation of a budget, for work that continues; the request itself then costs nothing."""
        budget, self._budget, self._budget_kept = self._budget, None, True
        return budget

    @property
    def charged(self) -> float:
        """The part of the request's cost that was spent already."""
        return self._charged

    def charge(self, cost: float) -> None:
        """Add the cost of a step: the reservation covers it for now, and what exceeds that is spent at once.

        The reservation is released in the same transaction that adds the cost, so that no node ever sees neither.
        """
        if self._budget_kept:
            return
        self._used += cost
        excess = self._used - (self._budget.amount if self._budget is not None else 0.0) - self._charged
        if excess > 0:
            self._charged += excess
            self._budgets.spend(self._reservation.key, excess)

    def count_tokens(self, tokens: int) -> None:
        """Add the tokens of a step: those that exceed the reservation are counted at once."""
        if self._budget_kept:
            return
        self._used_tokens += tokens
        excess = self._used_tokens - self._reservation.tokens - self._counted_tokens
        if excess > 0:
            self._counted_tokens += excess
            self._counters.charge(self._reservation.key, excess)

    def settle(self, usage: Usage | None, cost: float) -> None:
        """Count what the ended request used, and release the rest; a second time does nothing."""
        if self._reservation.settled:
            return
        # What exceeded the reservation was counted, and spent, at the end of its step.
        self._counters.settle(self._reservation, max(0, _tokens(usage) - self._counted_tokens))
        if self._charged:
            # `spend` has seen this cost in pieces only, and the next request must reserve as much as all of it.
            self._budgets.note_cost(self._reservation.key, cost)
        left = max(0.0, cost - self._charged)
        if self._budget is not None:
            self._budgets.settle(self._budget, left)
        elif not self._budget_kept:
            self._budgets.spend(self._reservation.key, left)


class AdmissionControl:
    """The limits of a configuration's keys; counters and budgets outlive it."""

    def __init__(
        self,
        limits: Mapping[str, KeyLimits],
        counters: Counters,
        budgets: Budgets,
        price_of: Callable[[str], Price],
        highest: Price = Price(),  # noqa: B008  # an immutable value
        reservation_price_of: Callable[[str], Price] | None = None,
    ) -> None:
        """`limits` are by the names of keys; `price_of` finds a model's price, `highest` is that of an unknown model.

        `reservation_price_of` finds the highest price at which a request for a model may be answered by fallbacks.
        """
        self.set_limits(limits)
        self._counters = counters
        self._budgets = budgets
        self._price_of = price_of
        self._highest = highest
        self._reservation_price_of = reservation_price_of or price_of
        self._permits: dict[str, RequestPermit] = {}

    def set_limits(self, limits: Mapping[str, KeyLimits]) -> None:
        """Replace the limits, by the names of keys; what was counted stays."""
        # A key whose limits are all 0 is left out, so that its requests pass after one look-up.
        self._limits = {name: one for name, one in limits.items() if one}

    def wrap(self, endpoints: Sequence[HttpRoute]) -> list[HttpRoute]:
        """Return the endpoints, with limits around those that use a model or a tool."""
        # `/mcp` runs the tools that its clients call, without a model.
        limited = [one.method == "POST" and (one.scope == "chat" or one.path == "/mcp") for one in endpoints]
        return [self._wrap(one) if has else one for one, has in zip(endpoints, limited, strict=True)]

    async def admit(
        self, caller: str, limits: KeyLimits, estimate: RequestTokenEstimate, exchange: HttpExchange
    ) -> RequestPermit:
        """Reserve what a request may use, or raise RateLimited; the response's headers will show the limits."""
        usage = estimate.estimate
        budget = await self._reserve_budget(caller, limits.budget, estimate, exchange) if limits.budget else None
        try:
            result = await self._counters.reserve(caller, limits, usage.input + usage.output)
            exchange.extra_headers += _rate_limit_headers(result, exchange)
            if result.reservation is None:
                limit, unit = {
                    "requests": (limits.requests_per_minute, "requests per minute"),
                    "tokens": (limits.tokens_per_minute, "tokens per minute"),
                    "concurrency": (limits.concurrency, "requests at a time"),
                }[result.refused or "requests"]
                wait = max(1, math.ceil(result.retry_after))
                raise RateLimited(
                    f"This key's limit of {limit} {unit} is reached; try again in {wait} s.", retry_after=wait
                )
        except BaseException:  # also a cancellation: or the amount would stay reserved
            if budget is not None:
                self._budgets.settle(budget, 0.0)
            raise
        return RequestPermit(self._counters, self._budgets, result.reservation, budget)

    def keep_reservation(self, request_id: str) -> BudgetReservation | None:
        """Return the reservation of a request that continues in the background, to be settled by `charge` alone."""
        permit = self._permits.get(request_id)
        return permit.keep_budget() if permit else None

    def stop_run_at_limits(self, record: RequestRecord, charged: Callable[[], float] = lambda: 0.0) -> None:
        """Let a run of tools that this request starts go on only while its key's budget and its tokens per minute last.

        `charged` returns the part of its cost that was spent already. Of the tokens only its own are looked at.
        """
        tally, window = record.tally, SlidingWindow()
        counted = _tokens(tally.usage)

        def used_up() -> str | None:
            nonlocal counted
            limits = self._limits.get(record.caller)
            if limits is None:
                return None
            now, tokens = time.monotonic_ns(), _tokens(tally.usage)
            # The tally has the sum of the whole run; the window gets what is new since the last round.
            window.slide(now)
            window.add(now, tokens - counted)
            counted = tokens
            if limits.tokens_per_minute and window.used >= limits.tokens_per_minute:
                return "this run has used the tokens per minute of its key"
            if limits.budget is None:
                return None
            cost = sum([self._price_of(model or record.model).of(usage) for model, usage in tally.by_model.items()])
            # Up to its reservation, a request is charged at its end: its cost is added, less what was charged already.
            spent = self._budgets.spent(record.caller, limits.budget.period) + cost - charged()
            return "the budget of this key is used up" if spent >= limits.budget.amount else None

        tally.used_up = used_up

    def charge(self, record: RequestRecord, held: BudgetReservation | None = None, unknown: bool = False) -> None:
        """Count what work used that continued after its request, and settle its reservation.

        If part of its usage is `unknown`, at least the reserved amount is charged.
        """
        usage, limits = record.usage, self._limits.get(record.caller)
        cost = cost_of(record, self._price_of)
        if unknown and held is not None:
            cost = max(cost, held.amount)
        if held is not None:
            self._budgets.settle(held, cost)
        if usage is None or limits is None:
            return
        if limits.tokens_per_minute:
            self._counters.charge(record.caller, usage.input + usage.output)
        if held is None:
            self._budgets.spend(record.caller, cost)

    def _wrap(self, endpoint: HttpRoute) -> HttpRoute:
        handler = endpoint.handler

        # Not async: a request without limits would pay for one more coroutine.
        def handle(call: AdmittedHttpRequest) -> Awaitable[None]:
            return self._handle_limited(call, handler) if call.caller.name in self._limits else handler(call)

        # The OpenAPI document shows it as the summary of the endpoint.
        handle.__doc__ = handler.__doc__
        return replace(endpoint, handler=handle)

    async def _handle_limited(self, call: AdmittedHttpRequest, handler: Handler) -> None:
        limits = self._limits[call.caller.name]
        # The body is searched for the model and `max_tokens` only where tokens or money are limited.
        estimate = await estimate_cost(call.exchange, whole=bool(limits.tokens_per_minute or limits.budget))
        # With the limits of its beginning: an admin may have taken them away while the body came.
        permit = await self.admit(call.caller.name, limits, estimate, call.exchange)
        record = call.record
        # The handler of a background response asks for it by this id (`keep_reservation`).
        self._permits[record.request_id] = permit

        def count(usage: Usage, model: str) -> None:
            if limits.tokens_per_minute:
                permit.count_tokens(usage.input + usage.output)
            if limits.budget:
                permit.charge(self._price_of(model or record.model).of(usage))

        if limits.tokens_per_minute or limits.budget:
            record.tally.listener = count
            self.stop_run_at_limits(record, lambda: permit.charged)
        try:
            await handler(call)
        finally:
            del self._permits[record.request_id]
            permit.settle(record.usage, cost_of(record, self._price_of))

    async def _reserve_budget(
        self, caller: str, budget: KeyBudget, estimate: RequestTokenEstimate, exchange: HttpExchange
    ) -> BudgetReservation:
        price = self._reservation_price_of(estimate.model) if estimate.model else self._highest
        reservation = await self._budgets.reserve(caller, budget, price.of(estimate.estimate))
        if reservation is not None:
            return reservation
        if self._budgets.spent(caller, budget.period) < budget.amount:
            raise RateLimited(
                "What is left of this key's budget is reserved for running requests; try again when they are done.",
                retry_after=1,
            )
        # OpenAI's and Anthropic's SDKs retry a 429 unless this header forbids it.
        exchange.extra_headers.append((b"x-should-retry", b"false"))
        renews = self._budgets.renews_in(budget)
        span = {"day": "for today", "month": "for this month", "total": "altogether"}[budget.period]
        raise RateLimited(
            f"This key's budget of {budget.amount:g} {span} is used up.",
            code="insufficient_quota",
            retry_after=None if renews is None else math.ceil(renews),
        )


def _tokens(usage: Usage | None) -> int:
    return usage.input + usage.output if usage else 0


def _rate_limit_headers(result: RateLimitResult, exchange: HttpExchange) -> list[Header]:
    """Encode the state of the limits: Anthropic's headers for Anthropic's clients, OpenAI's for all others."""
    # Anthropic's SDKs send the header `anthropic-version` with every request.
    anthropic = exchange.path.startswith("/v1/messages") or b"anthropic-version" in exchange.named
    headers: list[Header] = []
    for kind, state in (("requests", result.requests), ("tokens", result.tokens)):
        if state is None:
            continue
        if anthropic:
            form = f"anthropic-ratelimit-{kind}-{{}}"
            reset = f"{datetime.now(UTC) + timedelta(seconds=math.ceil(state.reset)):%Y-%m-%dT%H:%M:%SZ}"
        else:
            form = f"x-ratelimit-{{}}-{kind}"
            # OpenAI's form of a duration: `120ms`, `6s`, `1m0s`.
            whole = math.ceil(state.reset)
            reset = f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"
            if state.reset < 1:
                reset = f"{math.ceil(state.reset * 1000)}ms"
        fields = {"limit": str(state.limit), "remaining": str(state.remaining), "reset": reset}
        headers += [(form.format(name).encode(), value.encode()) for name, value in fields.items()]
    return headers
