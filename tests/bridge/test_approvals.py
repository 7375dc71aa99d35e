"""Approvals that are shown and answered in an editor (spec: A2, V4)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bridge.gateway import ask, gateway
from tests.bridge.scripted_editor import Frame, ScriptedEditor, editor
from toolgate.approvals.service import ApprovalService
from toolgate.config import KeySettings, Secret
from toolgate.config.settings import ApprovalSettings, BuiltinToolSettings, ServerToolSettings, VscodeSettings

ASKS = ServerToolSettings(approvals=ApprovalSettings(read_only="ask", hold_seconds=60))
CALL = 'call calculator {"expression": "6*7"}'
AUTO: dict[str, Any] = {"use_server_tools": ["calculator"], "tool_execution": "auto"}


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with gateway(tools=ASKS) as client:
        yield client


def url(http: httpx.AsyncClient) -> str:
    return str(http.base_url)


async def test_a_call_that_is_approved_in_the_editor_runs(http: httpx.AsyncClient) -> None:
    async with editor(url(http), approvals=True) as window:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        shown: Frame = await window.received("approval")
        assert shown["approval"]["tool"] == "calculator"
        assert json.loads(shown["approval"]["arguments"]) == {"expression": "6*7"}
        await window.send({"type": "answer", "id": shown["id"], "decision": "approve"})
        assert (await window.received("answered", id=shown["id"]))["state"] == "approved"
        assert "42" in (await asking).text
        kept = (await http.get(f"/v1/approvals/{shown['id']}")).json()
        assert kept["answered_by"] == "vscode"


async def test_a_call_that_is_denied_in_the_editor_does_not_run(http: httpx.AsyncClient) -> None:
    async with editor(url(http), approvals=True) as window:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        shown = await window.received("approval")
        await window.send({"type": "answer", "id": shown["id"], "decision": "deny", "reason": "not today"})
        text = (await asking).text
    assert "42" not in text
    assert "not today" in text


async def test_arguments_may_be_edited_in_the_editor(http: httpx.AsyncClient) -> None:
    async with editor(url(http), approvals=True) as window:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        shown = await window.received("approval")
        edited = {"type": "answer", "id": shown["id"], "decision": "approve", "arguments": {"expression": "1+1"}}
        await window.send(edited)
        assert "42" not in (await asking).text


async def test_an_approval_that_is_answered_elsewhere_is_closed_in_the_editor(http: httpx.AsyncClient) -> None:
    async with editor(url(http), approvals=True) as window, editor(url(http), approvals=True) as other:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        shown = await window.received("approval")
        await other.received("approval", id=shown["id"])
        answered = await http.post(f"/v1/approvals/{shown['id']}", json={"decision": "approve"})
        assert answered.status_code == 200
        await window.received("approval_closed", id=shown["id"])
        await other.received("approval_closed", id=shown["id"])
        await window.send({"type": "answer", "id": shown["id"], "decision": "deny"})
        assert (await window.received("error", id=shown["id"]))["code"].startswith("already_")
        assert "42" in (await asking).text


async def test_a_window_that_joins_later_sees_what_waits(http: httpx.AsyncClient) -> None:
    async with editor(url(http), approvals=True) as first:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        shown = await first.received("approval")
    async with editor(url(http), approvals=True) as second:
        await second.received("approval", id=shown["id"])
        await second.send({"type": "answer", "id": shown["id"], "decision": "approve"})
        assert "42" in (await asking).text


async def test_a_window_that_does_not_want_approvals_gets_none_and_answers_none(http: httpx.AsyncClient) -> None:
    async with editor(url(http), approvals=True) as wants, editor(url(http)) as other:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        shown = await wants.received("approval")
        await other.send({"type": "answer", "id": shown["id"], "decision": "approve"})
        assert (await other.received("error"))["code"] == "forbidden"
        assert other.all("approval") == []
        await wants.send({"type": "answer", "id": shown["id"], "decision": "deny"})
        await asking


async def test_an_editor_that_joined_by_a_key_sees_what_the_key_may_see() -> None:
    def key(name: str, *scopes: Any) -> KeySettings:
        return KeySettings(name=name, key=Secret(f"{name}-secret"), scopes=scopes)

    keys = (key("bare", "bridge"), key("ann", "bridge", "chat", "tools"), key("root", "bridge", "tools", "admin"))
    async with (
        gateway(tools=ASKS, keys=(*keys, key("bob", "chat"))) as http,
        editor(url(http), approvals=True, key="bare-secret") as bare,
        editor(url(http), approvals=True, key="ann-secret") as ann,
        editor(url(http), approvals=True, key="root-secret") as root,
    ):
        headers = {"authorization": "Bearer bob-secret"}
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, headers=headers, **AUTO))
        shown = await root.received("approval")
        for window in (bare, ann):
            await window.send({"type": "answer", "id": shown["id"], "decision": "approve"})
            await window.received("error", id=shown["id"])
            assert window.all("approval") == []
        await root.send({"type": "answer", "id": shown["id"], "decision": "approve"})
        assert "42" in (await asking).text


async def test_approvals_in_editors_can_be_turned_off() -> None:
    off = VscodeSettings(approvals=False)
    async with gateway(tools=ASKS, vscode=off) as http, editor(url(http), approvals=True) as window:
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, CALL, **AUTO))
        while not (waiting := (await http.get("/v1/approvals?state=pending")).json()["data"]):
            await asyncio.to_thread(time.sleep, 0.02)
        await http.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "approve"})
        assert "42" in (await asking).text
        assert window.all("approval") == []


async def test_nothing_is_received_while_many_answers_are_stored(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that sends answers faster than they are stored waits, and they do not pile up in memory."""
    store, go, full = ApprovalService.answer, asyncio.Event(), asyncio.Event()
    running = most = 0

    async def slowly(self: ApprovalService, id: str, *args: Any, **options: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 16:
            full.set()
        await go.wait()
        running -= 1
        return await store(self, id, *args, **options)

    monkeypatch.setattr(ApprovalService, "answer", slowly)
    async with editor(url(http), approvals=True) as window:
        for number in range(40):
            await window.send({"type": "answer", "id": f"mcpr_{number}", "decision": "approve"})
        after = asyncio.ensure_future(window.round_trip())
        await asyncio.wait_for(full.wait(), 30)
        await http.get("/healthz")
        waits = not after.done()
        go.set()
        await after
    assert (waits, most) == (True, 16)


async def toggle_approvals(http: httpx.AsyncClient, window: ScriptedEditor, times: int) -> None:
    """Switch approvals off and on in the window, and wait each time until the gateway has noticed."""
    for number in range(times):
        for on in (False, True):
            folders = [f"{number} {on}"]
            await window.send(
                {"type": "window", "window": {**window.window, "folders": folders}, "lends": {"approvals": on}}
            )
            while (await http.get("/v1/bridge")).json()["data"][0]["folders"] != folders:
                pass
            await http.get("/v1/approvals?state=pending")  # as the gateway does for the window


async def test_an_editor_that_does_not_read_is_not_sent_approvals_without_end(tmp_path: Path) -> None:
    """What an editor is shown again and again does not pile up in memory."""
    tools = ServerToolSettings(builtin=BuiltinToolSettings(roots=(str(tmp_path),)))
    call = "call write_file " + json.dumps({"path": "a", "content": "x" * 200_000})
    async with gateway(tools=tools) as http, editor(url(http), approvals=True) as window:
        options = {"use_server_tools": ["write_file"], "tool_execution": "auto"}
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, call, **options))
        shown = await window.received("approval")
        with window.not_reading():
            await toggle_approvals(http, window, 100)
        await window.round_trip()
        # What the kernel has taken is sent.
        assert len(window.all("approval")) < 20
        await window.send({"type": "answer", "id": shown["id"], "decision": "deny"})
        await asking


