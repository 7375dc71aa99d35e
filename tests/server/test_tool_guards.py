"""The three guards over the whole server, on real sockets: no tool runs with arguments that do not fit, no tool of the
client is run by the server, and nothing runs twice because something was retried.

An oracle writes down every run; each guard was removed once to see its tests fail.
"""

import asyncio
import itertools
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.server.talk import CLIENTS, PATHS, Caller, Heard, ask, body
from tests.server.toolwork import (
    AUTO,
    TRUSTING,
    Oracle,
    Work,
    at_work,
    call,
    calls,
    error,
    results,
    said,
    soon,
    tool,
)
from tests.stage import Player, upstream_config
from toolgate.config.settings import Approvals, RunLimits, Tools
from toolgate.conversation.errors import Garbled, Unavailable
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text
from toolgate.engine.rounds import INTERRUPTED
from toolgate.server.build import Toolgate
from toolgate.server.listen import listening
from toolgate.testing import ScriptedModel
from toolgate.tools.tool import Annotations

ASKING = Tools(approvals=Approvals(hold_seconds=5))
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


# (a) Arguments


BAD_ARGUMENTS = {
    "nothing": "",
    "an empty object": "{}",
    "cut off": '{"text":"h',
    "no JSON": "text=hi",
    "two objects": '{"text":"a"}{"text":"b"}',
    "a list": '["hi"]',
    "a string": '"hi"',
    "a wrong type": '{"text":1}',
    "null": '{"text":null}',
    "a field too many": '{"text":"hi","force":true}',
    "another name": '{"txt":"hi"}',
    "no number": '{"text":NaN}',
}


@DIALECTS
async def test_arguments_that_do_not_fit_never_reach_a_tool(oracle: Oracle, client: str) -> None:
    """R6; field: E7"""
    async with at_work(oracle) as work:
        for arguments in BAD_ARGUMENTS.values():
            script = work.play([call(arguments=arguments)], "I see.")
            assert said(client, await work.ask(client)).endswith("I see.")
            assert all("nothing was run" in one for one in results(script.requests[1])), arguments
        assert oracle.runs == []


@DIALECTS
@STREAMS
@pytest.mark.parametrize("arguments", ['{"text":"h', '{"text":"hi"}', ""])
async def test_a_call_that_the_token_limit_cut_off_is_not_run(
    oracle: Oracle, client: str, stream: bool, arguments: str
) -> None:
    """R6; field: A26"""
    async with at_work(oracle) as work:
        cut = ModelResponse((Text("Let me."), call(arguments=arguments, complete=False)), "length")
        script = work.play(cut)
        heard = await work.ask(client, stream=stream)
        assert heard.status == 200
        assert len(script.requests) == 1
        assert oracle.runs == []


@DIALECTS
@STREAMS
@pytest.mark.parametrize("model", CLIENTS)
async def test_a_call_in_a_stream_that_broke_is_not_run(oracle: Oracle, client: str, stream: bool, model: str) -> None:
    """fault: U5; field: A27"""
    async with at_work(oracle) as work:
        work.play([Text("Let me."), call(), Garbled("The line broke.")])
        heard = await work.ask(client, stream=stream, model=model)
        assert (heard.status == 502) is not stream
        assert b"broke" in heard.body or b"rror" in heard.body
        assert oracle.runs == []


@pytest.mark.parametrize("edited", [{}, {"text": 1}, {"text": "hi", "force": True}, {"other": "hi"}])
async def test_arguments_that_an_approver_edited_must_fit_as_well(oracle: Oracle, edited: Any) -> None:
    """A2"""
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        id = (await work.waiting())["id"]
        assert (await work.decide(id, arguments=edited)).status == 200
        assert said("openai_chat", await asking) == "Then not."
        assert "nothing was run" in results(script.requests[1])[0]
        assert oracle.runs == []


