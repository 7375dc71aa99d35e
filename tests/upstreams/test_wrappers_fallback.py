"""Asking somebody else: chains and balancing (requirement U8)."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstreams.wrapping import REQUEST, Always, Clock, RelayableAnswer, down, read
from toolgate.conversation.errors import Garbled, InvalidRequest, Overloaded, Rejected, TimedOut, Unavailable
from toolgate.conversation.message import Text
from toolgate.testing import ScriptedModel
from toolgate.upstreams.wrappers import Balanced, Breaker, Deployment, Fallback


def too_long():
    return Rejected("Too many tokens.", code="context_length_exceeded")


async def test_the_first_model_that_answers_is_the_last_one_asked():
    first, second = ScriptedModel(["hi"]), ScriptedModel(["unwanted"])
    answer = await Fallback([first, second]).ask(REQUEST)
    assert answer is first.answers[0]
    assert second.requests == []


@pytest.mark.parametrize("fault", [down(), TimedOut("silent"), Garbled("an HTML page"), Overloaded("full")])
async def test_the_next_model_answers_when_one_cannot_and_a_warning_says_so_faults_U1_and_U6(fault):
    answer = await Fallback([ScriptedModel([fault]), ScriptedModel(["hi"], upstream="second")]).ask(REQUEST)
    assert answer.upstream == "second"
    assert answer.warnings == (f"second answered after 1 before it had failed ({fault.code})",)
    assert len(await read(answer)) > 2


async def test_an_answer_that_was_fallen_back_to_can_still_be_relayed():
    answer = await Fallback([Always(down()), Always(RelayableAnswer())]).ask(REQUEST)
    assert answer.dialect == "some_dialect"
    assert [frame async for frame in answer.retell("reply")] == [b"one", b"two"]


@pytest.mark.parametrize(
    "fault", [Rejected("no such parameter"), too_long(), InvalidRequest("bad"), ValueError("a bug")]
)
async def test_a_refused_request_is_not_tried_elsewhere(fault):
    second = ScriptedModel(["unwanted"])
    with pytest.raises(type(fault)):
        await Fallback([Always(fault), second]).ask(REQUEST)
    assert second.requests == []


async def test_a_request_too_long_for_one_model_may_go_to_the_next_if_configured():
    chain = Fallback([Always(too_long()), ScriptedModel(["I have room."])], when_too_long=True)
    assert "context_length_exceeded" in (await chain.ask(REQUEST)).warnings[0]
    with pytest.raises(Rejected, match="no such"):
        await Fallback([Always(Rejected("no such parameter")), ScriptedModel(["hi"])], when_too_long=True).ask(REQUEST)


async def test_when_all_fail_the_last_fault_says_how_many_were_tried():
    last = TimedOut("It fell silent.")
    last.upstream_status = 504
    with pytest.raises(TimedOut, match=r"None of the 3 models that were tried answered.*fell silent") as raised:
        await Fallback([Always(down(30)), Always(down(5)), Always(last)]).ask(REQUEST)
    assert (raised.value.status, raised.value.code, raised.value.upstream_status) == (504, "upstream_timeout", 504)
    assert raised.value.retry_after == 5
    assert raised.value.__cause__ is last


async def test_a_chain_of_one_raises_the_fault_as_it_is():
    fault = down()
    with pytest.raises(Unavailable) as raised:
        await Fallback([Always(fault)]).ask(REQUEST)
    assert raised.value is fault
    assert raised.value.__cause__ is None


async def test_nothing_falls_back_once_the_first_piece_has_arrived_field_G6():
    second = ScriptedModel(["A second answer."])
    answer = await Fallback([ScriptedModel([[Text("Half"), down()]]), second]).ask(REQUEST)
    with pytest.raises(Unavailable):
        await read(answer)
    assert second.requests == []


async def test_a_client_that_leaves_is_no_reason_to_ask_the_next():
    second = ScriptedModel(["unwanted"])

    async def silent(request):
        await asyncio.Event().wait()

    asking = asyncio.create_task(Fallback([ScriptedModel([silent]), second]).ask(REQUEST))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert second.requests == []


async def names(balanced, rounds):
    return [(await balanced.ask(REQUEST)).upstream for _ in range(rounds)]


def named(name, **fields):
    answer = RelayableAnswer()
    answer.upstream = name
    return Deployment(Always(answer), **fields)


async def test_requests_are_shared_smoothly_by_weight():
    balanced = Balanced([named("a", weight=5), named("b"), named("c")])
    assert "".join(await names(balanced, 7)) == "aabacaa"


@given(st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_every_round_gives_each_deployment_exactly_its_weight(weights):
    balanced = Balanced([named(str(place), weight=weight) for place, weight in enumerate(weights)])
    for _ in range(2):
        shares = Counter(asyncio.run(names(balanced, sum(weights))))
        assert [shares[str(place)] for place in range(len(weights))] == weights


async def test_a_failure_moves_on_to_the_next_deployment_fault_U1():
    broken = Deployment(Always(down()), weight=3)
    balanced = Balanced([broken, named("b")])
    assert await names(balanced, 8) == ["b"] * 8
    assert broken.model.asked == 6


async def test_a_deployment_with_an_open_circuit_is_passed_over_until_a_probe_is_due():
    clock, model = Clock(), Always(down())
    breaker = Breaker(model, failures=2, cooldown=10, clock=clock)
    balanced = Balanced([Deployment(breaker, weight=9, breaker=breaker), named("b")])
    assert await names(balanced, 20) == ["b"] * 20
    assert model.asked == 2
    clock.now += 10
    assert await names(balanced, 20) == ["b"] * 20
    assert model.asked == 3
    passed_over = await balanced.ask(REQUEST)
    assert passed_over.warnings == RelayableAnswer.warnings


async def test_when_nobody_is_well_the_breakers_say_when_to_come_back():
    clock = Clock()
    breakers = [Breaker(Always(down()), failures=1, cooldown=seconds, clock=clock) for seconds in (30, 10)]
    balanced = Balanced([Deployment(breaker, breaker=breaker) for breaker in breakers])
    with pytest.raises(Unavailable):
        await balanced.ask(REQUEST)
    with pytest.raises(Unavailable) as raised:
        await balanced.ask(REQUEST)
    assert (raised.value.code, raised.value.retry_after) == ("circuit_open", 10)
