"""Two guards over the whole server, on real sockets: no tool runs with arguments that do not fit, and no tool of the client
is run by the server.

An oracle writes down every run; each guard was removed once to see its tests fail.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, HttpResponse
from tests.tools.execution.toolwork import Oracle, Work, at_work, call, calls, output, results, tool
from toolgate.config.settings import ApprovalSettings, ServerToolSettings
from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text

ASKING = ServerToolSettings(approvals=ApprovalSettings(hold_seconds=5))
DIALECTS = pytest.mark.parametrize("client", CLIENTS)
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    return Oracle(tmp_path / "runs")


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
    """spec: R6; field: E7"""
    async with at_work(oracle) as work:
        for arguments in BAD_ARGUMENTS.values():
            script = work.play([call(arguments=arguments)], "I see.")
            assert output(client, await work.ask(client)).endswith("I see.")
            assert all("nothing was run" in one for one in results(script.requests[1])), arguments
        assert oracle.runs == []


@DIALECTS
@STREAMS
@pytest.mark.parametrize("arguments", ['{"text":"h', '{"text":"hi"}', ""])
async def test_a_call_that_the_token_limit_cut_off_is_not_run(
    oracle: Oracle, client: str, stream: bool, arguments: str
) -> None:
    """spec: R6; field: A26"""
    async with at_work(oracle) as work:
        cut = ModelResponse((Text("Let me."), call(arguments=arguments, complete=False)), "length")
        script = work.play(cut)
        response = await work.ask(client, stream=stream)
        assert response.status == 200
        assert len(script.requests) == 1
        assert oracle.runs == []


@DIALECTS
@STREAMS
@pytest.mark.parametrize("model", CLIENTS)
async def test_a_call_in_a_stream_that_broke_is_not_run(oracle: Oracle, client: str, stream: bool, model: str) -> None:
    """fault: U5; field: A27"""
    async with at_work(oracle) as work:
        work.play([Text("Let me."), call(), InvalidUpstreamAnswer("The line broke.")])
        response = await work.ask(client, stream=stream, model=model)
        assert (response.status == 502) is not stream
        assert b"broke" in response.body or b"rror" in response.body
        assert oracle.runs == []


@pytest.mark.parametrize("edited", [{}, {"text": 1}, {"text": "hi", "force": True}, {"other": "hi"}])
async def test_arguments_that_an_approver_edited_must_fit_as_well(oracle: Oracle, edited: Any) -> None:
    """spec: A2"""
    async with at_work(oracle, tools=ASKING) as work:
        script = work.play([call()], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        id = (await work.waiting())["id"]
        assert (await work.decide(id, arguments=edited)).status == 200
        assert output("openai_chat", await asking) == "Then not."
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
        assert output("openai_chat", await asking) == "Done."
        assert (seen, len(oracle.runs)) == ([{"text": "edited"}], 1)


# (b) Ownership


@DIALECTS
@STREAMS
@pytest.mark.parametrize("model", CLIENTS)
async def test_a_tool_of_the_client_is_the_clients_though_the_server_has_one_of_that_name(
    oracle: Oracle, client: str, stream: bool, model: str
) -> None:
    """spec: X3; field: E14"""
    own = tool(client, "write", {"type": "object", "properties": {"text": {"type": "string"}}})
    async with at_work(oracle) as work:
        script = work.play([call()], "Not needed.")
        response = await work.ask(client, stream=stream, model=model, tools=[own])
        assert response.status == 200
        assert b"write" in response.body
        assert stream or calls(client, response) == ["write"]
        assert len(script.requests) == 1
        assert [one.name for one in script.requests[0].tools].count("write") == 1
        assert oracle.runs == []


def _lists(work: Work) -> Awaitable[HttpResponse]:
    return work.get("/v1/tools?name=write")


@DIALECTS
async def test_a_definition_copied_from_the_list_means_the_servers_tool(oracle: Oracle, client: str) -> None:
    async with at_work(oracle) as work:
        listed = (await _lists(work)).json["data"][0]
        copied = tool(client, "write", listed["inputSchema"], listed["description"])
        work.play([call()], "Done.")
        assert output(client, await work.ask(client, tools=[copied], use_server_tools=False)) == "Done."
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
        response = await work.ask(client, tools=[tool(client, "write", it["schema"], it["description"])])
        assert calls(client, response) == ["write"]
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
        response = await work.ask("openai_responses", tools=[space], model=model)
        assert calls("openai_responses", response) == ["write"]
        assert oracle.runs == []


@pytest.mark.parametrize("model", CLIENTS)
async def test_a_freeform_tool_of_the_client_is_the_clients(oracle: Oracle, model: str) -> None:
    """field: B31"""
    async with at_work(oracle) as work:
        arguments = '{"input":"hi"}'
        work.play(
            [call(arguments="hi" if model == "openai_responses" else arguments, freeform=model == "openai_responses")]
        )
        response = await work.ask("openai_responses", tools=[{"type": "custom", "name": "write"}], model=model)
        assert calls("openai_responses", response) == ["write"]
        assert oracle.runs == []


@DIALECTS
async def test_a_result_for_a_tool_of_the_client_runs_nothing_when_it_comes_back(oracle: Oracle, client: str) -> None:
    """spec: X7: the client's own call in the history, without a result, is not a call to run."""
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
        assert output(client, await work.ask(client, tools=[own], **history)) == "Lost it."
        assert oracle.runs == []