async def test_arguments_that_an_approver_edited_are_those_that_run(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def give(arguments: Mapping[str, Any]) -> str:
        seen.append(dict(arguments))
        return "written"

    oracle = Oracle(tmp_path / "runs", give=give)
    async with at_work(oracle, tools=ASKING) as work:
        work.play([call()], "Done.")
        asking = asyncio.ensure_future(work.ask())
        assert (await work.decide((await work.waiting())["id"], arguments={"text": "edited"})).status == 200
        assert said("openai_chat", await asking) == "Done."
        assert (seen, len(oracle.runs)) == ([{"text": "edited"}], 1)


# (b) Ownership


@DIALECTS
@STREAMS
@pytest.mark.parametrize("model", CLIENTS)
async def test_a_tool_of_the_client_is_the_clients_though_the_server_has_one_of_that_name(
    oracle: Oracle, client: str, stream: bool, model: str
) -> None:
    """X3; field: E14"""
    own = tool(client, "write", {"type": "object", "properties": {"text": {"type": "string"}}})
    async with at_work(oracle) as work:
        script = work.play([call()], "Not needed.")
        heard = await work.ask(client, stream=stream, model=model, tools=[own])
        assert heard.status == 200
        assert b"write" in heard.body
        assert stream or calls(client, heard) == ["write"]
        assert len(script.requests) == 1
        assert [one.name for one in script.requests[0].tools].count("write") == 1
        assert oracle.runs == []


def _lists(work: Work) -> Awaitable[Heard]:
    return work.get("/v1/tools?name=write")


@DIALECTS
async def test_a_definition_copied_from_the_list_means_the_servers_tool(oracle: Oracle, client: str) -> None:
    async with at_work(oracle) as work:
        listed = (await _lists(work)).json["data"][0]
        copied = tool(client, "write", listed["inputSchema"], listed["description"])
        work.play([call()], "Done.")
        assert said(client, await work.ask(client, tools=[copied], use_server_tools=False)) == "Done."
        assert len(oracle.runs) == 1


ALMOST: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another description": lambda it: {**it, "description": "Writes on the client's own disk."},
    "no description": lambda it: {**it, "description": None},
    "another schema": lambda it: {**it, "schema": {**it["schema"], "required": []}},
    "a field more": lambda it: {**it, "schema": {**it["schema"], "title": "Write"}},
}


@DIALECTS
@pytest.mark.parametrize("difference", ALMOST)
async def test_a_definition_that_differs_from_the_list_in_anything_is_the_clients(
    oracle: Oracle, client: str, difference: str
) -> None:
    async with at_work(oracle) as work:
        listed = (await _lists(work)).json["data"][0]
        it = ALMOST[difference]({"schema": listed["inputSchema"], "description": listed["description"]})
        work.play([call()])
        heard = await work.ask(client, tools=[tool(client, "write", it["schema"], it["description"])])
        assert calls(client, heard) == ["write"]
        assert oracle.runs == []


@pytest.mark.parametrize("model", CLIENTS)
async def test_a_tool_in_a_namespace_of_the_client_is_the_clients_even_if_it_is_a_copy(
    oracle: Oracle, model: str
) -> None:
    """field: B32"""
    async with at_work(oracle) as work:
        listed = (await _lists(work)).json["data"][0]
        copied = tool("openai_responses", "write", listed["inputSchema"], listed["description"])
        space = {"type": "namespace", "name": "mine", "description": "Mine.", "tools": [copied]}

        def obey(request: Any) -> Any:
            return [call(request.tools[0].name)]

        work.play(obey)
        heard = await work.ask("openai_responses", tools=[space], model=model)
        assert calls("openai_responses", heard) == ["write"]
        assert oracle.runs == []


@pytest.mark.parametrize("model", CLIENTS)
async def test_a_freeform_tool_of_the_client_is_the_clients(oracle: Oracle, model: str) -> None:
    """field: B31"""
    async with at_work(oracle) as work:
        arguments = '{"input":"hi"}'
        work.play(
            [call(arguments="hi" if model == "openai_responses" else arguments, freeform=model == "openai_responses")]
        )
        heard = await work.ask("openai_responses", tools=[{"type": "custom", "name": "write"}], model=model)
        assert calls("openai_responses", heard) == ["write"]
        assert oracle.runs == []


@DIALECTS
async def test_a_result_for_a_tool_of_the_client_runs_nothing_when_it_comes_back(oracle: Oracle, client: str) -> None:
    """X7: the client's own call in the history, without a result, is not a call to run."""
    own = tool(client, "write")
    async with at_work(oracle) as work:
        work.play("Lost it.")
        said_before: dict[str, Any] = {
            "openai_chat": {
                "role": "assistant",
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "write", "arguments": '{"text":"x"}'}}
                ],
            },
            "ollama": {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "write", "arguments": {"text": "x"}}}],
            },
            "anthropic": {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "call_1", "name": "write", "input": {"text": "x"}}],
            },
            "openai_responses": {
                "type": "function_call",
                "call_id": "call_1",
                "name": "write",
                "arguments": '{"text":"x"}',
            },
        }
        turns = [{"role": "user", "content": "Write."}, said_before[client], {"role": "user", "content": "And now?"}]
        history: Any = {"input" if client == "openai_responses" else "messages": turns}
        assert said(client, await work.ask(client, tools=[own], **history)) == "Lost it."
        assert oracle.runs == []


