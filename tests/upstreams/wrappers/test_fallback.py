"""Asking somebody else: chains and balancing (spec: U8)."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstreams.wrapping import REQUEST, Always, Clock, RelayableAnswer, down, read, relayable
from toolgate.conversation.errors import (
    GatewayOverloaded,
    InvalidRequest,
    InvalidUpstreamAnswer,
    ToolgateError,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.testing import ScriptedModel
from toolgate.upstreams.wrappers import BalancedModel, CircuitBreaker, Deployment, FallbackModel


def too_long() -> UpstreamRejected:
    return UpstreamRejected("Too many tokens.", code="context_length_exceeded")


async def test_the_first_model_that_answers_is_the_last_one_asked() -> None:
    first, second = ScriptedModel(["hi"]), ScriptedModel(["unwanted"])
    answer = await FallbackModel([first, second]).ask(REQUEST)
    assert answer is first.answers[0]
    assert second.requests == []


@pytest.mark.parametrize(
    "fault", [down(), UpstreamTimeout("silent"), InvalidUpstreamAnswer("an HTML page"), GatewayOverloaded("full")]
)
async def test_the_next_model_answers_when_one_cannot_with_a_warning_faults_U1_and_U6(
    fault: ToolgateError,
) -> None:
    models = [ScriptedModel([fault]), ScriptedModel(["hi"], upstream="second")]
    answer = await FallbackModel(models, ["near", "far"]).ask(REQUEST)
    assert answer.upstream == "second"
    assert answer.warnings == (f"near failed ({fault.code}); far answered",)
    assert len(await read(answer)) > 2


async def test_an_answer_that_was_fallen_back_to_can_still_be_relayed() -> None:
    answer = await FallbackModel([Always(down()), Always(RelayableAnswer())]).ask(REQUEST)
    assert answer.dialect == "some_dialect"
    assert [frame async for frame in relayable(answer).relay_stream("reply")] == [b"one", b"two"]


@pytest.mark.parametrize(
    "fault", [UpstreamRejected("no such parameter"), too_long(), InvalidRequest("bad"), ValueError("a bug")]
)
async def test_a_refused_request_is_not_tried_elsewhere(fault: Exception) -> None:
    second = ScriptedModel(["unwanted"])
    with pytest.raises(type(fault)):
        await FallbackModel([Always(fault), second]).ask(REQUEST)
    assert second.requests == []


async def test_a_model_that_an_upstream_does_not_have_is_asked_for_elsewhere() -> None:
    missing = UpstreamRejected("The model does not exist.", code="model_not_found", status=404)
    answer = await FallbackModel([Always(missing), ScriptedModel(["hi"])], ["gpt", "claude"]).ask(REQUEST)
    assert answer.warnings == ("gpt failed (model_not_found); claude answered",)
    with pytest.raises(UpstreamRejected, match="None of the 2 models") as raised:
        await FallbackModel([Always(missing), Always(missing)]).ask(REQUEST)
    assert raised.value.status == 404


async def test_a_request_too_long_for_one_model_may_go_to_the_next_if_configured() -> None:
    chain = FallbackModel([Always(too_long()), ScriptedModel(["I have room."])], when_too_long=True)
    assert "context_length_exceeded" in (await chain.ask(REQUEST)).warnings[0]
    with pytest.raises(UpstreamRejected, match="no such"):
        await FallbackModel(
            [Always(UpstreamRejected("no such parameter")), ScriptedModel(["hi"])], when_too_long=True
        ).ask(REQUEST)


async def test_when_all_fail_the_last_fault_has_the_number_of_tried_models() -> None:
    last = UpstreamTimeout("It fell silent.")
    last.upstream_status = 504
    with pytest.raises(UpstreamTimeout, match=r"None of the 3 models that were tried answered.*fell silent") as raised:
        await FallbackModel([Always(down(30)), Always(down(5)), Always(last)]).ask(REQUEST)
    assert (raised.value.status, raised.value.code, raised.value.upstream_status) == (504, "upstream_timeout", 504)
    assert raised.value.retry_after == 5
    assert raised.value.__cause__ is last


async def test_a_chain_of_one_raises_the_fault_as_it_is() -> None:
    fault = down()
    with pytest.raises(UpstreamUnavailable) as raised:
        await FallbackModel([Always(fault)]).ask(REQUEST)
    assert raised.value is fault
    assert raised.value.__cause__ is None


async def test_nothing_falls_back_once_the_first_piece_has_arrived_field_G6() -> None:
    second = ScriptedModel(["A second answer."])
    answer = await FallbackModel([ScriptedModel([[Text("Half"), down()]]), second]).ask(REQUEST)
    with pytest.raises(UpstreamUnavailable):
        await read(answer)
    assert second.requests == []


async def test_a_client_that_leaves_is_no_reason_to_ask_the_next() -> None:
    second = ScriptedModel(["unwanted"])

    async def silent(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "never"

    asking = asyncio.create_task(FallbackModel([ScriptedModel([silent]), second]).ask(REQUEST))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert second.requests == []


async def names(balanced: BalancedModel, rounds: int) -> list[str]:
    return [(await balanced.ask(REQUEST)).upstream for _ in range(rounds)]


def named(name: str, **fields: Any) -> Deployment:
    answer = RelayableAnswer()
    answer.upstream = name
    return Deployment(Always(answer), **fields)


async def test_requests_are_shared_smoothly_by_weight() -> None:
    balanced = BalancedModel([named("a", weight=5), named("b"), named("c")])
    assert "".join(await names(balanced, 7)) == "aabacaa"


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_every_round_gives_each_deployment_exactly_its_weight(weights: list[int]) -> None:
    balanced = BalancedModel([named(str(place), weight=weight) for place, weight in enumerate(weights)])
    for _ in range(2):
        shares = Counter(asyncio.run(names(balanced, sum(weights))))
        assert [shares[str(place)] for place in range(len(weights))] == weights


async def test_a_failure_moves_on_to_the_next_deployment_fault_U1() -> None:
    broken = Always(down())
    balanced = BalancedModel([Deployment(broken, weight=3), named("b")])
    assert await names(balanced, 8) == ["b"] * 8
    assert broken.asked == 6


async def test_a_deployment_with_an_open_circuit_is_passed_over_until_a_probe_is_due() -> None:
    clock, model = Clock(), Always(down())
    breaker = CircuitBreaker(model, failures=2, cooldown=10, clock=clock)
    balanced = BalancedModel([Deployment(breaker, weight=9, breaker=breaker), named("b")])
    assert await names(balanced, 20) == ["b"] * 20
    assert model.asked == 2
    clock.now += 10
    assert await names(balanced, 20) == ["b"] * 20
    assert model.asked == 3
    passed_over = await balanced.ask(REQUEST)
    assert passed_over.warnings == RelayableAnswer.warnings


async def test_when_no_deployment_is_ready_the_error_has_retry_after() -> None:
    clock = Clock()
    breakers = [CircuitBreaker(Always(down()), failures=1, cooldown=seconds, clock=clock) for seconds in (30, 10)]
    balanced = BalancedModel([Deployment(breaker, breaker=breaker) for breaker in breakers])
    with pytest.raises(UpstreamUnavailable):
        await balanced.ask(REQUEST)
    with pytest.raises(UpstreamUnavailable) as raised:
        await balanced.ask(REQUEST)
    assert (raised.value.code, raised.value.retry_after) == ("circuit_open", 10)
