"""Asking the same upstream again (spec: U8; fault: L5)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.upstreams.wrapping import REQUEST, Always, Clock, down, read
from toolgate.conversation.errors import (
    GatewayOverloaded,
    InvalidUpstreamAnswer,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from toolgate.conversation.events import PartEnd
from toolgate.conversation.message import Text
from toolgate.engine.ports import Model
from toolgate.testing import ScriptedModel
from toolgate.upstreams.wrappers import RetryBudget, RetryingModel


class Waits(list[float]):
    """Waits that are noted instead of waited."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def retrying(
    model: Model,
    waits: Callable[[float], Awaitable[None]],
    chance: float = 1.0,
    budget: RetryBudget | None = None,
    **options: Any,
) -> RetryingModel:
    return RetryingModel(model, budget or RetryBudget(floor=100), sleep=waits, chance=lambda: chance, **options)


async def test_an_upstream_that_fails_before_its_first_piece_is_asked_again_fault_U7() -> None:
    model, waits = ScriptedModel([down(), down(), "Here I am."]), Waits()
    events = await read(await retrying(model, waits).ask(REQUEST))
    assert events[-2] == PartEnd(Text("Here I am."))
    assert len(model.requests) == 3


async def test_the_last_fault_is_raised_when_the_attempts_are_used_up_fault_U7() -> None:
    last = UpstreamUnavailable("Still down.")
    model = ScriptedModel([down(), down(), last])
    with pytest.raises(UpstreamUnavailable) as raised:
        await retrying(model, Waits()).ask(REQUEST)
    assert raised.value is last
    assert len(model.requests) == 3


async def test_nothing_is_asked_again_once_the_first_piece_has_arrived_field_G6() -> None:
    model, waits = ScriptedModel([[Text("Half an"), UpstreamUnavailable("lost")], "A second answer."]), Waits()
    answer = await retrying(model, waits).ask(REQUEST)
    with pytest.raises(UpstreamUnavailable, match="lost"):
        await read(answer)
    assert len(model.requests) == 1
    assert waits == []


@pytest.mark.parametrize(
    "fault",
    [
        UpstreamTimeout("no first byte"),
        InvalidUpstreamAnswer("an HTML page"),
        UpstreamRejected("bad"),
        GatewayOverloaded("full"),
    ],
)
async def test_what_may_have_been_paid_for_or_cannot_be_cured_is_not_asked_again_field_G7(fault: Exception) -> None:
    model = ScriptedModel([fault, "paid twice"])
    with pytest.raises(type(fault)):
        await retrying(model, Waits()).ask(REQUEST)
    assert len(model.requests) == 1


@pytest.mark.parametrize("code", ["upstream_auth", "upstream_redirect", "circuit_open"])
async def test_what_is_still_so_a_second_later_is_not_asked_again(code: str) -> None:
    model = ScriptedModel([down(code=code), "never"])
    with pytest.raises(UpstreamUnavailable):
        await retrying(model, Waits()).ask(REQUEST)


@pytest.mark.parametrize("fault", [UpstreamTimeout("no first byte"), InvalidUpstreamAnswer("an HTML page")])
async def test_the_operator_may_choose_to_pay_twice(fault: Exception) -> None:
    answer = await retrying(ScriptedModel([fault, "paid twice"]), Waits(), unsafe=True).ask(REQUEST)
    assert len(await read(answer)) > 2


async def test_waits_double_up_to_the_longest_and_are_drawn_by_chance() -> None:
    waits = Waits()
    with pytest.raises(UpstreamUnavailable):
        await retrying(Always(down()), waits, attempts=8).ask(REQUEST)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    waits.clear()
    with pytest.raises(UpstreamUnavailable):
        await retrying(Always(down()), waits, chance=0.0).ask(REQUEST)
    assert waits == [0.0, 0.0]


async def test_a_wait_that_the_upstream_asks_for_is_kept_and_spread_fault_U6() -> None:
    waits = Waits()
    await retrying(ScriptedModel([down(retry_after=7), "ok"]), waits).ask(REQUEST)
    assert waits == [7.25]


async def test_a_wait_beyond_the_limit_is_not_retried_here_fault_U6() -> None:
    waits = Waits()
    model = ScriptedModel([down(retry_after=3600), "late"])
    with pytest.raises(UpstreamUnavailable) as raised:
        await retrying(model, waits).ask(REQUEST)
    assert raised.value.retry_after == 3600
    assert waits == []


async def test_a_storm_of_failures_makes_at_most_a_fifth_more_load_faults_U7_and_L5() -> None:
    model, budget = Always(down()), RetryBudget(clock=Clock())
    for _ in range(1000):
        with pytest.raises(UpstreamUnavailable):
            await retrying(model, Waits(), budget=budget).ask(REQUEST)
    assert 1150 < model.asked <= 1000 * 1.2 + 3


def test_a_good_time_saves_up_only_so_many_retries() -> None:
    budget = RetryBudget(most=20, clock=Clock())
    for _ in range(10_000):
        budget.deposit()
    assert sum([budget.withdraw() for _ in range(100)]) == 20


def test_the_floor_comes_back_with_time() -> None:
    clock = Clock()
    budget = RetryBudget(floor=3, per=10, clock=clock)
    assert [budget.withdraw() for _ in range(4)] == [True, True, True, False]
    clock.now += 5
    assert [budget.withdraw() for _ in range(2)] == [True, False]
    clock.now += 1000
    assert [budget.withdraw() for _ in range(4)] == [True, True, True, False]


async def test_a_request_cancelled_during_the_wait_is_not_sent_again() -> None:
    model, waiting = ScriptedModel([down(), "unwanted"]), asyncio.Event()

    async def for_ever(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    asking = asyncio.create_task(retrying(model, for_ever).ask(REQUEST))
    await waiting.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert len(model.requests) == 1
