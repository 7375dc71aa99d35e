"""The circuit of one deployment (spec: U8)."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.typed import given, of
from tests.upstreams.wrapping import (
    REQUEST,
    Always,
    Clock,
    PendingModel,
    RelayableAnswer,
    down,
    read,
    relayable,
    settle,
)
from toolgate.conversation.errors import (
    GatewayOverloaded,
    InvalidUpstreamAnswer,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from toolgate.conversation.events import StepEnd, StepStart
from toolgate.conversation.message import Text
from toolgate.engine.ports import ModelStream
from toolgate.testing import Entry, ScriptedModel, scripted_answer
from toolgate.upstreams.wrappers import CircuitBreaker


async def fail(breaker: CircuitBreaker, times: int = 1, fault: type[Exception] = UpstreamUnavailable) -> None:
    for _ in range(times):
        with pytest.raises(fault):
            await read(await breaker.ask(REQUEST))


async def opened(script: Sequence[Any], clock: Clock, **options: Any) -> tuple[CircuitBreaker, ScriptedModel]:
    """A breaker that two failures have opened, with the rest of the script to come."""
    model = ScriptedModel([down(), down(), *script])
    breaker = CircuitBreaker(model, failures=2, clock=clock, **options)
    await fail(breaker, 2)
    assert not breaker.ready
    return breaker, model


async def test_failures_in_a_row_open_the_circuit_and_nothing_is_sent_any_more_faults_U1_and_L5() -> None:
    clock, model = Clock(), Always(down())
    breaker = CircuitBreaker(model, clock=clock)
    await fail(breaker, 5)
    with pytest.raises(UpstreamUnavailable, match="another 10 s") as raised:
        await breaker.ask(REQUEST)
    assert (raised.value.status, raised.value.code, raised.value.retry_after) == (503, "circuit_open", 10)
    assert model.asked == 5


async def test_an_outage_is_reported_once_with_its_end() -> None:
    clock, reported = Clock(), list[str | None]()
    breaker, _ = await opened(
        [down(), "Well again.", "Still well.", down(), down()],
        clock,
        on_change=lambda fault: reported.append(fault and fault.code),
    )
    clock.now += 10
    await fail(breaker)
    clock.now += 20
    for _ in range(2):
        await read(await breaker.ask(REQUEST))
    assert reported == ["upstream_unavailable", None]
    await fail(breaker, 2)
    assert reported == ["upstream_unavailable", None, "upstream_unavailable"]


@pytest.mark.parametrize("fault", [UpstreamTimeout("silent"), InvalidUpstreamAnswer("an HTML page"), down()])
async def test_every_fault_of_the_upstream_counts(fault: Exception) -> None:
    breaker = CircuitBreaker(Always(fault), failures=2, clock=Clock())
    await fail(breaker, 2, type(fault))
    assert not breaker.ready


@pytest.mark.parametrize(
    "fault", [UpstreamRejected("bad request"), GatewayOverloaded("our own limit"), ValueError("our own bug")]
)
async def test_what_is_not_the_upstreams_fault_does_not_count(fault: Exception) -> None:
    breaker = CircuitBreaker(Always(fault), failures=2, clock=Clock())
    await fail(breaker, 10, type(fault))
    assert breaker.ready


async def test_a_client_that_leaves_does_not_count() -> None:
    breaker = CircuitBreaker(PendingModel(), failures=1, clock=Clock())
    asking = asyncio.create_task(breaker.ask(REQUEST))
    await settle()
    asking.cancel()
    await settle()
    assert breaker.ready


async def test_a_complete_answer_ends_the_row_and_a_mere_beginning_does_not() -> None:
    script: list[Entry] = [down(), "complete", down(), "left", down(), "never"]
    breaker = CircuitBreaker(ScriptedModel(script), failures=2, clock=Clock())
    await fail(breaker)
    await read(await breaker.ask(REQUEST))
    await fail(breaker)
    await (await breaker.ask(REQUEST)).aclose()
    assert breaker.ready
    await fail(breaker)
    assert not breaker.ready


async def test_answers_that_break_off_in_the_middle_count_too() -> None:
    breaker = CircuitBreaker(
        ScriptedModel([[Text("half"), InvalidUpstreamAnswer("cut")]] * 3), failures=3, clock=Clock()
    )
    await fail(breaker, 3, InvalidUpstreamAnswer)
    assert not breaker.ready


async def test_relayed_answers_that_break_off_count_too() -> None:
    breaker = CircuitBreaker(
        Always(RelayableAnswer(frames=(b"one", InvalidUpstreamAnswer("cut")))), failures=1, clock=Clock()
    )
    with pytest.raises(InvalidUpstreamAnswer):
        [frame async for frame in relayable(await breaker.ask(REQUEST)).relay_stream("reply")]
    assert not breaker.ready


async def test_a_share_of_failures_opens_the_circuit_though_never_in_a_row() -> None:
    script = [outcome for _ in range(5) for outcome in ("fine", down())]
    clock, model = Clock(), ScriptedModel([*script, down()])
    breaker = CircuitBreaker(model, rate=0.5, window=10, clock=clock)
    for outcome in script:
        assert breaker.ready
        if outcome == "fine":
            await read(await breaker.ask(REQUEST))
        else:
            await fail(breaker)
    assert not breaker.ready
    clock.now += 10
    await fail(breaker)
    assert not breaker.ready


async def test_one_probe_at_a_time_is_let_through_after_the_cooldown_fault_L5() -> None:
    clock = Clock()
    pending_model = PendingModel()
    breaker = CircuitBreaker(pending_model, failures=1, cooldown=10, clock=clock)
    failing = asyncio.create_task(breaker.ask(REQUEST))
    await settle()
    pending_model.pending[0].set_exception(down())
    await asyncio.wait([failing])
    assert isinstance(failing.exception(), UpstreamUnavailable)
    clock.now += 10
    assert breaker.ready
    probe = asyncio.create_task(breaker.ask(REQUEST))
    await settle()
    assert (breaker.ready, breaker.state) == (False, "probing")
    with pytest.raises(UpstreamUnavailable) as raised:
        await breaker.ask(REQUEST)
    assert raised.value.retry_after == 1
    assert len(pending_model.pending) == 1
    pending_model.pending[0].set_result(scripted_answer([StepStart(), StepEnd("stop")]))
    await probe
    assert breaker.ready


async def test_the_first_piece_of_a_probe_closes_the_circuit_on_trial_and_a_complete_answer_for_good() -> None:
    clock = Clock()
    breaker, _ = await opened(["probe", down(), "probe", down(), "fine"], clock, cooldown=10)
    clock.now += 10
    await breaker.ask(REQUEST)
    states: list[str] = [breaker.state]
    await fail(breaker)
    assert [*states, breaker.state] == ["closed", "open"]
    clock.now += 20
    await read(await breaker.ask(REQUEST))
    await fail(breaker)
    assert breaker.ready


async def test_the_cooldown_doubles_with_every_failed_probe_up_to_the_longest_and_is_forgotten_when_well() -> None:
    clock = Clock()
    breaker, _ = await opened([down()] * 4 + ["well", down(), down()], clock, cooldown=10, longest=60)
    for cooldown in (10, 20, 40, 60):
        clock.now += cooldown - 1
        assert not breaker.ready
        clock.now += 1
        await fail(breaker)
    clock.now += 60
    await read(await breaker.ask(REQUEST))
    await fail(breaker, 2)
    clock.now += 10
    assert breaker.ready


async def test_a_wait_that_the_upstream_asks_for_lengthens_the_cooldown_within_reason_fault_U6() -> None:
    clock = Clock()
    breaker = CircuitBreaker(ScriptedModel([down(retry_after=30), down(retry_after=3600)]), failures=1, clock=clock)
    await fail(breaker)
    clock.now += 29
    assert not breaker.ready
    clock.now += 1
    await fail(breaker)
    clock.now += 119
    assert not breaker.ready
    clock.now += 1
    assert breaker.ready


async def test_a_probe_that_is_refused_shows_that_the_upstream_is_well() -> None:
    clock = Clock()
    breaker, _ = await opened([UpstreamRejected("bad request"), "fine"], clock)
    clock.now += 10
    await fail(breaker, 1, UpstreamRejected)
    assert breaker.ready
    await read(await breaker.ask(REQUEST))


@pytest.mark.parametrize("fault", [GatewayOverloaded("our own limit"), ValueError("our own bug")])
async def test_a_probe_that_proves_nothing_leaves_its_place_to_the_next(fault: Exception) -> None:
    clock = Clock()
    breaker, model = await opened([fault, "fine"], clock)
    clock.now += 10
    await fail(breaker, 1, type(fault))
    await read(await breaker.ask(REQUEST))
    assert len(model.requests) == 4


async def test_answers_begun_before_the_circuit_opened_change_nothing_when_they_end() -> None:
    clock = Clock()
    old: list[Entry] = [[Text("half"), InvalidUpstreamAnswer("cut")], "fine"]
    model = ScriptedModel([*old, down(), "probe", "fine"])
    breaker = CircuitBreaker(model, failures=1, clock=clock)
    broken, fine = await breaker.ask(REQUEST), await breaker.ask(REQUEST)
    await fail(breaker)
    await read(fine)
    assert not breaker.ready
    clock.now += 10
    await breaker.ask(REQUEST)
    with pytest.raises(InvalidUpstreamAnswer):
        await read(broken)
    assert breaker.ready


async def try_to_read(answer: ModelStream) -> None:
    with contextlib.suppress(InvalidUpstreamAnswer):
        await read(answer)


class TheCircuitGuardsAndRecovers(RuleBasedStateMachine):
    """Questions begin, fail, break off and end in any order while time passes."""

    FAILURES, LONGEST = 3, 40

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock, self.pending_model = Clock(), PendingModel()
        self.breaker = CircuitBreaker(
            self.pending_model, failures=self.FAILURES, window=8, cooldown=10, longest=self.LONGEST, clock=self.clock
        )
        self.tasks: list[asyncio.Task[ModelStream]] = []
        self.answers: list[ModelStream] = []
        self.probes: set[asyncio.Future[ModelStream]] = set()

    def go_on(self) -> None:
        self.loop.run_until_complete(settle())
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled() and task.exception() is None:
                self.answers.append(task.result())

    @rule()
    def ask(self) -> None:
        ready, before, state = self.breaker.ready, len(self.pending_model.pending), self.breaker.state
        task = self.loop.create_task(self.breaker.ask(REQUEST))
        self.tasks.append(task)
        self.go_on()
        assert len(self.pending_model.pending) == before + ready
        if ready and state == "open":
            self.probes.add(self.pending_model.pending[-1])
        if not ready:
            refusal = of(UpstreamUnavailable, task.exception())
            assert refusal.code == "circuit_open"
            assert 1 <= given(refusal.retry_after) <= self.LONGEST

    @rule(seconds=st.sampled_from([1, 9, 10, 50]))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @precondition(lambda self: self.pending_model.pending)
    @rule(data=st.data(), outcome=st.sampled_from(["fine", "cut", "down", "rejected", "full"]))
    def begin(self, data: st.DataObject, outcome: str) -> None:
        was_ready = self.breaker.ready
        place = data.draw(st.sampled_from(self.pending_model.pending))
        faults = {"down": down(), "rejected": UpstreamRejected("bad"), "full": GatewayOverloaded("full")}
        if outcome in faults:
            place.set_exception(faults[outcome])
        else:
            ending = StepEnd("stop") if outcome == "fine" else InvalidUpstreamAnswer("cut")
            place.set_result(scripted_answer([StepStart(), ending]))
        self.go_on()
        if was_ready and outcome != "down":
            assert self.breaker.ready

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        was_ready = self.breaker.ready
        data.draw(st.sampled_from(self.tasks)).cancel()
        self.go_on()
        assert self.breaker.ready or not was_ready

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), leave=st.booleans())
    def end(self, data: st.DataObject, leave: bool) -> None:
        answer = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        self.loop.run_until_complete(answer.aclose() if leave else try_to_read(answer))

    @invariant()
    def at_most_one_probe_is_out(self) -> None:
        probes = [place for place in self.pending_model.pending if place in self.probes]
        assert len(probes) <= 1
        assert (self.breaker.state == "probing") == bool(probes)

    def teardown(self) -> None:
        """Whatever happened: an upstream that is well again is asked again before long."""
        for task in self.tasks:
            task.cancel()
        self.loop.run_until_complete(settle())
        self.clock.now += self.LONGEST
        ready = self.breaker.ready
        task = self.loop.create_task(self.breaker.ask(REQUEST))
        self.loop.run_until_complete(settle())
        for place in self.pending_model.pending:
            place.set_result(scripted_answer([StepStart(), StepEnd("stop")]))
        self.loop.run_until_complete(settle())
        self.loop.run_until_complete(read(task.result()))
        self.loop.close()
        assert ready
        assert self.breaker.ready


TestCircuit = TheCircuitGuardsAndRecovers.TestCase
TestCircuit.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
