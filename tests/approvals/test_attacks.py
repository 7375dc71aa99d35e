"""Ways to get round a person's consent, through the whole server: deceit, fatigue, look-alikes (fault: A3, A4, A5, A6)."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import CLIENTS
from tests.approvals.test_auto_approve import GOOD
from tests.mcp.client.sources import mock, source_of
from tests.mcp.client.test_accepted_definitions import offering
from tests.tools.execution.toolwork import TRUSTING, Oracle, Work, at_work, call, output, results, soon
from toolgate.config.settings import ApprovalSettings, BuiltinToolSettings, RunLimitSettings, ServerToolSettings
from toolgate.testing import FakeTool
from toolgate.tools.tool import Annotations

DIALECTS = pytest.mark.parametrize("client", CLIENTS)
ASKING = ServerToolSettings(approvals=ApprovalSettings(hold_seconds=5))


@pytest.fixture
def oracle(tmp_path: Path) -> Oracle:
    return Oracle(tmp_path / "runs")


SPOOFS: Mapping[str, str] = {
    "bidi": "\u202e.gnihton setirW",
    "zero width": "de\u200blete",
    "newlines": "safe" + "\n" * 10_000 + "rm -rf /",
    "ANSI": "\x1b[2J\x1b[1;1Hnothing to see",
    "HTML": "<script>approve()</script>",
    "mixed scripts": "p\u0430ypal",
    "full width": "\uff52\uff4d -rf /",
}


@pytest.mark.parametrize("spoof", SPOOFS)
async def test_an_approver_sees_what_is_there_whole_and_escaped(oracle: Oracle, spoof: str) -> None:
    """fault: A3"""
    text = SPOOFS[spoof]
    async with at_work(oracle, tools=ASKING) as work:
        work.play([call(arguments=json.dumps({"text": text}))], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        question = await work.waiting()
        shown = question["arguments"]
        assert json.loads(shown) == {"text": text}  # nothing is cut, nothing is changed
        assert all(char.isprintable() for char in shown)
        assert spoof == "HTML" or text not in shown
        assert (question["tool"], question["source"], len(question["digest"])) == ("write", "python", 32)
        assert (await work.decide(question["id"], "deny")).status == 200
        await asking
        assert oracle.runs == []


async def test_a_tool_that_looks_like_another_is_distinguished_by_name_and_origin(
    oracle: Oracle, tmp_path: Path
) -> None:
    """fault: A3"""
    offering(tmp_path, wrіte="Writes.")
    async with at_work(oracle, sources=[source_of(mock("plain", tmp_path), prefix="")], tools=ASKING) as work:
        await soon(lambda: _has(work, "wr_te"))
        work.play([call("wr_te", "{}")], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        question = await work.waiting()
        assert (question["tool"], question["source"], question["origin"]) == ("wr_te", "mcp/box", "wr\\u0456te")
        assert (await work.decide(question["id"], "deny")).status == 200
        await asking


async def test_consent_for_a_session_is_refused_where_there_is_none(oracle: Oracle) -> None:
    """It would cover every other call of the key that belongs to no session, for a day."""
    async with at_work(oracle, tools=ASKING) as work:
        work.play([call()], "Then not.")
        asking = asyncio.ensure_future(work.ask())
        question = await work.waiting()
        refused = await work.post(f"/v1/approvals/{question['id']}", {"decision": "approve", "level": "session"})
        assert (refused.status, refused.json["error"]["param"]) == (400, "level")
        assert (await work.decide(question["id"], "deny")).status == 200
        await asking
        assert (await work.get("/v1/approvals/grants")).json["data"] == []


async def _has(work: Work, name: str) -> bool:
    return name in [one["name"] for one in (await work.get("/v1/tools")).json["data"]]


async def _are_pending(work: Work, count: int) -> bool:
    pending = (await work.get("/v1/approvals?state=pending")).json["data"]
    assert len(pending) <= count
    return len(pending) == count


@DIALECTS
async def test_a_run_that_asks_five_hundred_times_gets_twenty_approvals_and_then_denials(
    tmp_path: Path, client: str
) -> None:
    """fault: A4"""
    oracle = Oracle(tmp_path / "runs")
    setup = ServerToolSettings(
        approvals=ApprovalSettings(hold_seconds=10), limits=RunLimitSettings(calls=1000, parallel=64)
    )
    async with at_work(oracle, tools=setup) as work:
        many = [call(arguments=json.dumps({"text": str(number)}), number=number) for number in range(500)]
        script = work.play(many, "Enough.")
        asking = asyncio.ensure_future(work.ask(client))
        run = (await work.waiting())["run"]
        if client != "openai_responses":  # which asks and does not wait
            await soon(lambda: _are_pending(work, 20))
            assert len((await work.post("/v1/approvals/deny_all", {"run": run})).json["denied"]) == 20
        assert (await asyncio.wait_for(asking, 30)).status == 200
        assert len((await work.get("/v1/approvals")).json["data"]) == 20
        if client != "openai_responses":
            assert len([one for one in results(script.requests[1]) if "was not allowed" in one]) == 500
        assert oracle.runs == []


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
async def test_no_tool_writes_what_the_server_is_ruled_by(
    tmp_path: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: A5: the configuration, its logins and the tools' own code lie in a folder that tools may write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toolgate.yaml").write_text("{}")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "own.py").write_text("")
    (tmp_path / "link.txt").symlink_to("toolgate.yaml")
    setup = ServerToolSettings(
        approvals=TRUSTING.approvals,
        builtin=BuiltinToolSettings(roots=(str(tmp_path),)),
        python=(str(tmp_path / "tools"),),
    )
    paths = ("toolgate.yaml", "./toolgate.yaml", "tools/own.py", "tools/new.py", "link.txt", "toolgate-logins.json")
    async with at_work(tools=setup, source=tmp_path / "toolgate.yaml") as work:
        written = [call("write_file", json.dumps({"path": path, "content": "evil"}), n) for n, path in enumerate(paths)]
        script = work.play([*written, call("write_file", '{"path":"fine.txt","content":"good"}', 99)], "Done.")
        asking = asyncio.ensure_future(work.ask(client))
        while not asking.done():  # even with consent to everything
            for one in (await work.get("/v1/approvals?state=pending")).json["data"]:
                await work.decide(one["id"])
            await asyncio.sleep(0.01)
        assert output(client, await asking) == "Done."
        *refused, fine = results(script.requests[1])
        assert (tmp_path / "fine.txt").read_text() == "good", fine
        assert len(refused) == len(paths)
    assert (tmp_path / "toolgate.yaml").read_text() == "{}"
    assert sorted(path.name for path in (tmp_path / "tools").iterdir() if path.is_file()) == ["own.py"]
    assert (tmp_path / "tools" / "own.py").read_text() == ""
    assert not (tmp_path / "toolgate-logins.json").exists()


@DIALECTS
async def test_no_tool_reaches_the_servers_own_doors(oracle: Oracle, client: str) -> None:
    """fault: A5: the address of the server itself is as closed to tools as any other on the inside."""
    async with at_work(oracle, tools=TRUSTING) as work:
        urls = [f"{work.url}/v1/approvals", work.url.replace("127.0.0.1", "localhost") + "/v1/tools"]
        script = work.play([call("fetch", json.dumps({"url": url}), n) for n, url in enumerate(urls)], "No way.")
        assert output(client, await work.ask(client)) == "No way."
        assert all('"object"' not in one for one in results(script.requests[1]))


MEANT = ("https://good.io/", "https://good.io/a?b=c")
NOT_MEANT = (
    "https://good.io.evil.com/",
    "https://good.io@evil.com/",
    "https://user:pass@good.io/",
    "https://good.io\\@evil.com/",
    "https://xn--gd-nmca.io/",
    "https://g\u043e\u043ed.io/",
    "https://good.io\n.evil.com/",
    "http://good.io/",
    "https://good.io:8443/",
    "https://good%2eio/",
)


def opener(reads: bool) -> FakeTool:
    properties = {"url": {"type": "string"}, "command": {"type": "array", "items": {"type": "string"}}}
    schema = {"type": "object", "properties": properties}
    return FakeTool("open", lambda arguments: "opened", input_schema=schema, annotations=Annotations(read_only=reads))


async def _asks(setup: ServerToolSettings, arguments: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments waits for a person; otherwise it ran."""
    tool = opener(reads="url" in arguments)
    async with at_work(tool, tools=setup) as work:
        work.play([call("open", json.dumps(arguments))], "Done.")
        received = output("openai_chat", await work.ask())
        assert ("waits for approval" in received) is (tool.calls == [])
        return tool.calls == []


