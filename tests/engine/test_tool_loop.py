"""The loop: a model with server tools is asked until it has answered, whoever owns the calls and whatever fails."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from toolgate.conversation.errors import EmptyModelAnswer, InvalidUpstreamAnswer
from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, PartStart, StepStart, ToolProgress, Usage
from toolgate.conversation.fold import fold
from toolgate.conversation.message import (
    ApprovalRequestPart,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    plain_text,
)
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef
from toolgate.engine.client_visible_events import AlreadySentCalls, Presentation
from toolgate.engine.ports import CallTraits, Model
from toolgate.engine.run_limits import RunLimits
from toolgate.engine.tool_loop import (
    EMPTY_ANSWER_PROMPT,
    INCOMPLETE_CALL,
    INTERRUPTED_CALL,
    REPEATED_CALL,
    EarlierAttempts,
    ToolLoop,
)
from toolgate.testing import Entry, ScriptedModel

ASKED = ModelRequest("m", (Message("user", (Text("go"),)),))
OURS = ToolCall("call_ours", "clock", "{}")
THEIRS = ToolCall("call_theirs", "edit", '{"a":1}')
EDIT = ToolDef("edit")


class Box:
    """Tools that answer by name; `asks` wait for approval, `harmful` ones are not repeatable."""

    def __init__(
        self, asks: Sequence[str] = (), harmful: Sequence[str] = (), **tools: Callable[[ToolCall], object]
    ) -> None:
        self.tools = {"clock": lambda call: "noon", **tools}
        self.asks, self.harmful = set(asks), set(harmful)
        self.ran: list[str] = []
        self.granted = False

    def offered(self) -> tuple[ToolDef, ...]:
        return tuple([ToolDef(name) for name in self.tools])

    def owns(self, name: str) -> bool:
        return name in self.tools

    def rules(self, name: str) -> CallTraits:
        harmless = name not in self.harmful
        return CallTraits(may_wait=name in self.asks, repeatable=harmless, read_only=harmless)

    def waited_seconds(self) -> float:
        return 0.0

    async def run(
        self, call: ToolCall, report: Callable[[ToolProgress], None], starting: Callable[[], Awaitable[None]]
    ) -> ToolResult | ApprovalRequestPart:
        if call.name in self.asks and not self.granted:
            return ApprovalRequestPart("mcpr_1", call)
        if call.name not in self.tools:
            return ToolResult(call.id, (Text("no such tool"),), True, call.name)
        await starting()
        self.ran.append(call.id)
        report(ToolProgress(call.id, "half"))
        outcome = self.tools[call.name](call)
        outcome = await outcome if asyncio.iscoroutine(outcome) else outcome
        return ToolResult(call.id, (Text(str(outcome)),), isinstance(outcome, Exception), call.name)


class Notes:
    """A journal that keeps everything in order."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, object]] = []
        self.steps: list[Message | ToolResult] = []

    async def progressed(self, messages: Sequence[Message]) -> None:
        self.kept.append(("progressed", tuple(messages)))

    async def answered(self, message: Message, usage: Usage | None, by_model: Mapping[str, Usage]) -> None:
        self.steps.append(message)

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        if not repeatable:
            self.kept.append(("starting", call.id))

    async def ended(self, result: ToolResult) -> None:
        self.steps.append(result)

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], asked: Sequence[str] = ()
    ) -> None:
        self.kept.append(("finished", tuple([call.id for call in returned])))


async def events_of(model: Model, request: ModelRequest = ASKED) -> list[object]:
    answer = await model.ask(request)
    return [event async for batch in answer.events() for event in batch]


async def answer_of(model: Model, request: ModelRequest = ASKED) -> ModelResponse:
    return fold(await events_of(model, request))  # type: ignore[arg-type]


async def test_a_run_asks_again_with_the_result_until_the_model_answers() -> None:
    script = ScriptedModel([[Text("Let me see."), OURS], "It is noon."])
    response = await answer_of(ToolLoop(script, Box(), Notes()))
    assert plain_text(response.parts) == "Let me see.\n\nIt is noon."
    assert response.reason == "stop"
    call, result = script.requests[1].messages[1:]
    assert call.parts == (Text("Let me see."), ToolCall("call_ours", "clock", "{}", "gateway"))
    assert result.parts == (ToolResult("call_ours", (Text("noon"),), False, "clock"),)


