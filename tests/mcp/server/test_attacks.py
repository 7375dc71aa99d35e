"""MCP servers that mean harm, through the whole server: tools that change unseen, metadata that lures (fault: T7, T8)."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS
from tests.mcp.client.scripted_server import serving
from tests.mcp.client.sources import mock, noted, source_of
from tests.mcp.client.test_accepted_definitions import POISON, offering
from tests.mcp.client.test_http import handshaking
from tests.mcp.oauth.test_oauth import Guarded, jwt
from tests.tools.execution.toolwork import CANARY, TRUSTING, Oracle, Work, at_work, call, emitted, output, results, soon
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, McpLoginSettings, McpServerSettings, ServerToolSettings

DIALECTS = pytest.mark.parametrize("client", CLIENTS)


async def _names(work: Work) -> list[str]:
    return [one["name"] for one in (await work.get("/v1/tools")).json["data"]]


async def _has(work: Work, name: str) -> bool:
    return name in await _names(work)


async def _lacks(work: Work, name: str) -> bool:
    return name not in await _names(work)


async def _accept(work: Work, name: str) -> None:
    [waiting] = (await work.get("/v1/tools")).json["quarantined"]
    assert waiting["offered"]["description"] == POISON
    assert (await work.post(f"/v1/tools/{name}/accept", {"digest": waiting["digest"]})).status == 200


@DIALECTS
async def test_a_tool_whose_definition_changed_is_neither_offered_nor_run_until_it_is_accepted(
    tmp_path: Path, client: str
) -> None:
    """fault: T7"""
    offering(tmp_path, add="Adds numbers.")
    async with at_work(sources=[source_of(mock("plain", tmp_path), check_seconds=0.01)]) as work:
        await soon(lambda: _has(work, "box_add"))
        offering(tmp_path, add=POISON)
        await soon(lambda: _lacks(work, "box_add"))
        script = work.play([call("box_add", '{"a":1}')], "No.")
        assert output(client, await work.ask(client)) == "No."
        assert "box_add" not in [one.name for one in script.requests[0].tools]
        assert "There is no tool 'box_add'" in results(script.requests[1])[0]
        assert POISON not in emitted(script)
        assert noted(tmp_path, "calls") == []
        await _accept(work, "box_add")
        work.play([call("box_add", '{"a":1}')], "Yes.")
        assert output(client, await work.ask(client)) == "Yes."
        assert noted(tmp_path, "calls") == ['{"a": 1}']


async def test_an_approval_of_a_tool_that_changes_meanwhile_lets_nothing_run(tmp_path: Path) -> None:
    """fault: T7, A1: what a person said yes to is not what would run."""
    offering(tmp_path, add="Adds numbers.")
    source = source_of(mock("plain", tmp_path), check_seconds=0.01)
    async with at_work(sources=[source], tools=ServerToolSettings(approvals=ApprovalSettings(hold_seconds=10))) as work:
        await soon(lambda: _has(work, "box_add"))
        work.play([call("box_add", '{"a":1}')], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        question = await work.waiting()
        offering(tmp_path, add=POISON)
        await soon(lambda: _lacks(work, "box_add"))
        await _accept(work, "box_add")
        await soon(lambda: _has(work, "box_add"))
        refused = await work.decide(question["id"])
        assert (refused.status, refused.json["approval"]["state"]) == (409, "out_of_scope")
        assert "waits for approval" in output("openai_chat", await asking)
        assert (await work.waiting())["id"] != question["id"]  # the new definition is another question
        assert noted(tmp_path, "calls") == []


@DIALECTS
async def test_a_server_that_takes_the_name_of_another_tool_gets_none_of_its_calls(tmp_path: Path, client: str) -> None:
    """fault: T7: the newcomer is named otherwise, or is left out."""
    oracle = Oracle(tmp_path / "runs")
    offering(tmp_path, write="Writes, honestly.")
    async with at_work(oracle, sources=[source_of(mock("plain", tmp_path), prefix="")]) as work:
        await soon(lambda: noted(tmp_path, "lists"))
        script = work.play([call()], "Done.")
        assert output(client, await work.ask(client)) == "Done."
        assert [one.description for one in script.requests[0].tools if one.name == "write"] == ["The tool write."]
        assert (len(oracle.runs), noted(tmp_path, "calls")) == (1, [])


async def test_a_storm_of_changes_causes_few_refreshes_and_delays_no_request(tmp_path: Path) -> None:
    """fault: T7: five hundred notices behind every list."""
    async with at_work(sources=[source_of(mock("storm", tmp_path))]) as work:
        await soon(lambda: _has(work, "box_echo"))
        script = work.play([call("box_echo", '{"a":1}')], "Done.")
        assert output("openai_chat", await work.ask()) == "Done."
        assert results(script.requests[1]) == ['{"a": 1}']
        assert len(noted(tmp_path, "lists")) < 20


LURES: Mapping[str, Mapping[str, Any]] = {
    "metadata address": {"authority": {"token_endpoint": "http://169.254.169.254/latest/token"}},
    "unwrapped address": {"authority": {"token_endpoint": "https://[::ffff:169.254.169.254]/token"}},
    "script": {"authority": {"token_endpoint": "javascript:alert(1)"}},
    "shell": {"authority": {"token_endpoint": "https://example.org/`reboot`"}},
    "private authority": {"resource": {"authorization_servers": ["https://10.0.0.1/"]}},
    "somebody else's resource": {"resource": {"resource": "https://somebody.example/mcp"}},
}


def away(url: str) -> ServerToolSettings:
    """A server that wants a token of a machine, whose secret must go nowhere but to its own authority."""
    login = McpLoginSettings(grant="client_credentials", client_id="me", client_secret=Secret(CANARY))
    return ServerToolSettings(approvals=TRUSTING.approvals, mcp={"box": McpServerSettings(url=url, oauth=login)})


async def _troubled(work: Work) -> list[str]:
    troubles = (await work.get("/v1/tools")).json["troubles"]
    return [one["message"] for one in troubles if "being connected" not in one["message"]]


@pytest.mark.parametrize("lure", LURES)
async def test_metadata_that_lures_elsewhere_gets_no_secret_and_the_rest_goes_on(
    tmp_path: Path, lure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: T8"""
    monkeypatch.chdir(tmp_path)
    guarded, oracle = Guarded(**LURES[lure]), Oracle(tmp_path / "runs")
    async with serving(guarded) as guarded.web:
        async with at_work(oracle, tools=away(f"{guarded.base}/mcp")) as work:
            await soon(lambda: _troubled(work))
            work.play([call()], "Done.")
            assert output("openai_chat", await work.ask()) == "Done."
            assert CANARY not in json.dumps((await work.get("/v1/tools")).json)
        assert guarded.forms == []
        assert all(CANARY not in str(asked) for asked in guarded.web.asked)


