"""Server tools through the official clients: every scenario in all four dialects, streamed and whole."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.clients.speakers import SPEAKERS, Speaker
from tests.stage import UPSTREAMS, Stage, on_stage
from toolgate.config.settings import Approvals, Tools
from toolgate.conversation.message import Text, ToolCall, ToolResult, plain_text
from toolgate.testing import FakeSource, FakeTool, ScriptedModel
from toolgate.tools.tool import Annotations, ToolFailure

TIME = ToolCall("call_time_000000000000000001", "get_time", '{"zone":"UTC"}')
EDIT = ToolCall("call_edit_000000000000000001", "edit_file", '{"path":"a.txt"}')
ZONE: Mapping[str, Any] = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}


async def _hang(arguments: Mapping[str, Any]) -> str:
    await asyncio.Event().wait()
    return ""


def _fail(arguments: Mapping[str, Any]) -> str:
    raise ToolFailure("the disk is full")


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
    with on_stage(bench.source, tools=Tools(approvals=Approvals(hold_seconds=10))) as stage:
        bench.stage = stage
        yield bench


@pytest.fixture
def bench(opened: Bench) -> Bench:
    for tool in (opened.time, opened.write):
        tool.calls.clear()
    return opened


Speak = Callable[..., Speaker]


@pytest.fixture(params=SPEAKERS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def speak(request: pytest.FixtureRequest, bench: Bench, dialect: str) -> Speak:
    def speaker(own: tuple[str, ...] = (), model: str = "openai_chat", **wants: Any) -> Speaker:
        said = {"tool_execution": "auto", "use_server_tools": True, **wants}
        return SPEAKERS[dialect](bench.stage, model, request.param, own, **said)  # type: ignore[no-any-return]

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
