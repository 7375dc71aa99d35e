"""The bulkhead of one deployment (spec: U8; fault: L4)."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.upstreams.wrapping import REQUEST, Always, PendingModel, RelayableAnswer, down, read, relayable, settle
from toolgate.conversation.errors import GatewayOverloaded, InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import StepEnd, StepStart
from toolgate.conversation.message import Text
from toolgate.engine.ports import ModelStream
from toolgate.testing import ScriptedModel, scripted_answer
from toolgate.upstreams.wrappers import ConcurrencyLimitedModel


async def test_a_slot_is_held_until_the_answer_is_read_to_its_end() -> None:
    limited = ConcurrencyLimitedModel(ScriptedModel(["one", "two"]), concurrent=1)
    answer = await limited.ask(REQUEST)
    with pytest.raises(GatewayOverloaded):
        await limited.ask(REQUEST)
    await read(answer)
    assert limited.busy == 0
    await limited.ask(REQUEST)


async def test_a_slot_is_freed_by_closing_and_only_once_fault_U11() -> None:
    limited = ConcurrencyLimitedModel(ScriptedModel(["one", "two"]), concurrent=2)
    answers = [await limited.ask(REQUEST), await limited.ask(REQUEST)]
    await answers[0].aclose()
    await answers[0].aclose()
    assert limited.busy == 1


async def test_a_slot_is_freed_when_the_answer_breaks_off() -> None:
    limited = ConcurrencyLimitedModel(ScriptedModel([[Text("half"), InvalidUpstreamAnswer("cut")]]), concurrent=1)
    with pytest.raises(InvalidUpstreamAnswer):
        await read(await limited.ask(REQUEST))
    assert limited.busy == 0


@pytest.mark.parametrize("fault", [down(), ValueError("a bug")])
async def test_a_slot_is_freed_when_no_answer_begins(fault: Exception) -> None:
    limited = ConcurrencyLimitedModel(Always(fault), concurrent=1)
    with pytest.raises(type(fault)):
        await limited.ask(REQUEST)
    assert limited.busy == 0


async def test_a_slot_is_freed_within_a_turn_of_the_loop_when_the_client_leaves_fault_U11() -> None:
    pending_model = PendingModel()
    limited = ConcurrencyLimitedModel(pending_model, concurrent=1)
    asking = asyncio.create_task(limited.ask(REQUEST))
    await settle()
    assert (limited.busy, len(pending_model.pending)) == (1, 1)
    asking.cancel()
    await settle()
    assert (limited.busy, len(pending_model.pending)) == (0, 0)


async def test_a_relayed_answer_holds_its_slot_until_its_last_frame_and_a_whole_one_until_it_is_reported() -> None:
    limited = ConcurrencyLimitedModel(Always(RelayableAnswer()), concurrent=1)
    frames = aiter(relayable(await limited.ask(REQUEST)).relay_stream("reply"))
    assert await anext(frames) == b"one"
    assert limited.busy == 1
    assert [frame async for frame in frames] == [b"two"]
    assert limited.busy == 0
    await relayable(await limited.ask(REQUEST)).relay_whole("reply")
    assert limited.busy == 0


async def test_waiting_requests_are_served_in_turn() -> None:
    limited = ConcurrencyLimitedModel(ScriptedModel([str(number) for number in range(4)]), concurrent=1, queue=3)
    held, served = await limited.ask(REQUEST), []

    async def wait(name: str) -> None:
        answer = await limited.ask(REQUEST)
        served.append(name)
        await read(answer)

    waiting = [asyncio.create_task(wait(name)) for name in "abc"]
    await settle()
    assert limited.waiting == 3
    await held.aclose()
    await asyncio.gather(*waiting)
    assert served == ["a", "b", "c"]
    assert limited.busy == 0


async def test_a_full_queue_refuses_the_next_request_at_once_with_retry_after_fault_L4() -> None:
    limited = ConcurrencyLimitedModel(PendingModel(), concurrent=1, queue=1, wait=7)
    tasks = [asyncio.create_task(limited.ask(REQUEST)) for _ in range(2)]
    await settle()
    with pytest.raises(GatewayOverloaded) as raised:
        await limited.ask(REQUEST)
    assert (raised.value.status, raised.value.retry_after) == (503, 7)
    for task in tasks:
        task.cancel()
    await settle()
    assert (limited.busy, limited.waiting) == (0, 0)


async def test_a_request_that_waited_too_long_is_refused_and_leaves_the_queue_fault_L4() -> None:
    limited = ConcurrencyLimitedModel(ScriptedModel(["one", "two"]), concurrent=1, queue=5, wait=0.001)
    held = await limited.ask(REQUEST)
    with pytest.raises(GatewayOverloaded, match="were taken for"):
        await limited.ask(REQUEST)
    assert (limited.busy, limited.waiting) == (1, 0)
    await held.aclose()
    assert limited.busy == 0


async def test_one_stalled_deployment_delays_no_other_faults_L2_and_L4() -> None:
    stalled, well = (
        ConcurrencyLimitedModel(PendingModel(), concurrent=2, queue=2),
        ConcurrencyLimitedModel(ScriptedModel(["hi"]), concurrent=2),
    )
    tasks = [asyncio.create_task(stalled.ask(REQUEST)) for _ in range(50)]
    await settle()
    assert sum([task.done() for task in tasks]) == 46
    assert len(await read(await well.ask(REQUEST))) > 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class SlotsAreNeitherLostNorMadeUp(RuleBasedStateMachine):
    """Clients ask, read, leave and are cancelled in any order; the slots always add up."""

    CONCURRENT, QUEUE = 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pending_model = PendingModel()
        self.limited = ConcurrencyLimitedModel(
            self.pending_model, concurrent=self.CONCURRENT, queue=self.QUEUE, wait=3600
        )
        self.tasks: list[asyncio.Task[ModelStream]] = []
        self.answers: list[ModelStream] = []

    def go_on(self) -> None:
        self.loop.run_until_complete(settle())
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled() and task.exception() is None:
                self.answers.append(task.result())

    @rule()
    def ask(self) -> None:
        full = self.limited.waiting == self.QUEUE
        task = self.loop.create_task(self.limited.ask(REQUEST))
        self.tasks.append(task)
        self.go_on()
        assert full == (task.done() and isinstance(task.exception(), GatewayOverloaded))

    @precondition(lambda self: self.pending_model.pending)
    @rule(data=st.data(), fails=st.booleans(), also_cancel=st.booleans())
    def begin(self, data: st.DataObject, fails: bool, also_cancel: bool) -> None:
        outcome = data.draw(st.sampled_from(self.pending_model.pending))
        if fails:
            outcome.set_exception(down())
        else:
            outcome.set_result(scripted_answer([StepStart(), StepEnd("stop")]))
        if also_cancel:
            data.draw(st.sampled_from(self.tasks)).cancel()
        self.go_on()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.tasks)).cancel()
        self.go_on()

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), to_its_end=st.booleans(), cancel=st.booleans())
    def end(self, data: st.DataObject, to_its_end: bool, cancel: bool) -> None:
        answer = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        if to_its_end:
            self.loop.run_until_complete(read(answer))
        else:
            self.loop.run_until_complete(answer.aclose())
        if cancel and self.tasks:
            data.draw(st.sampled_from(self.tasks)).cancel()  # perhaps the one whose turn has just come
        self.go_on()

    @invariant()
    def the_slots_add_up(self) -> None:
        assert self.limited.busy == len(self.pending_model.pending) + len(self.answers) <= self.CONCURRENT
        assert self.limited.waiting <= self.QUEUE
        assert self.limited.waiting == 0 or self.limited.busy == self.CONCURRENT
        assert len(self.tasks) == len(self.pending_model.pending) + self.limited.waiting

    def teardown(self) -> None:
        for task in self.tasks:
            task.cancel()
        for answer in self.answers:
            self.loop.run_until_complete(answer.aclose())
        self.loop.run_until_complete(settle())
        busy, waiting = self.limited.busy, self.limited.waiting
        self.loop.close()
        assert (busy, waiting) == (0, 0)


TestSlots = SlotsAreNeitherLostNorMadeUp.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


async def test_an_unavailable_upstream_is_reported_as_it_is() -> None:
    with pytest.raises(UpstreamUnavailable):
        await ConcurrencyLimitedModel(Always(down()), concurrent=1).ask(REQUEST)


async def test_a_whole_answer_gives_its_slot_back_at_once() -> None:
    class Whole(RelayableAnswer):
        whole = True

    limited = ConcurrencyLimitedModel(Always(Whole()), concurrent=1)
    await limited.ask(REQUEST)
    assert limited.busy == 0