async def test_a_token_for_another_audience_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault: T8"""
    monkeypatch.chdir(tmp_path)
    guarded = Guarded()
    guarded.access = jwt(aud=["https://bank.example"])
    async with serving(guarded) as guarded.web:
        async with at_work(tools=away(f"{guarded.base}/mcp")) as work:
            [problem] = await soon(lambda: _troubled(work))
            assert "a token for another audience" in problem
        assert all(guarded.access not in asked.headers.get("authorization", "") for asked in guarded.web.asked)


@DIALECTS
async def test_a_clients_own_key_never_reaches_a_tool_server(
    tmp_path: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: T8"""
    monkeypatch.chdir(tmp_path)
    key = KeySettings(name="ann", key=Secret(f"ann-{CANARY}"), scopes=("chat", "tools"))
    async with serving(handshaking) as web:
        tools = ServerToolSettings(approvals=TRUSTING.approvals, mcp={"box": McpServerSettings(url=web.url)})
        async with at_work(tools=tools, keys=(key,)) as work:
            await soon(lambda: _knows(work, f"ann-{CANARY}"))
            work.play([call("box_echo", "{}")], "Done.")
            assert output(client, await work.ask(client, key=f"ann-{CANARY}")) == "Done."
        assert "tools/call" in web.methods()
        assert all(CANARY not in str(asked) for asked in web.asked)


async def _knows(work: Work, key: str) -> bool:
    return "box_echo" in [one["name"] for one in (await work.get("/v1/tools", key)).json["data"]]