# (c) Repetition


@DIALECTS
@STREAMS
async def test_an_upstream_that_is_asked_again_before_its_first_byte_runs_nothing_twice(
    oracle: Oracle, client: str, stream: bool
) -> None:
    """field: G6, G7"""
    async with at_work(oracle, of_models={"retries": 2}) as work:
        work.play(Unavailable("Busy."), [call()], Unavailable("Busy."), "Done.")
        heard = await work.ask(client, stream=stream)
        assert heard.status == 200
        assert b"Done." in heard.body
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
            await asyncio.wait_for(endless.began.wait(), 5)
            caller.hang_up() if farewell == "reset" else caller.writer.close()
            # The retry comes at once, as those of the official clients may.
            heard = await asyncio.wait_for(work.ask(client, stream=stream), 5)
        assert heard.status == 200
        assert b"Checking." in heard.body
        assert results(script.requests[1]) == [INTERRUPTED]
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
            caller.hang_up()
        heard = await work.ask(client, stream=True)
        held.set()
        assert b"Written." in heard.body
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


@DIALECTS
async def test_an_upstream_that_fails_behind_a_finished_tool_leaves_it_done(oracle: Oracle, client: str) -> None:
    """field: G7"""
    async with at_work(oracle) as work:
        script = work.play([call()], Unavailable("Out of order."), "Written.")
        heard = await work.ask(client)
        assert (heard.status, bool(error(client, heard))) == (502, True)
        assert said(client, await work.ask(client)) == "Written."
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_call_that_waited_for_a_person_is_one_round_however_often_it_is_asked_for(
    oracle: Oracle, rounds: int
) -> None:
    """X2, A3"""
    async with at_work(oracle, tools=Tools(approvals=Approvals(hold_seconds=0.01))) as work:
        script = work.play([call()], "Done.")
        for _ in range(3):
            assert "waits for approval" in said("openai_chat", await work.ask(max_tool_rounds=rounds))
        assert (await work.decide((await work.waiting())["id"])).status == 200
        assert said("openai_chat", await work.ask(max_tool_rounds=rounds)) == "Done."
        assert results(script.requests[1]) == ["written"]
        assert len(oracle.runs) == 1


async def test_a_call_that_was_cut_off_is_said_to_be_so_though_a_budget_is_used_up(endless: Oracle) -> None:
    async with at_work(endless) as work:
        script = work.play([call()], "Checking.")
        async with work.asking("openai_chat", max_tool_rounds=1) as caller:
            await asyncio.wait_for(endless.began.wait(), 5)
            caller.hang_up()
        await work.ask(stream=True, max_tool_rounds=1)
        assert results(script.requests[1]) == [INTERRUPTED]


async def test_after_a_restart_the_same_request_does_not_run_an_unsafe_tool_again(tmp_path: Path) -> None:
    """D3; fault: K-B: the server is killed in the middle of the call."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "writer.py").write_text(WRITER)
    runs = tmp_path / "runs"
    async with listening(Toolgate(upstream_config(), {"played": (player := Player())})) as upstream:
        config = killable(tmp_path, upstream)
        player.scripted = script = ScriptedModel([[call(arguments="{}")], "Checking."])
        async with served(config) as (url, process), Caller(url) as caller:
            await caller.post(PATHS["openai_chat"], body("openai_chat", "m", False, "Go.", **AUTO))
            await soon(runs.exists, seconds=15)
            process.kill()
        async with served(config) as (url, _):
            heard = await ask(url, PATHS["openai_chat"], body("openai_chat", "m", False, "Go.", **AUTO))
            assert said("openai_chat", heard) == "Checking."
        assert results(script.requests[1]) == [INTERRUPTED]
        assert runs.read_text() == "ran\n"


WRITER = """
import os, time
from pathlib import Path
from toolgate.lm import tool

