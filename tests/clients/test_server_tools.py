"""Server tools through the official clients: every scenario in all four dialects, streamed and whole."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai import APIStatusError

from tests.clients.api_clients import API_CLIENTS, ApiClient, Messages, Responses
from tests.stage import UPSTREAMS, Stage, on_stage
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.message import Text, ToolCall, ToolResult, plain_text
from toolgate.testing import FakeSource, FakeTool, ScriptedModel
from toolgate.tools.tool import Annotations, ToolCallFailed

TIME = ToolCall("call_time_000000000000000001", "get_time", '{"zone":"UTC"}')
EDIT = ToolCall("call_edit_000000000000000001", "edit_file", '{"path":"a.txt"}')
ZONE: Mapping[str, Any] = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}


async def _hang(arguments: Mapping[str, Any]) -> str:
    await asyncio.Event().wait()
    return ""


def _fail(arguments: Mapping[str, Any]) -> str:
    raise ToolCallFailed("the disk is full")


class Bench:
    """The tools on stage and the stage itself."""

    def __init__(self) -> None:
        harmful = Annotations()
        self.time = FakeTool("get_time", lambda arguments: f"noon in {arguments['zone']}", input_schema=ZONE)
        self.write = FakeTool("write", lambda arguments: "written", annotations=harmful)
        self.source = FakeSource(
            self.time,
            self.write,
            FakeTool("fails", _fail),
            FakeTool("hangs", _hang, timeout=0.05),
        )
        self.stage: Stage


@pytest.fixture(scope="module")
def opened() -> Iterator[Bench]:
    bench = Bench()
    with on_stage(bench.source, tools=ServerToolSettings(approvals=ApprovalSettings(hold_seconds=10))) as stage:
        bench.stage = stage
        yield bench


@pytest.fixture
def bench(opened: Bench) -> Bench:
    for tool in (opened.time, opened.write):
        tool.calls.clear()
    return opened


Speak = Callable[..., ApiClient]


@pytest.fixture(params=API_CLIENTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def speak(request: pytest.FixtureRequest, bench: Bench, dialect: str) -> Speak:
    def speaker(own: tuple[str, ...] = (), model: str = "openai_chat", **wants: Any) -> ApiClient:
        output = {"tool_execution": "auto", "use_server_tools": True, **wants}
        return API_CLIENTS[dialect](bench.stage, model, request.param, own, **output)  # type: ignore[no-any-return]

    return speaker


def results(script: ScriptedModel, step: int) -> list[str]:
    """What the tools gave, as the model heard it at that step."""
    parts = [part for message in script.requests[step].messages for part in message.parts]
    return [plain_text(part.content) for part in parts if isinstance(part, ToolResult)]


@pytest.mark.parametrize("model", UPSTREAMS)
def test_server_tools_only(bench: Bench, speak: Speak, model: str) -> None:
    """field: E1, E4, E10, E11"""
    script = bench.stage.play([Text("Let me look."), TIME], "It is noon.")
    talk = speak(model=model)
    turn = talk.ask("What time is it?")
    assert turn.text == ("Let me look.It is noon." if talk.native else "Let me look.\n\nIt is noon.")
    assert turn.calls == {}
    assert turn.ours == ([("get_time", "noon in UTC", False)] if talk.native else [])
    assert results(script, 1) == ["noon in UTC"]


def test_client_tools_only(bench: Bench, speak: Speak) -> None:
    script = bench.stage.play([EDIT], "Edited.")
    talk = speak(own=("edit_file",))
    turn = talk.ask("Edit it.")
    assert list(turn.calls) == ["edit_file"]
    assert talk.answer({turn.calls["edit_file"]: "ok"}).text == "Edited."
    assert results(script, 1) == ["ok"]
    assert bench.time.calls == []


@pytest.mark.parametrize("model", UPSTREAMS)
def test_both_in_one_turn(bench: Bench, speak: Speak, model: str) -> None:
    """field: E6, E12, E14"""
    script = bench.stage.play([Text("Both."), TIME, EDIT], "All done.")
    talk = speak(own=("edit_file",), model=model)
    turn = talk.ask("Do both.")
    assert list(turn.calls) == ["edit_file"]
    assert len(bench.time.calls) == 1
    last = talk.answer({turn.calls["edit_file"]: "edited"})
    assert last.text == "All done."
    assert len(bench.time.calls) == 1
    assert results(script, 1) == ["noon in UTC", "edited"]
    calls = [part for message in script.requests[1].messages for part in message.parts if isinstance(part, ToolCall)]
    assert [call.name for call in calls] == ["get_time", "edit_file"]


def test_parallel_calls(bench: Bench, speak: Speak) -> None:
    """field: E5"""
    two = [ToolCall(f"call_time_00000000000000000{n}", "get_time", f'{{"zone":"{n}"}}') for n in (1, 2)]
    script = bench.stage.play(two, "Twice.")
    assert speak().ask("Twice?").text == "Twice."
    assert results(script, 1) == ["noon in 1", "noon in 2"]


def test_three_rounds(bench: Bench, speak: Speak) -> None:
    """field: E5, E25"""
    rounds = [[ToolCall(f"call_time_00000000000000000{n}", "get_time", f'{{"zone":"{n}"}}')] for n in (1, 2, 3)]
    script = bench.stage.play(*rounds, "Three.")
    assert speak().ask("Go.").text == "Three."
    assert results(script, 3) == ["noon in 1", "noon in 2", "noon in 3"]


def test_a_failing_tool(bench: Bench, speak: Speak) -> None:
    script = bench.stage.play([ToolCall("call_fail_000000000000000001", "fails", "{}")], "I could not.")
    talk = speak()
    turn = talk.ask("Try.")
    assert turn.text == "I could not."
    assert "the disk is full" in results(script, 1)[0]
    if talk.native:
        assert turn.ours[0][2] is True


def test_a_tool_that_hangs_is_stopped(bench: Bench, speak: Speak) -> None:
    """fault: T1"""
    script = bench.stage.play([ToolCall("call_hang_000000000000000001", "hangs", "{}")], "It took too long.")
    assert speak().ask("Wait.").text == "It took too long."
    assert "did not answer within 0.05 seconds" in results(script, 1)[0]


def test_arguments_that_do_not_fit_run_nothing_and_go_back_to_the_model(bench: Bench, speak: Speak) -> None:
    """field: E7"""
    bad = [ToolCall("call_bad_0000000000000000001", "get_time", '{"zone":1,"more":2}')]
    script = bench.stage.play(bad, "Sorry.")
    assert speak().ask("Go.").text == "Sorry."
    assert bench.time.calls == []
    assert "nothing was run" in results(script, 1)[0]


def test_a_used_up_budget_ends_in_an_answer(bench: Bench, speak: Speak) -> None:
    """field: E26"""
    rounds = [[ToolCall(f"call_time_00000000000000000{n}", "get_time", f'{{"zone":"{n}"}}')] for n in (1, 2)]
    script = bench.stage.play(*rounds, "That is all I know.")
    assert speak(max_tool_rounds=1).ask("Go.").text == "That is all I know."
    assert len(bench.time.calls) == 1
    assert "the limit of 1 tool rounds is reached" in results(script, 2)[1]


WRITE = ToolCall("call_write_00000000000000001", "write", '{"text":"hi"}')


class Inbox:
    """A person with a browser: sees what waits and answers it."""

    def __init__(self, stage: Stage) -> None:
        self._client = httpx.Client(base_url=stage.url)

    def waiting(self) -> list[dict[str, Any]]:
        return self._client.get("/v1/approvals", params={"state": "pending"}).json()["data"]  # type: ignore[no-any-return]

    def wait(self) -> dict[str, Any]:
        """The next question, as soon as there is one."""
        for _ in range(500):
            if waiting := self.waiting():
                return waiting[0]
            time.sleep(0.01)
        raise AssertionError("nobody asked")

    def answer(self, id: str, decision: str) -> int:
        return self._client.post(f"/v1/approvals/{id}", json={"decision": decision}).status_code


@pytest.fixture
def inbox(bench: Bench) -> Iterator[Inbox]:
    inbox = Inbox(bench.stage)
    yield inbox
    for one in inbox.waiting():
        inbox.answer(one["id"], "deny")


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do the work in another thread."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result(10)


def test_a_call_that_is_approved_runs_once(bench: Bench, speak: Speak, dialect: str, inbox: Inbox) -> None:
    """field: E17, E19"""
    script = bench.stage.play([WRITE], "It is written.")
    talk = speak()
    if isinstance(talk, Responses):
        turn = talk.ask("Write.")
        assert (bench.write.calls, len(turn.asked)) == ([], 1)
        turn = talk.decide(turn.asked[0], approve=True)
    else:
        with meanwhile(lambda: inbox.answer(inbox.wait()["id"], "approve")):
            turn = talk.ask("Write.")
    assert turn.text == "It is written."
    assert len(bench.write.calls) == 1
    assert results(script, 1) == ["written"]
    if talk.native:
        assert turn.ours == [("write", "written", False)]


def test_a_denied_call_does_not_run_and_the_model_gets_the_reason(
    bench: Bench, speak: Speak, dialect: str, inbox: Inbox
) -> None:
    script = bench.stage.play([WRITE], "Then not.")
    talk = speak()
    if isinstance(talk, Responses):
        turn = talk.decide(talk.ask("Write.").asked[0], approve=False)
    else:
        with meanwhile(lambda: inbox.answer(inbox.wait()["id"], "deny")):
            turn = talk.ask("Write.")
    assert (turn.text, bench.write.calls) == ("Then not.", [])
    assert "was not allowed" in results(script, 1)[0]


def test_an_approval_is_answered_once(bench: Bench, speak: Speak, dialect: str, inbox: Inbox) -> None:
    bench.stage.play([WRITE], "It is written.")
    talk = speak()
    answers: list[int] = []

    def twice() -> None:
        id = inbox.wait()["id"]
        answers.extend([inbox.answer(id, "approve"), inbox.answer(id, "deny")])

    if isinstance(talk, Responses):
        id = talk.ask("Write.").asked[0]
        assert talk.decide(id, approve=True).text == "It is written."
        assert inbox.answer(id, "deny") == 409
    else:
        with meanwhile(twice):
            assert talk.ask("Write.").text == "It is written."
        assert answers == [200, 409]
    assert len(bench.write.calls) == 1


@pytest.fixture(scope="module")
def impatient() -> Iterator[Bench]:
    """A server that does not hold a stream for an answer, and whose questions stand for one second."""
    bench = Bench()
    terms = ApprovalSettings(hold_seconds=0.05, expiry_seconds=1.0)
    with on_stage(bench.source, tools=ServerToolSettings(approvals=terms)) as stage:
        bench.stage = stage
        yield bench


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_turn_that_waits_too_long_settles_as_pending_and_the_same_request_goes_on(
    impatient: Bench, dialect: str, stream: bool
) -> None:
    """field: E21"""
    impatient.write.calls.clear()
    impatient.stage.play([Text("One moment."), WRITE], "It is written.")
    talk = API_CLIENTS[dialect](
        impatient.stage, "openai_chat", stream, (), tool_execution="auto", use_server_tools=True
    )
    inbox = Inbox(impatient.stage)
    turn = talk.ask("Write.")
    id = inbox.wait()["id"]
    assert impatient.write.calls == []
    if isinstance(talk, Responses):
        assert (turn.asked, turn.reason) == ([id], "completed")
        turn = talk.decide(id, approve=True)
    else:
        assert inbox.answer(id, "approve") == 200
        if isinstance(talk, Messages):
            assert turn.reason == "pause_turn"
            turn = talk.go_on()
        else:
            assert f"waits for approval {id}" in turn.text
            turn = talk.again()
    assert turn.text.endswith("It is written.")
    assert len(impatient.write.calls) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_approval_that_expired_runs_nothing(impatient: Bench, dialect: str, stream: bool) -> None:
    impatient.write.calls.clear()
    script = impatient.stage.play([WRITE], "Then not.")
    talk = API_CLIENTS[dialect](
        impatient.stage, "openai_chat", stream, (), tool_execution="auto", use_server_tools=True
    )
    inbox = Inbox(impatient.stage)
    turn = talk.ask(f"Write now, {dialect} {stream}.")
    id = inbox.wait()["id"]
    for _ in range(100):
        if inbox.waiting():
            time.sleep(0.05)
    assert inbox.answer(id, "approve") == 410
    if isinstance(talk, Responses):
        with pytest.raises(APIStatusError, match="expired") as failure:
            talk.decide(id, approve=True)
        assert failure.value.status_code == 410
    else:
        turn = talk.go_on() if isinstance(talk, Messages) else talk.again()
        assert len(script.requests) in (1, 2)
    assert impatient.write.calls == []
    assert turn is not None