@pytest.mark.parametrize("native", [True, False])
async def test_streamed_and_whole_runs_have_the_same_content(native: bool) -> None:
    script: list[Entry] = [[Text("A"), OURS], [Text(""), OURS], [Text("B"), OURS], "C"]
    events = await events_of(ToolLoop(ScriptedModel(script), Box(), Notes(), Presentation(native_tools=native)))
    texts, in_text = [], False
    for event in events:
        match event:
            case PartStart(part):
                in_text = isinstance(part, Text)
            case PartDelta(text) if in_text:
                texts.append(text)
    whole = plain_text(fold(events).parts)  # type: ignore[arg-type]
    assert "".join(texts) == whole == ("ABC" if native else "A\n\nB\n\nC")


async def test_the_whole_run_is_one_step_of_one_lifecycle() -> None:
    """field: E2"""
    events = await events_of(ToolLoop(ScriptedModel([[OURS], [OURS], "done"]), Box(), Notes()))
    assert [type(event) for event in events].count(StepStart) == 1
    assert isinstance(events[0], StepStart)


async def test_usage_is_the_sum_of_all_rounds() -> None:
    """field: E42"""
    first = ModelResponse((OURS,), "tool_calls", Usage(10, 2))
    last = ModelResponse((Text("done"),), "stop", Usage(15, 3))
    response = await answer_of(ToolLoop(ScriptedModel([first, last]), Box(), Notes()))
    assert response.usage == Usage(25, 5)


async def test_calls_of_one_turn_run_side_by_side_and_results_keep_their_order() -> None:
    """field: E9"""
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(call: ToolCall) -> str:
        started.set()
        await release.wait()
        return "slow"

    async def quick(call: ToolCall) -> str:
        await started.wait()
        release.set()
        return "quick"

    calls = [ToolCall("call_1", "slow", "{}"), ToolCall("call_2", "quick", "{}")]
    script = ScriptedModel([calls, "done"])
    await answer_of(ToolLoop(script, Box(slow=slow, quick=quick), Notes()))
    assert [message.parts[0].call_id for message in script.requests[1].messages[2:]] == ["call_1", "call_2"]  # type: ignore[union-attr]


async def test_without_parallel_calls_one_runs_after_the_other() -> None:
    """field: E22"""
    running = 0

    async def alone(call: ToolCall) -> str:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        return "ok"

    calls = [ToolCall(f"call_{number}", "alone", "{}") for number in range(3)]
    request = ModelRequest("m", ASKED.messages, tool_choice=ToolChoice(parallel=False))
    await answer_of(ToolLoop(ScriptedModel([calls, "done"]), Box(alone=alone), Notes()), request)


async def test_one_failing_call_harms_no_sibling() -> None:
    """field: E16"""
    calls = [ToolCall("call_1", "bad", "{}"), ToolCall("call_2", "clock", "{}")]
    script = ScriptedModel([calls, "done"])
    await answer_of(ToolLoop(script, Box(bad=lambda call: ValueError("no")), Notes()))
    bad, good = [message.parts[0] for message in script.requests[1].messages[2:]]
    assert (bad.is_error, good.is_error) == (True, False)  # type: ignore[union-attr]


async def test_an_unknown_tool_name_is_returned_to_the_model_as_an_error() -> None:
    """field: E24"""
    script = ScriptedModel([[ToolCall("call_1", "invented", "{}")], "sorry"])
    response = await answer_of(ToolLoop(script, Box(), Notes()))
    assert plain_text(response.parts) == "sorry"
    assert script.requests[1].messages[-1].parts[0].is_error  # type: ignore[union-attr]