@tool()
def write() -> str:
    "Writes."
    with (Path(__file__).parents[1] / "runs").open("a") as file:
        file.write("ran\\n")
        file.flush()
        os.fsync(file.fileno())
    time.sleep(60)
    return "written"
"""


def killable(place: Path, upstream: str) -> Path:
    """A configuration for a process of its own."""
    config = {
        "server": {"port": 0},
        "upstreams": {"up": {"dialect": "openai_chat", "base_url": f"{upstream}/v1"}},
        "models": [{"name": "m", "upstream": "up", "model": "played"}],
        "tools": {
            "python": ["tools"],
            "limits": {"call_seconds": 60},
            "approvals": {"default": "allow"},
        },
        "storage": f"sqlite:///{place}/toolgate.db",
    }
    path = place / "toolgate.yaml"
    path.write_text(json.dumps(config))
    return path


async def _has(url: str, name: str) -> bool:
    async with Caller(url) as caller:
        caller.writer.write(f"GET /v1/tools/{name} HTTP/1.1\r\nhost: {url[7:]}\r\n\r\n".encode())
        return (await caller.answer()).status == 200


@asynccontextmanager
async def served(config: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A server in a process of its own, once its tools are there."""
    program = [sys.executable, "-c", "from toolgate.cli import main; main()"]
    command = [*program, "serve", "--config", str(config), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, cwd=config.parent)
    assert process.stderr is not None
    try:
        line = b""
        while b"http://" not in line:
            line = await asyncio.wait_for(process.stderr.readline(), 20)
            assert line, "the server did not start"
        url = re.search(r"http://[0-9.:]+", line.decode())
        assert url is not None
        await soon(lambda: _has(url[0], "write"), seconds=15)
        yield url[0], process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_an_idempotent_tool_may_run_again_after_a_departure(tmp_path: Path) -> None:
    """fault: K-C"""
    again = Oracle(tmp_path / "runs", give=_for_ever, timeout=60.0, annotations=Annotations(idempotent=True))
    async with at_work(again) as work:
        work.play([call()], [call()])
        async with work.asking("openai_chat"):
            await asyncio.wait_for(again.began.wait(), 5)
        again.began.clear()
        async with work.asking("openai_chat"):
            await asyncio.wait_for(again.began.wait(), 5)
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
        assert [b"Done." in heard.body for heard in await asyncio.gather(*both)] == [True, True]
        assert [results(request) for request in script.requests if results(request)] == [["written"]] * 2


async def test_of_two_retries_that_come_back_at_once_only_one_goes_on_with_the_run(tmp_path: Path) -> None:
    """Calls that had not begun when the client left are run by one of the two; the other is a run of its own."""
    first, second = Oracle(tmp_path / "first", "first", _for_ever, timeout=60.0), Oracle(tmp_path / "second", "second")
    tools = Tools(approvals=TRUSTING.approvals, limits=RunLimits(parallel=1))
    numbers = itertools.count()

    def answer(request: Any) -> Any:
        number = next(numbers)
        return "Done." if results(request) else [call("first", number=number), call("second", number=number)]

    async with at_work(first, second, tools=tools) as work:
        work.play(*[answer] * 6)
        async with work.asking("openai_chat") as caller:
            await asyncio.wait_for(first.began.wait(), 5)
            caller.hang_up()
        first.give = None
        heard = await asyncio.gather(work.ask(stream=True), work.ask(stream=True))
        assert [b"Done." in one.body for one in heard] == [True, True]
        assert len(set(first.runs)) == len(first.runs) == 2
        assert len(set(second.runs)) == len(second.runs) == 2


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
async def test_one_approval_lets_one_of_two_identical_calls_run(oracle: Oracle, client: str) -> None:
    """A2: it is used up by the call that it allows."""
    async with at_work(oracle, tools=ASKING) as work:

        def answer(request: Any) -> Any:
            return "Done." if results(request) else [call()]

        work.play(*[answer] * 6)
        both = [asyncio.ensure_future(work.ask(client)) for _ in range(2)]
        await work.decide((await work.waiting())["id"])
        await soon(lambda: len(oracle.runs) == 1)
        assert (await work.decide((await work.waiting())["id"], "deny")).status == 200
        await asyncio.gather(*both)
        assert len(oracle.runs) == 1


