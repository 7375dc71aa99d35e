"""Nothing runs twice because something was retried: by us, by a client that left, or by one that came back after a crash.

Over the whole server, on real sockets. An oracle writes down every run; the guard was removed once to see its tests fail.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, HttpConnection
from tests.tools.execution.toolwork import TRUSTING, Oracle, at_work, call, error, output, results, soon
from toolgate.config.settings import RunLimitSettings, ServerToolSettings
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.message import Text
from toolgate.engine.tool_loop import INTERRUPTED_CALL
from toolgate.tools.execution.stored_turns import StoredRunJournal
from toolgate.tools.tool import Annotations

DIALECTS = pytest.mark.parametrize("client", CLIENTS)
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    return Oracle(tmp_path / "runs")


async def _for_ever(arguments: Mapping[str, Any]) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.fixture
def endless(tmp_path: Path) -> Oracle:
    """It has its effect at once and then never ends."""
    return Oracle(tmp_path / "runs", give=_for_ever, timeout=60.0)


@DIALECTS
@STREAMS
async def test_an_upstream_that_is_asked_again_before_its_first_byte_runs_nothing_twice(
    oracle: Oracle, client: str, stream: bool
) -> None:
    """field: G6, G7"""
    async with at_work(oracle, of_models={"retries": 2}) as work:
        work.play(UpstreamUnavailable("Busy."), [call()], UpstreamUnavailable("Busy."), "Done.")
        response = await work.ask(client, stream=stream)
        assert response.status == 200
        assert b"Done." in response.body
        assert len(oracle.runs) == 1


@DIALECTS
@STREAMS
@pytest.mark.parametrize("farewell", ["reset", "polite"])
async def test_after_a_departure_during_an_unsafe_tool_the_same_request_does_not_run_it_again(
    endless: Oracle, client: str, stream: bool, farewell: str
) -> None:
    """fault: C1, K-B; field: E27"""
    async with at_work(endless) as work:
        script = work.play([Text("Let me."), call()], "Checking.")
        async with work.asking(client, stream=stream) as caller:
            await asyncio.wait_for(endless.began.wait(), 30)
            caller.abort() if farewell == "reset" else caller.writer.close()
            # The retry comes at once, as those of the official clients may.
            response = await asyncio.wait_for(work.ask(client, stream=stream), 30)
        assert response.status == 200
        assert b"Checking." in response.body
        assert results(script.requests[1]) == [INTERRUPTED_CALL]
        assert len(endless.runs) == 1


@DIALECTS
async def test_a_run_that_was_asked_for_again_makes_sure_of_its_client_before_it_runs_anything(
    oracle: Oracle, client: str
) -> None:
    """fault: C1: the client has left while the model thought, which takes a moment to be noticed."""
    async with at_work(oracle) as work:
        thought = asyncio.Event()

        async def think(request: Any) -> Any:
            await thought.wait()
            return [call(number=1)]

        script = work.play(think, [call(number=2)], "Done.")
        async with work.asking(client) as caller:
            await soon(lambda: len(script.requests) == 1)
            caller.writer.close()
            retried = asyncio.ensure_future(work.ask(client, stream=True))
            await soon(lambda: len(script.requests) >= 2)
            thought.set()
            assert b"Done." in (await retried).body
        await work.rest()
        assert len(oracle.runs) == 1


@DIALECTS
async def test_after_a_departure_behind_a_finished_tool_the_same_request_goes_on(oracle: Oracle, client: str) -> None:
    """fault: C1; field: E6, G1"""
    async with at_work(oracle) as work:
        held = asyncio.Event()

        async def slowly(request: Any) -> str:
            await held.wait()
            return "Too late."

        script = work.play([call()], slowly, "Written.")
        async with work.asking(client, stream=True) as caller:
            await soon(lambda: len(script.requests) == 2)
            caller.abort()
        response = await work.ask(client, stream=True)
        held.set()
        assert b"Written." in response.body
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


@DIALECTS
async def test_an_upstream_that_fails_behind_a_finished_tool_leaves_it_done(oracle: Oracle, client: str) -> None:
    """field: G7"""
    async with at_work(oracle) as work:
        script = work.play([call()], UpstreamUnavailable("Out of order."), "Written.")
        response = await work.ask(client)
        assert (response.status, bool(error(client, response))) == (502, True)
        assert output(client, await work.ask(client)) == "Written."
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


async def test_a_call_that_was_cut_off_is_reported_to_be_so_though_a_budget_is_used_up(endless: Oracle) -> None:
    async with at_work(endless) as work:
        script = work.play([call()], "Checking.")
        async with work.asking("openai_chat", max_tool_rounds=1) as caller:
            await asyncio.wait_for(endless.began.wait(), 30)
            caller.abort()
        await work.ask(stream=True, max_tool_rounds=1)
        assert results(script.requests[1]) == [INTERRUPTED_CALL]


async def test_an_idempotent_tool_may_run_again_after_a_departure(tmp_path: Path) -> None:
    """fault: K-C"""
    again = Oracle(tmp_path / "runs", give=_for_ever, timeout=60.0, annotations=Annotations(idempotent=True))
    async with at_work(again) as work:
        work.play([call()], [call()])
        async with work.asking("openai_chat"):
            await asyncio.wait_for(again.began.wait(), 30)
        again.began.clear()
        async with work.asking("openai_chat"):
            await asyncio.wait_for(again.began.wait(), 30)
        assert len(again.runs) == 2


@STREAMS
async def test_two_identical_requests_at_once_are_two_runs_and_neither_is_the_past_of_the_other(
    tmp_path: Path, stream: bool
) -> None:
    gate = asyncio.Event()

    async def give(arguments: Mapping[str, Any]) -> str:
        await gate.wait()
        return "written"

    oracle = Oracle(tmp_path / "runs", give=give, timeout=60.0)
    async with at_work(oracle) as work:

        def answer(request: Any) -> Any:
            return "Done." if results(request) else [call()]

        script = work.play(*[answer] * 4)
        both = [asyncio.ensure_future(work.ask(stream=stream)) for _ in range(2)]
        await soon(lambda: len(oracle.runs) == 2)
        gate.set()
        assert [b"Done." in response.body for response in await asyncio.gather(*both)] == [True, True]
        assert [results(request) for request in script.requests if results(request)] == [["written"]] * 2


async def test_of_two_retries_that_come_back_at_once_only_one_goes_on_with_the_run(tmp_path: Path) -> None:
    """Calls that had not begun when the client left are run by one of the two; the other is a run of its own."""
    first, second = Oracle(tmp_path / "first", "first", _for_ever, timeout=60.0), Oracle(tmp_path / "second", "second")
    tools = ServerToolSettings(approvals=TRUSTING.approvals, limits=RunLimitSettings(parallel=1))
    numbers = itertools.count()

    def answer(request: Any) -> Any:
        number = next(numbers)
        return "Done." if results(request) else [call("first", number=number), call("second", number=number)]

    async with at_work(first, second, tools=tools) as work:
        work.play(*[answer] * 6)
        async with work.asking("openai_chat") as caller:
            await asyncio.wait_for(first.began.wait(), 30)
            caller.abort()
        first.give = None
        response = await asyncio.gather(work.ask(stream=True), work.ask(stream=True))
        assert [b"Done." in one.body for one in response] == [True, True]
        assert len(set(first.runs)) == len(first.runs) == 2
        assert len(set(second.runs)) == len(second.runs) == 2


async def test_a_finished_turn_that_is_sent_back_without_its_results_does_not_repeat_its_calls(oracle: Oracle) -> None:
    """field: E6"""
    async with at_work(oracle) as work:
        script = work.play([call()], "Done.", "Again.")
        block = (await work.ask("anthropic")).json["content"][0]
        assert block["type"] == "mcp_tool_use"
        turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [block]}]
        assert output("anthropic", await work.ask("anthropic", messages=turns)) == "Again."
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


async def _until(caller: HttpConnection, mark: bytes) -> bytes:
    await caller.head()
    response = b""
    while mark not in response:
        response += await caller.chunk()
    return response


async def test_a_turn_that_broke_off_and_is_sent_back_in_part_does_not_repeat_its_call(endless: Oracle) -> None:
    """fault: K-B: a client that keeps what it has heard of a turn and has it gone on with."""
    async with at_work(endless) as work:
        script = work.play([call()], "Checking.")
        async with work.asking("anthropic") as caller:
            response = await _until(caller, b"content_block_stop")
            await asyncio.wait_for(endless.began.wait(), 30)
            caller.abort()
        lines = [line for line in response.decode().splitlines() if line.startswith("data: ")]
        block = next(it["content_block"] for line in lines if (it := json.loads(line[6:]))["type"].endswith("k_start"))
        block["input"] = {"text": "hi"}
        turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [block]}]
        assert output("anthropic", await work.ask("anthropic", messages=turns)) == "Checking."
        assert results(script.requests[1]) == [INTERRUPTED_CALL]
        assert len(endless.runs) == 1


async def test_an_idempotent_call_that_was_cut_off_is_run_again_under_its_own_key(tmp_path: Path) -> None:
    """fault: K-C: a model that is asked anew would make another call, with another key and another effect."""
    again = Oracle(tmp_path / "runs", give=_for_ever, timeout=60.0, annotations=Annotations(idempotent=True))
    async with at_work(again) as work:
        script = work.play([call(number=1)], "Done.")
        async with work.asking("openai_chat") as caller:
            await asyncio.wait_for(again.began.wait(), 30)
            caller.abort()
        again.give = None
        assert b"Done." in (await work.ask(stream=True)).body
        assert results(script.requests[1]) == ["written"]
        assert (len(again.runs), len(set(again.runs))) == (2, 1)


@DIALECTS
@STREAMS
async def test_an_answer_that_the_client_did_not_receive_is_sent_again_and_nothing_is_run_again(
    oracle: Oracle, client: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: C1, K-A: all was done and said, and the client was gone before it heard the last of it."""
    async with at_work(oracle) as work:
        script = work.play([call()], "Written.")
        with monkeypatch.context() as patched:
            patched.setattr(StoredRunJournal, "delivered", _for_nobody)
            assert b"Written." in (await work.ask(client, stream=stream)).body
        again = await work.ask(client, stream=stream)
        assert b"Written." in again.body
        assert (len(oracle.runs), len(script.requests)) == (1, 2)


async def _for_nobody(journal: StoredRunJournal) -> None:
    """What a server that is killed, or whose client is gone, does when the answer is out."""


async def test_the_same_request_after_its_answer_was_noticed_is_another_run(oracle: Oracle) -> None:
    async with at_work(oracle) as work:
        work.play([call(number=1)], "Done.", [call(number=2)], "Done.")
        for _ in range(2):
            assert output("openai_chat", await work.ask()) == "Done."
        assert len(set(oracle.runs)) == 2
