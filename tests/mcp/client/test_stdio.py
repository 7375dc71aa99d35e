"""Servers on pipes that misbehave in every way we could think of (fault: T6; field: E30, E34, E37)."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.client.sources import PATIENCE, calling, eventually, mock, noted, opened, source_of, tool
from toolgate.conversation.message import Text
from toolgate.mcp.client import StdioServerConfig
from toolgate.mcp.protocol.line_reader import LineReader
from toolgate.tools.tool import CallProgressUpdate, ToolCallFailed


def words(output: object) -> str:
    content = output.content  # type: ignore[attr-defined]  # an Output
    assert isinstance(content[0], Text)
    return content[0].text


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_tool_is_listed_with_its_own_name_kept_and_runs(tmp_path: Path) -> None:
    async with opened(source_of(mock("plain", tmp_path))) as source:
        assert source.problem is None
        spec = tool(source).spec
        assert (spec.name, spec.origin, spec.source) == ("box_echo", "echo", "mcp/box")
        assert spec.annotations.destructive
        assert words(await tool(source).invoke(calling({"a": 1}))) == '{"a": 1}'


async def test_arguments_arrive_exactly_as_they_were_written(tmp_path: Path) -> None:
    text = '{"big": 123456789012345678901234567890, "one": 1.0, "e": 1e2,\n "text": "a\\u00e9\\n"}'
    async with opened(source_of(mock("plain", tmp_path))) as source:
        await tool(source).invoke(calling(text))
    assert text.replace("\n", " ") in noted(tmp_path, "heard")[-1]


async def test_opening_returns_at_once_and_a_silent_handshake_ends_at_its_deadline(tmp_path: Path) -> None:
    source = source_of(mock("hangs_in_initialize", tmp_path), connect_seconds=0.2)
    async with opened(source):
        assert source.tools == ()
        assert "did not finish its handshake within 0.2 s" in (source.problem or "")
        await eventually(lambda: len(noted(tmp_path, "pids")) >= 2)


async def test_a_call_fails_at_once_when_the_server_dies_and_is_never_sent_again(tmp_path: Path) -> None:
    async with opened(source_of(mock("dies", tmp_path))) as source:
        with pytest.raises(ToolCallFailed, match="may or may not have taken effect") as failure:
            await tool(source).invoke(calling())
        assert "out of cheese" in str(failure.value)
        await eventually(lambda: len(noted(tmp_path, "pids")) == 2 and source.problem is None)
        assert noted(tmp_path, "calls") == ["{}"]


async def test_a_killed_server_is_started_again_and_its_tools_return(tmp_path: Path) -> None:
    async with opened(source_of(mock("plain", tmp_path))) as source:
        os.kill(int(noted(tmp_path, "pids")[0]), signal.SIGKILL)
        await eventually(lambda: source.tools == ())
        await eventually(lambda: source.tools)
        assert words(await tool(source).invoke(calling({"x": 2}))) == '{"x": 2}'


async def test_a_program_that_is_not_there_is_reported_in_words() -> None:
    async with opened(source_of(StdioServerConfig(("no-such-program-here",)))) as source:
        assert "could not be started: no-such-program-here: No such file" in (source.problem or "")


async def test_a_program_that_is_no_server_is_quoted(tmp_path: Path) -> None:
    script = "import sys; sys.exit('usage: \\x1b[31mwrong\\u202e')"
    async with opened(source_of(StdioServerConfig((sys.executable, "-c", script)))) as source:
        assert "ended with status 1; it said: usage: [31mwrong" in (source.problem or "")
        assert (source.problem or "").isprintable()


async def test_grandchildren_end_with_the_server(tmp_path: Path) -> None:
    async with opened(source_of(mock("grandchild", tmp_path))):
        pids = [int(line) for line in noted(tmp_path, "pids")]
        assert len(pids) == 2
    await eventually(lambda: not any(map(alive, pids)))


async def test_grandchildren_end_when_the_server_dies_by_itself(tmp_path: Path) -> None:
    async with opened(source_of(mock("grandchild", tmp_path))):
        server, child = (int(line) for line in noted(tmp_path, "pids"))
        os.kill(server, signal.SIGKILL)
        await eventually(lambda: not alive(child))


async def test_a_server_that_heeds_neither_its_input_nor_a_request_is_killed(tmp_path: Path) -> None:
    async with opened(source_of(mock("deaf", tmp_path), connect_seconds=0.2)) as source:
        assert source.tools == ()


async def test_closing_in_the_middle_of_a_farewell_waits_for_its_end(tmp_path: Path) -> None:
    source = source_of(mock("deaf", tmp_path), connect_seconds=0.01)
    await source.open(lambda: None)
    await eventually(lambda: noted(tmp_path, "pids"))
    await source.aclose()
    assert not any(alive(int(pid)) for pid in noted(tmp_path, "pids"))


@pytest.mark.parametrize("ticks", range(6))
async def test_closing_at_the_moment_of_a_loss_ends_all_the_same(ticks: int, tmp_path: Path) -> None:
    source = source_of(mock("plain", tmp_path))
    await source.open(lambda: None)
    await source.settled()
    source._session._transport.lose("died")  # type: ignore[union-attr]  # it is connected, to a process
    for _ in range(ticks):
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await source.aclose()


async def test_the_environment_is_what_was_configured_and_nothing_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    async with opened(source_of(mock("environment", tmp_path, TOKEN="mine"))) as source:
        seen = json.loads(words(await tool(source).invoke(calling())))
    assert seen["TOKEN"] == "mine"
    assert "PATH" in seen
    assert "canary" not in str(seen)


@pytest.mark.parametrize("mode", ["invalid_json", "floods_stderr", "long_line", "logs", "wrong_id"])
async def test_noise_around_an_answer_does_not_hide_it(mode: str, tmp_path: Path) -> None:
    async with opened(source_of(mock(mode, tmp_path))) as source:
        for number in range(2):
            assert words(await tool(source).invoke(calling({"n": number}))) == f'{{"n": {number}}}'


@pytest.mark.parametrize("answer", ['{"result": null}', '{"result": []}', '{"error": null}', "{}"])
async def test_an_answer_without_result_and_error_fails_its_call_at_once(answer: str, tmp_path: Path) -> None:
    async with opened(source_of(mock(f"answers_{answer}", tmp_path))) as source:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ToolCallFailed, match="neither a result nor an error"):
                await tool(source).invoke(calling())
        assert source.tools


async def test_an_answer_that_is_too_large_fails_its_call_at_once(tmp_path: Path) -> None:
    async with opened(source_of(mock("enormous", tmp_path))) as source:
        with pytest.raises(ToolCallFailed, match="larger than 4 MiB"):
            await tool(source).invoke(calling())
        assert source.tools


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 20))
def test_where_bytes_are_split_makes_no_difference_to_lines(pieces: list[bytes], longest: int) -> None:
    lines = LineReader(longest)
    found = [line for piece in [*pieces, b"\n"] for line in lines.feed(piece)]
    expected = [line for line in b"".join(pieces).split(b"\n") if len(line) > longest or line.strip()]
    assert [type(line) is bytes for line in found] == [len(line) <= longest for line in expected]
    assert [line for line in found if type(line) is bytes] == [b.strip() for b in expected if len(b) <= longest]


async def test_a_server_that_writes_only_garbage_is_given_up_for_a_while(tmp_path: Path) -> None:
    async with opened(source_of(mock("garbage", tmp_path))) as source:
        assert "no JSON-RPC" in (source.problem or "")


async def test_a_cancelled_call_returns_at_once_notifies_the_server_and_its_late_answer_is_dropped(
    tmp_path: Path,
) -> None:
    async with opened(source_of(mock("late", tmp_path))) as source:
        call = asyncio.create_task(tool(source).invoke(calling()))
        await eventually(lambda: noted(tmp_path, "calls"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: "notifications/cancelled" in noted(tmp_path, "heard")[-1])
        again = asyncio.create_task(tool(source).invoke(calling({"second": True})))
        await eventually(lambda: len(noted(tmp_path, "calls")) == 2)
        assert not again.done()
        again.cancel()


@pytest.mark.parametrize(("mode", "steps"), [("progress", 3), ("stringly", 1)])
async def test_progress_is_reported_whether_its_token_comes_back_as_a_number_or_as_text(
    mode: str, steps: int, tmp_path: Path
) -> None:
    """field: E34"""
    emitted: list[CallProgressUpdate] = []
    async with opened(source_of(mock(mode, tmp_path))) as source:
        await tool(source).invoke(calling(report_progress=emitted.append))
    assert [progress.done for progress in emitted] == [1.0, 2.0, 3.0][:steps]


async def test_a_ping_is_answered_and_what_was_not_offered_is_refused(tmp_path: Path) -> None:
    """field: E34"""
    async with opened(source_of(mock("asks", tmp_path))) as source:
        ping, sampling, roots = json.loads(words(await tool(source).invoke(calling())))
    assert ping == {"jsonrpc": "2.0", "id": "ours-ping", "result": {}}
    assert sampling["error"]["code"] == roots["error"]["code"] == -32601


async def test_all_pages_of_a_list_are_read(tmp_path: Path) -> None:
    """field: E30"""
    async with opened(source_of(mock("paginated", tmp_path))) as source:
        assert [tool.spec.origin for tool in source.tools] == [f"tool_{number}" for number in range(250)]
        assert len(noted(tmp_path, "lists")) == 13


async def test_a_list_that_goes_round_in_circles_ends(tmp_path: Path) -> None:
    """field: E30"""
    async with opened(source_of(mock("circular", tmp_path))) as source:
        assert len(source.tools) == 3
        assert "listed twice" in (source.problem or "")


async def test_a_storm_of_changes_is_listed_once_a_second(tmp_path: Path) -> None:
    """fault: T7; field: E37"""
    clock = asyncio.get_running_loop().time
    async with opened(source_of(mock("storm", tmp_path))) as source:
        since, before = clock(), psutil.Process().cpu_times().user
        await eventually(lambda: len(noted(tmp_path, "lists")) >= 2)
        assert clock() - since > 0.9
        assert len(noted(tmp_path, "lists")) == 2
        assert psutil.Process().cpu_times().user - before < 0.8
        assert source.problem is None


async def test_a_server_without_handshakes_is_understood_on_pipes_too(tmp_path: Path) -> None:
    async with opened(source_of(mock("stateless", tmp_path))) as source:
        assert words(await tool(source).invoke(calling({"a": 1}))) == '{"a": 1}'
    envelope = json.loads(noted(tmp_path, "heard")[-1])["params"]["_meta"]
    assert envelope["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


async def test_a_server_of_the_first_revision_is_understood(tmp_path: Path) -> None:
    async with opened(source_of(mock("old", tmp_path))) as source:
        assert source.problem is None


@pytest.mark.parametrize("mode", ["plain", "grandchild", "floods_stderr", "long_line", "wrong_id"])
def test_the_event_loop_that_the_server_runs_on_does_as_well(mode: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(source_of(mock(mode, tmp_path))) as source:
            assert words(await tool(source).invoke(calling({"a": 1}))) == '{"a": 1}'
            os.kill(int(noted(tmp_path, "pids")[0]), signal.SIGKILL)
            await eventually(lambda: source.tools == ())
            await eventually(lambda: source.tools)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