async def test_an_editor_that_does_not_read_keeps_no_other_from_being_shown_approvals(tmp_path: Path) -> None:
    tools = ServerToolSettings(builtin=BuiltinToolSettings(roots=(str(tmp_path),)))
    options = {"use_server_tools": ["write_file"], "tool_execution": "auto"}
    async with (
        gateway(tools=tools) as http,
        editor(url(http), approvals=True) as unread,
        editor(url(http), approvals=True) as other,
    ):
        with unread.not_reading():
            calls = ["call write_file " + json.dumps({"path": f"{n}", "content": "x" * 200_000}) for n in range(30)]
            asking = [asyncio.ensure_future(ask(http, "openai_chat", "echo", False, one, **options)) for one in calls]
            async with asyncio.timeout(60):
                while len(shown := {frame["id"] for frame in other.all("approval")}) < len(calls):
                    await other.round_trip()
        await http.post("/v1/approvals/deny_all")
        await asyncio.gather(*asking)
    assert len(shown) == len(calls)


async def test_many_questions_of_one_key_do_not_hide_those_of_another_in_the_editor() -> None:
    keys = [KeySettings(name=name, key=Secret(f"{name}-secret"), scopes=("chat", "tools")) for name in ("eager", "ann")]
    briefly = ServerToolSettings(approvals=ApprovalSettings(read_only="ask", hold_seconds=0))
    async with gateway(tools=briefly, keys=tuple(keys)) as http, editor(url(http), approvals=True) as window:
        for name, count in (("eager", 60), ("ann", 1)):
            headers = {"authorization": f"Bearer {name}-secret"}
            for number in range(count):
                call = f'call calculator {{"expression": "{number}"}}'
                await ask(http, "openai_chat", "echo", False, call, headers=headers, **AUTO)
        [waiting] = (await http.get("/v1/approvals?state=pending", headers=headers)).json()["data"]
        shown = await window.received("approval", id=waiting["id"])
        assert shown["approval"]["caller"] == "ann"
