"""Limits of keys at the HTTP edge: who is let in, what the headers say of it, and what a request has cost at its end.

A wrapper around handlers. A key without limits costs one look-up.
Knows headers, usage and prices; how things are counted is in `toolgate.limits`.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from toolgate.conversation.errors import RateLimited
from toolgate.conversation.events import Usage
from toolgate.engine.limits import Price
from toolgate.limits import Budget, Budgets, Counters, Hold, KeyLimits, Meter, Taken
from toolgate.limits.purse import Held
from toolgate.server.app import Call, Endpoint, Handler
from toolgate.server.callers.asked import Asked, read_asked
from toolgate.server.exchange import Exchange, Header
from toolgate.telemetry.traced import RequestRecord

_SAID = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrency": "requests at a time",
}


class Permit:
    """What one request has taken; it must be settled, whatever becomes of the request."""

    __slots__ = (
        "_charged",
        "_counted_tokens",
        "_counters",
        "_held",
        "_hold",
        "_parted",
        "_purse",
        "_used",
        "_used_tokens",
    )

    def __init__(self, counters: Counters, purse: Budgets, hold: Hold, held: Held | None) -> None:
        self._counters = counters
        self._purse = purse
        self._hold = hold
        self._held = held
        self._parted = False
        self._used = 0.0
        self._charged = 0.0  # what was spent of it already
        self._used_tokens = 0
        self._counted_tokens = 0  # those that were counted already

    def part_with(self) -> Held | None:
        """What is held of a budget, for whoever makes the answer later; the request itself then costs nothing."""
        held, self._held, self._parted = self._held, None, True
        return held

    def charge(self, cost: float) -> None:
        """A step of the request has cost so much: what it holds covers that for now, and what goes beyond counts at once.

        What is held is given back in the same transaction that adds its cost, so that no other node ever sees neither.
        """
        if self._parted:
            return
        self._used += cost
        beyond = self._used - (self._held.amount if self._held is not None else 0.0) - self._charged
        if beyond > 0:
            self._charged += beyond
            self._purse.spend(self._hold.key, beyond)

    def count_tokens(self, tokens: int) -> None:
        """A step of the request used so many tokens: those beyond what was taken at its start count at once."""
        if self._parted:
            return
        self._used_tokens += tokens
        beyond = self._used_tokens - self._hold.tokens - self._counted_tokens
        if beyond > 0:
            self._counted_tokens += beyond
            self._counters.charge(self._hold.key, beyond)

    def settle(self, usage: Usage | None, cost: float) -> None:
        """The request is over: what it used is counted and the rest given back; a second time does nothing."""
        if self._hold.settled:
            return
        tokens = usage.input + usage.output if usage else 0
        self._counters.settle(self._hold, max(0, tokens - self._counted_tokens))
        if self._charged:
            self._purse.note(self._hold.key, cost)
        left = max(0.0, cost - self._charged)
        if self._held is not None:
            self._purse.settle(self._held, left)
        elif not self._parted:
            self._purse.spend(self._hold.key, left)


class Limits:
    """The limits of a configuration's keys; counters and purse outlive it."""

    def __init__(
        self,
        limits: Mapping[str, KeyLimits],
        counters: Counters,
        purse: Budgets,
        price_of: Callable[[str], Price],
        dearest: Price = Price(),  # noqa: B008  # an immutable value
    ) -> None:
        """`limits` by the names of keys; `price_of` a model by any of its names; `dearest` bounds what is not yet known."""
        self.renew(limits)
        self._counters = counters
        self._purse = purse
        self._price_of = price_of
        self._dearest = dearest
        self._permits: dict[str, Permit] = {}

    def renew(self, limits: Mapping[str, KeyLimits]) -> None:
        """From now on these are the limits, by the names of keys; what was counted stays."""
        self._limits = {name: one for name, one in limits.items() if one}

    def around(self, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """The endpoints, with limits around those that cost something; answering an approval never does."""
        return [self._around(one) if _costs(one) else one for one in endpoints]

    async def admit(self, caller: str, asked: Asked, exchange: Exchange) -> Permit:
        """Let a request in, or RateLimited; either way the answer's headers will say how the limits stand."""
        limits, estimate = self._limits[caller], asked.estimate
        held = await self._hold(caller, limits.budget, asked, exchange) if limits.budget else None
        try:
            taken = await self._counters.take(caller, limits, estimate.input + estimate.output)
            exchange.extra_headers += _headers(taken, exchange)
            if taken.hold is None:
                raise _refusal(taken, limits)
        except BaseException:
            if held is not None:
                self._purse.settle(held, 0.0)
            raise
        return Permit(self._counters, self._purse, taken.hold, held)

    def goes_on(self, request_id: str) -> Held | None:
        """This request's answer is made in the background: what it holds of a budget, to be kept until it is charged."""
        permit = self._permits.get(request_id)
        return permit.part_with() if permit else None

    def charge(self, record: RequestRecord, held: Held | None = None, unknown: bool = False) -> None:
        """Count what went on after its request was over, such as a response in the background, and what it held.

        Where part of its usage is `unknown`, no less is charged than it held back.
        """
        usage, limits = record.usage, self._limits.get(record.caller)
        cost = self._price_of(record.model).of(usage) if usage else 0.0
        if unknown and held is not None:
            cost = max(cost, held.amount)
        if held is not None:
            self._purse.settle(held, cost)
        if usage is None or limits is None:
            return
        if limits.tokens_per_minute:
            self._counters.charge(record.caller, usage.input + usage.output)
        if held is None:
            self._purse.spend(record.caller, cost)

    def _around(self, endpoint: Endpoint) -> Endpoint:
        handler = endpoint.handler

        def handle(call: Call) -> Awaitable[None]:
            return self._limited(call, handler) if call.caller.name in self._limits else handler(call)

        handle.__doc__ = handler.__doc__
        return replace(endpoint, handler=handle)

    async def _limited(self, call: Call, handler: Handler) -> None:
        limits = self._limits[call.caller.name]
        asked = await read_asked(call.exchange, whole=bool(limits.tokens_per_minute or limits.budget))
        permit = await self.admit(call.caller.name, asked, call.exchange)
        record = call.record
        self._permits[record.request_id] = permit

        def count(usage: Usage) -> None:
            if limits.tokens_per_minute:
                permit.count_tokens(usage.input + usage.output)
            if limits.budget:
                permit.charge(self._price_of(record.model).of(usage))

        if limits.tokens_per_minute or limits.budget:
            record.tally.listen(count)
        try:
            await handler(call)
        finally:
            del self._permits[record.request_id]
            permit.settle(record.usage, self._price_of(record.model).of(record.usage) if record.usage else 0.0)

    async def _hold(self, caller: str, budget: Budget, asked: Asked, exchange: Exchange) -> Held:
        price = self._price_of(asked.model) if asked.model else self._dearest
        held = await self._purse.take(caller, budget, price.of(asked.estimate))
        if held is not None:
            return held
        if self._purse.spent(caller, budget.period) < budget.amount:
            raise _held_by_others()
        exchange.extra_headers.append((b"x-should-retry", b"false"))
        raise _used_up(budget, self._purse.renews_in(budget))


def _costs(endpoint: Endpoint) -> bool:
    return endpoint.method == "POST" and (endpoint.scope == "chat" or endpoint.path == "/mcp")


def _refusal(taken: Taken, limits: KeyLimits) -> RateLimited:
    which = taken.refused or "requests"
    limit = {
        "requests": limits.requests_per_minute,
        "tokens": limits.tokens_per_minute,
        "concurrency": limits.concurrency,
    }[which]
    wait = max(1, math.ceil(taken.retry_after))
    return RateLimited(
        f"This key's limit of {limit} {_SAID[which]} is reached; try again in {wait} s.", retry_after=wait
    )


def _held_by_others() -> RateLimited:
    return RateLimited(
        "What is left of this key's budget is held by requests under way; try again when they are done.", retry_after=1
    )


def _used_up(budget: Budget, renews: float | None) -> RateLimited:
    span = {"day": "for today", "month": "for this month", "total": "altogether"}[budget.period]
    return RateLimited(
        f"This key's budget of {budget.amount:g} {span} is used up.",
        code="insufficient_quota",
        retry_after=None if renews is None else math.ceil(renews),
    )


def _headers(taken: Taken, exchange: Exchange) -> list[Header]:
    """How the limits stand, in the words of Anthropic to Anthropic's clients and of OpenAI to all others."""
    anthropic = exchange.path.startswith("/v1/messages") or b"anthropic-version" in exchange.named
    say = _anthropic if anthropic else _openai
    meters = (("requests", taken.requests), ("tokens", taken.tokens))
    return [header for what, meter in meters if meter for header in say(what, meter)]


def _openai(what: str, meter: Meter) -> list[Header]:
    said = {"limit": str(meter.limit), "remaining": str(meter.remaining), "reset": _duration(meter.reset)}
    return [(f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in said.items()]


def _anthropic(what: str, meter: Meter) -> list[Header]:
    reset = datetime.now(UTC) + timedelta(seconds=math.ceil(meter.reset))
    said = {"limit": str(meter.limit), "remaining": str(meter.remaining), "reset": f"{reset:%Y-%m-%dT%H:%M:%SZ}"}
    return [(f"anthropic-ratelimit-{what}-{name}".encode(), value.encode()) for name, value in said.items()]


def _duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: `120ms`, `6s`, `1m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60}s"
