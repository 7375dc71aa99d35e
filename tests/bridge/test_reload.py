"""What a reload of the configuration changes for editors that have joined (spec: E3, V1)."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.bridge.gateway import WEATHER, ask
from tests.bridge.scripted_editor import Frame, editor
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

    def reload(self, vscode: str) -> None:
        """Change the settings of the bridge."""
        self.path.write_text(f"{BASE}vscode: {vscode}\n")
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