async def test_in_a_mixed_turn_ours_run_and_theirs_are_returned_and_both_are_kept() -> None:
    """field: E12"""
    notes, box = Notes(), Box()
    script = ScriptedModel([[Text("Both."), OURS, THEIRS]])
    request = ModelRequest("m", ASKED.messages, (EDIT,))
    response = await answer_of(ToolLoop(script, box, notes), request)
    assert box.ran == ["call_ours"]
    assert response.reason == "tool_calls"
    calls = {part.id: part.executor for part in response.parts if isinstance(part, ToolCall)}
    assert calls == {"call_ours": "gateway", "call_theirs": "client"}
    assert notes.kept[-1] == ("finished", ("call_theirs",))


async def test_a_tool_of_the_client_is_never_run_here_even_if_the_server_has_one_of_that_name() -> None:
    box = Box(edit=lambda call: "ours")
    request = ModelRequest("m", ASKED.messages, (EDIT,))
    response = await answer_of(ToolLoop(ScriptedModel([[THEIRS]]), box, Notes()), request)
    assert box.ran == []
    assert response.reason == "tool_calls"


async def test_when_the_client_comes_back_our_waiting_calls_run_before_the_model_is_asked() -> None:
    ours = ToolCall("call_ours", "clock", "{}", "gateway")
    messages = (
        *ASKED.messages,
        Message("assistant", (ours, THEIRS)),
        Message("tool", (ToolResult("call_theirs", (Text("edited"),)),)),
    )
    script, box = ScriptedModel(["done"]), Box()
    await answer_of(ToolLoop(script, box, Notes()), ModelRequest("m", messages, (EDIT,)))
    assert box.ran == ["call_ours"]
    assert script.requests[0].messages[-1].parts[0] == ToolResult("call_ours", (Text("noon"),), False, "clock")


async def test_a_forced_choice_holds_for_the_first_question_only() -> None:
    """field: E39"""
    script = ScriptedModel([[OURS], "done"])
    request = ModelRequest("m", ASKED.messages, tool_choice=ToolChoice("required", ("clock",)))
    await answer_of(ToolLoop(script, Box(), Notes()), request)
    assert [asked.tool_choice for asked in script.requests] == [request.tool_choice, ToolChoice()]


async def test_a_used_up_budget_ends_in_one_answer_without_tools() -> None:
    """field: E26"""
    script = ScriptedModel([[OURS], [ToolCall("call_2", "clock", '{"a":2}')], "That is what I know."])
    box = Box()
    response = await answer_of(ToolLoop(script, box, Notes(), limits=RunLimits(rounds=1)))
    assert plain_text(response.parts) == "That is what I know."
    assert box.ran == ["call_ours"]
    assert script.requests[2].tool_choice == ToolChoice("none")
    assert "limit of 1 tool rounds" in plain_text(script.requests[2].messages[-1].parts[0].content)  # type: ignore[union-attr]


async def test_a_model_that_calls_even_when_it_must_not_is_not_obeyed() -> None:
    script = ScriptedModel([[OURS], [OURS], [Text("Stop."), OURS]])
    box = Box()
    response = await answer_of(ToolLoop(script, box, Notes(), limits=RunLimits(rounds=1)))
    assert (box.ran, response.reason, plain_text(response.parts)) == (["call_ours"], "stop", "Stop.")


async def test_the_very_same_call_again_and_again_is_stopped() -> None:
    """fault: T5; field: E25"""
    script = ScriptedModel([[OURS]] * 4 + ["I give up."])
    box = Box()
    response = await answer_of(ToolLoop(script, box, Notes(), limits=RunLimits(rounds=0)))
    assert (len(box.ran), plain_text(response.parts)) == (3, "I give up.")
    assert plain_text(script.requests[4].messages[-1].parts[0].content) == REPEATED_CALL  # type: ignore[union-attr]


async def test_a_call_that_was_cut_off_is_shown_and_never_run() -> None:
    cut = ModelResponse((ToolCall("call_1", "clock", '{"zo', complete=False),), "length")
    box = Box()
    response = await answer_of(ToolLoop(ScriptedModel([cut]), box, Notes()))
    assert (box.ran, response.reason) == ([], "length")