async def test_an_approval_is_answered_once_and_its_call_runs_once(oracle: Oracle) -> None:
    """A2; fault: M1, A2"""
    async with at_work(oracle, tools=ASKING) as work:
        work.play([call()], "Done.")
        asking = asyncio.ensure_future(work.ask())
        id = (await work.waiting())["id"]
        answers = await asyncio.gather(*[work.decide(id) for _ in range(20)])
        assert sorted([one.status for one in answers]) == [200, *[409] * 19]
        assert said("openai_chat", await asking) == "Done."
        assert len(oracle.runs) == 1


async def asked(work: Work) -> tuple[str, str]:
    """Have the model ask for an approval over Responses: the ids of the response and of the approval."""
    first = await work.ask("openai_responses", store=True)
    item = next(item for item in first.json["output"] if item["type"] == "mcp_approval_request")
    return first.json["id"], item["id"]


def decided(previous: str, id: str) -> dict[str, Any]:
    answer = {"type": "mcp_approval_response", "approval_request_id": id, "approve": True}
    return {"input": [answer], "previous_response_id": previous, "store": True}


async def test_the_same_approving_request_again_after_a_departure_runs_nothing_twice(endless: Oracle) -> None:
    """A3; fault: K-D"""
    async with at_work(endless, tools=ASKING) as work:
        script = work.play([call()], "Checking.")
        previous, id = await asked(work)
        async with work.asking("openai_responses", **decided(previous, id)) as caller:
            await asyncio.wait_for(endless.began.wait(), 5)
            caller.hang_up()
        heard = await work.ask("openai_responses", stream=True, **decided(previous, id))
        assert b"Checking." in heard.body, heard.body
        assert results(script.requests[1]) == [INTERRUPTED]
        assert len(endless.runs) == 1


@pytest.mark.parametrize("annotations", [Annotations(), Annotations(idempotent=True)], ids=["unsafe", "idempotent"])
async def test_the_same_approving_request_again_after_an_upstream_failed_goes_on(
    tmp_path: Path, annotations: Annotations
) -> None:
    oracle = Oracle(tmp_path / "runs", annotations=annotations)
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], Unavailable("Out of order."), "Written.")
        previous, id = await asked(work)
        assert (await work.ask("openai_responses", **decided(previous, id))).status == 502
        heard = await work.ask("openai_responses", **decided(previous, id))
        assert said("openai_responses", heard) == "Written."
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


async def test_the_same_approving_request_after_its_run_is_over_finds_the_result(oracle: Oracle) -> None:
    """A2: for a client to which the answer was lost on its last yards."""
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], "Done.", "Done.")
        previous, id = await asked(work)
        for _ in range(2):
            assert said("openai_responses", await work.ask("openai_responses", **decided(previous, id))) == "Done."
        assert results(script.requests[2]) == ["written"]
        assert (await work.decide(id)).status == 409
        assert len(oracle.runs) == 1


async def test_a_finished_turn_that_is_sent_back_without_its_results_does_not_repeat_its_calls(oracle: Oracle) -> None:
    """field: E6"""
    async with at_work(oracle) as work:
        script = work.play([call()], "Done.", "Again.")
        block = (await work.ask("anthropic")).json["content"][0]
        assert block["type"] == "mcp_tool_use"
        turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [block]}]
        assert said("anthropic", await work.ask("anthropic", messages=turns)) == "Again."
        assert results(script.requests[2]) == ["written"]
        assert len(oracle.runs) == 1


async def _until(caller: Caller, mark: bytes) -> bytes:
    await caller.head()
    heard = b""
    while mark not in heard:
        heard += await caller.piece()
    return heard


async def test_a_turn_that_broke_off_and_is_sent_back_in_part_does_not_repeat_its_call(endless: Oracle) -> None:
    """fault: K-B: a client that keeps what it has heard of a turn and has it gone on with."""
    async with at_work(endless) as work:
        script = work.play([call()], "Checking.")
        async with work.asking("anthropic") as caller:
            heard = await _until(caller, b"content_block_stop")
            await asyncio.wait_for(endless.began.wait(), 5)
            caller.hang_up()
        lines = [line for line in heard.decode().splitlines() if line.startswith("data: ")]
        block = next(it["content_block"] for line in lines if (it := json.loads(line[6:]))["type"].endswith("k_start"))
        block["input"] = {"text": "hi"}
        turns = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": [block]}]
        assert said("anthropic", await work.ask("anthropic", messages=turns)) == "Checking."
        assert results(script.requests[1]) == [INTERRUPTED]
        assert len(endless.runs) == 1
