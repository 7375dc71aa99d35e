"""What a reload of the configuration changes for editors that have joined (spec: E3, V1)."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.bridge.gateway import WEATHER, ask
from tests.bridge.scripted_editor import GUARD, Frame, editor
from tests.bridge.test_tools import AUTO, calls_then_answers
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import load
from toolgate.http.listener import listening

BASE = "server: {port: 0}\nstorage: 'sqlite://'\nlog: {level: error}\n"
TOOL: Frame = {"name": "get_weather", "description": "", "input_schema": WEATHER, "tags": []}


class Reloadable:
    """A gateway whose configuration is a file."""

    def __init__(self, gate: Toolgate, http: httpx.AsyncClient, path: Path) -> None:
        self.gate = gate
        self.http = http
        self.path = path
        self.tools = "{}"

    def reload(self, vscode: str) -> None:
        """Change the settings of the bridge."""
        self.path.write_text(f"{BASE}tools: {self.tools}\nvscode: {vscode}\n")
        self.gate.reload(self.path)


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reloadable]:
    monkeypatch.setenv("ENABLE_EMBEDDED_MODEL", "false")
    path = tmp_path / "toolgate.yaml"
    path.write_text(BASE)
    gate = Toolgate(load(path, os.environ))
    async with listening(gate) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        yield Reloadable(gate, http, path)


async def test_calls_of_lent_tools_get_the_time_of_the_new_configuration(gateway: Reloadable) -> None:
    script = calls_then_answers("get_weather", {"city": "Oslo"})
    async with editor(str(gateway.http.base_url), tools=[TOOL], script=script) as window:
        await ask(gateway.http, "openai_chat", "gpt-4o", False, **AUTO)
        gateway.reload("{tool_seconds: 7}")
        await ask(gateway.http, "openai_chat", "gpt-4o", False, **AUTO)
        assert [one["seconds"] for one in window.all("invoke")] == [120, 7]


async def test_editors_leave_when_the_bridge_is_turned_off(gateway: Reloadable) -> None:
    async with editor(str(gateway.http.base_url), tools=[TOOL]) as window:
        gateway.reload("{enabled: false}")
        assert await window.closed() == 1001
        assert (await ask(gateway.http, "openai_chat", "gpt-4o", False)).status == 404
        assert "get_weather" not in (await gateway.http.get("/v1/tools")).text


async def test_approvals_are_taken_out_of_editors_when_they_are_turned_off(gateway: Reloadable) -> None:
    http = gateway.http
    gateway.tools = "{approvals: {read_only: ask, hold_seconds: 60}}"
    gateway.reload("{}")
    async with editor(str(http.base_url), approvals=True) as window:
        call = 'call calculator {"expression": "6*7"}'
        options = {"use_server_tools": ["calculator"], "tool_execution": "auto"}
        asking = asyncio.ensure_future(ask(http, "openai_chat", "echo", False, call, **options))
        shown = await window.received("approval")
        gateway.reload("{approvals: false}")
        await window.send({"type": "answer", "id": shown["id"], "decision": "approve"})
        assert (await window.received("error", id=shown["id"]))["code"] == "forbidden"
        await window.received("approval_closed", id=shown["id"])
        gateway.reload("{approvals: true}")
        async with asyncio.timeout(GUARD):
            while len(window.all("approval")) < 2:
                await window.round_trip()
        await http.post(f"/v1/approvals/{shown['id']}", json={"decision": "approve"})
        assert "42" in (await asking).text