async def test_a_broken_answer_runs_nothing() -> None:
    """fault: U5"""
    box = Box()
    with pytest.raises(InvalidUpstreamAnswer):
        await answer_of(ToolLoop(ScriptedModel([[OURS, InvalidUpstreamAnswer("cut")]]), box, Notes()))
    assert box.ran == []


async def test_a_call_that_waits_for_approval_is_not_emitted_and_ends_the_run_as_its_dialect_can() -> None:
    text = ScriptedModel([[OURS]])
    response = await answer_of(ToolLoop(text, Box(asks=["clock"]), Notes()))
    assert response.reason == "stop"
    assert "waits for approval mcpr_1" in plain_text(response.parts)
    pausing = await answer_of(
        ToolLoop(ScriptedModel([[OURS]]), Box(asks=["clock"]), Notes(), Presentation(True, False, True))
    )
    assert (pausing.reason, [type(part) for part in pausing.parts]) == ("pause", [ToolCall])
    asking = await answer_of(ToolLoop(ScriptedModel([[OURS]]), Box(asks=["clock"]), Notes(), Presentation(True, True)))
    assert (asking.reason, [type(part) for part in asking.parts]) == ("stop", [ApprovalRequestPart])


async def test_a_call_that_needed_approval_is_emitted_when_it_starts() -> None:
    shown: list[object] = []
    emitted = asyncio.Event()

    async def order(_call: ToolCall) -> str:
        await emitted.wait()  # hangs if the call is emitted with its result only
        return "ordered"

    box = Box(asks=["order"], order=order)
    box.granted = True
    call = ToolCall("call_order", "order", "{}")
    run = await ToolLoop(ScriptedModel([[call], "done"]), box, Notes(), Presentation(native_tools=True)).ask(ASKED)
    async with asyncio.timeout(30):
        async for batch in run.events():
            shown += batch
            if any(isinstance(event, PartEnd) and isinstance(event.part, ToolCall) for event in batch):
                emitted.set()
    parts = [event.part for event in shown if isinstance(event, PartEnd)]
    assert [type(part) for part in parts] == [ToolCall, ToolResult, Text]


async def test_the_same_request_again_goes_on_from_where_the_run_waited() -> None:
    notes, box = Notes(), Box(asks=["clock"], harmful=["clock"])
    await answer_of(ToolLoop(ScriptedModel([[Text("Wait."), OURS]]), box, notes))
    kept = [value for what, value in notes.kept if what == "progressed"][-1]
    box.granted = True
    script = ScriptedModel(["Done."])
    response = await answer_of(ToolLoop(script, box, notes, history=EarlierAttempts(kept)))  # type: ignore[arg-type]
    assert plain_text(response.parts) == "Wait.\n\nDone."
    assert box.ran == ["call_ours"]
    assert len(script.requests) == 1


async def test_a_harmful_call_is_noted_before_it_starts_and_never_repeated_after_a_break() -> None:
    notes, box = Notes(), Box(harmful=["clock"])
    await answer_of(ToolLoop(ScriptedModel([[OURS], "done"]), box, notes))
    assert [what for what, _ in notes.kept] == ["progressed", "starting", "progressed", "finished"]
    past = EarlierAttempts(
        (Message("assistant", (ToolCall("call_ours", "clock", "{}", "gateway"),)),), frozenset({"call_ours"})
    )
    script = ScriptedModel(["I do not know."])
    await answer_of(ToolLoop(script, box, Notes(), history=past))
    assert box.ran == ["call_ours"]
    assert plain_text(script.requests[0].messages[-1].parts[0].content) == INTERRUPTED_CALL  # type: ignore[union-attr]


async def test_harmless_runs_write_nothing_down() -> None:
    notes = Notes()
    await answer_of(ToolLoop(ScriptedModel([[OURS], "done"]), Box(), notes))
    assert [what for what, _ in notes.kept] == ["finished"]


async def test_progress_is_emitted_while_the_tool_runs() -> None:
    events = await events_of(ToolLoop(ScriptedModel([[OURS], "done"]), Box(), Notes()))
    kinds = [type(event) for event in events]
    assert kinds.index(ToolProgress) < max(n for n, event in enumerate(events) if isinstance(event, PartEnd))