URLS = ServerToolSettings(approvals=ApprovalSettings(auto_approve_urls=(GOOD,), hold_seconds=0.01))
COMMANDS = ServerToolSettings(approvals=ApprovalSettings(auto_approve_commands=(("git", "status"),), hold_seconds=0.01))


@pytest.mark.parametrize("url", MEANT)
async def test_an_address_that_is_meant_is_not_asked_about(url: str) -> None:
    assert not await _asks(URLS, {"url": url})


@pytest.mark.parametrize("url", NOT_MEANT)
async def test_an_address_that_only_looks_like_one_that_is_meant_is_asked_about(url: str) -> None:
    """fault: A6"""
    assert await _asks(URLS, {"url": url})


@pytest.mark.parametrize(
    "command",
    [
        ["git", "status; rm -rf /"],
        ["FOO=1", "git", "status"],
        ["env", "git", "status"],
        ["git", "status", "$(reboot)"],
        ["git", "status\nreboot"],
        ["git status"],
        ["git", "status", "&", "reboot"],
        ["sh", "-c", "git status"],
    ],
)
async def test_a_command_that_only_begins_like_one_that_is_meant_is_asked_about(command: list[str]) -> None:
    """fault: A6"""
    assert await _asks(COMMANDS, {"command": command})


async def test_a_command_that_is_meant_is_not_asked_about() -> None:
    assert not await _asks(COMMANDS, {"command": ["git", "status", "--short"]})