async def test_leaving_cancels_the_running_tool() -> None:
    """fault: C1; field: E27"""
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(call: ToolCall) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    answer = await ToolLoop(ScriptedModel([[ToolCall("c", "hang", "{}")]]), Box(hang=hang), Notes()).ask(ASKED)

    async def listen() -> None:
        async for _ in answer.events():
            pass

    task = asyncio.create_task(listen())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(cancelled.wait(), 30)


async def test_every_answer_with_calls_and_every_end_of_a_call_is_a_step() -> None:
    notes = Notes()
    await answer_of(ToolLoop(ScriptedModel([[OURS], "done"]), Box(), notes))
    ours = ToolCall("call_ours", "clock", "{}", "gateway")
    assert notes.steps == [
        Message("assistant", (ours,)),
        ToolResult("call_ours", (Text("noon"),), False, "clock"),
    ]


async def test_a_resumed_run_emits_only_what_the_client_missed_and_continues_its_usage() -> None:
    ours = ToolCall("call_ours", "clock", "{}", "gateway")
    earlier = Message("assistant", (Text("Look."), ours)), Message("tool", (ToolResult("call_ours", (Text("noon"),)),))
    native = Presentation(native_tools=True)
    missed = EarlierAttempts(earlier, usage=Usage(5, 5), shown=AlreadySentCalls(begun=frozenset({"call_ours"})))
    answer = await answer_of(ToolLoop(ScriptedModel(["Noon."]), Box(), Notes(), native, history=missed))
    assert [type(part) for part in answer.parts] == [ToolResult, Text]
    assert answer.usage == Usage(5, 5)
    known = EarlierAttempts(earlier, shown=AlreadySentCalls(frozenset({"call_ours"}), frozenset({"call_ours"})))
    answer = await answer_of(ToolLoop(ScriptedModel(["Noon."]), Box(), Notes(), native, history=known))
    assert [type(part) for part in answer.parts] == [Text]


@pytest.mark.parametrize("empty", [[], [Text(" ")], [Reasoning("Hm.")]])
async def test_an_empty_answer_behind_a_tool_is_asked_for_once_more(empty: list[Part]) -> None:
    model = ScriptedModel([[OURS], empty, "It is noon."])
    answer = await ToolLoop(model, Box(), Notes()).ask(ASKED)
    response = fold([event async for batch in answer.events() for event in batch])
    assert plain_text(response.parts).strip() == "It is noon."
    assert plain_text(model.requests[2].messages[-1].parts) == EMPTY_ANSWER_PROMPT


async def test_a_run_that_never_gets_an_answer_fails() -> None:
    answer = await ToolLoop(ScriptedModel([[OURS], [], []]), Box(), Notes()).ask(ASKED)
    with pytest.raises(EmptyModelAnswer):
        [batch async for batch in answer.events()]


async def test_a_run_whose_model_only_calls_after_its_last_round_ends_with_a_sentence() -> None:
    calls = [[ToolCall(f"call_{number}", "clock", f'{{"n":{number}}}')] for number in range(4)]
    answer = await ToolLoop(ScriptedModel(calls), Box(), Notes(), limits=RunLimits(rounds=1)).ask(ASKED)
    response = fold([event async for batch in answer.events() for event in batch])
    assert plain_text(response.parts).startswith("No answer: the limit of 1 tool rounds is reached")
    assert response.reason == "stop"
    assert answer.warnings


async def test_a_call_that_broke_off_gets_an_error_result_and_is_not_run() -> None:
    cut = ToolCall("call_cut", "clock", '{"zone":"C', complete=False)
    model, box = ScriptedModel([ModelResponse((cut,), "tool_calls"), "It is noon."]), Box()
    answer = await ToolLoop(model, box, Notes()).ask(ASKED)
    response = fold([event async for batch in answer.events() for event in batch])
    assert plain_text(response.parts).strip() == "It is noon."
    assert box.ran == []
    (result,) = model.requests[1].messages[-1].parts
    assert isinstance(result, ToolResult)
    assert plain_text(result.content) == INCOMPLETE_CALL
