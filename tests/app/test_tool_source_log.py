"""The log says when a tool source connects, is ready, and fails (spec: E6, R2)."""

import asyncio
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.client.sources import PATIENCE, eventually, mock, source_of
from tests.stage import MEMORY
from toolgate.app.tools import open_tool_catalog
from toolgate.config import Config
from toolgate.config.settings import LogSettings, McpServerSettings, ServerToolSettings
from toolgate.mcp.client import StdioServerConfig
from toolgate.storage.database import Database
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.sources.registered import RegisteredToolSource, ToolRegistration


class ToolLog:
    """The lines about tools that were logged so far."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._text = ""

    def of(self, source: str) -> list[tuple[str, Any]]:
        """The level of each line about a source, and its state or problem."""
        self._text += self._capfd.readouterr().err
        lines = [json.loads(line) for line in self._text.splitlines() if line.startswith("{")]
        return [
            (line["level"], line.get("state") or line.get("problem"))
            for line in lines
            if line["event"] == "tools" and line["source"] == source
        ]


async def test_a_server_that_connects_is_no_warning_and_the_log_says_when_its_tools_are_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gate, log = tmp_path / "gate", ToolLog(capfd)
    os.mkfifo(gate)
    late = f"read line < {gate}; exec {shlex.join(mock('plain', tmp_path).command)}"
    servers = {
        "soon": McpServerSettings(command=mock("plain", tmp_path).command),
        "late": McpServerSettings(command=("sh", "-c", late), connect_timeout=PATIENCE),
        "gone": McpServerSettings(command=("no-such-command",)),
    }
    config = Config(tools=ServerToolSettings(mcp=servers), storage=MEMORY, log=LogSettings(level="info", format="json"))
    async with open_tool_catalog(config):
        # The tools of the first server are a change, at which the others are looked at.
        await eventually(lambda: log.of("mcp/soon") and log.of("mcp/late"))
        assert log.of("mcp/soon") == [("info", "ready")]
        assert log.of("mcp/late") == [("info", "The MCP server late is being connected to.")]
        await asyncio.to_thread(gate.write_text, "go\n")
        await eventually(lambda: len(log.of("mcp/late")) > 1)
        assert log.of("mcp/late")[1:] == [("info", "ready")]
        await eventually(lambda: "warning" in [level for level, _ in log.of("mcp/gone")])
        assert "could not be started" in log.of("mcp/gone")[-1][1]


async def test_registered_servers_that_connect_are_no_failure_unless_something_else_is_wrong(tmp_path: Path) -> None:
    made = {
        "late": source_of(mock("hangs_in_initialize", tmp_path)),
        "gone": source_of(StdioServerConfig(("no-such-command",))),
    }
    registered = RegisteredToolSource(RegisteredSourceStore(Database(None)), lambda one: made[one.name])
    registry = ToolRegistry([registered])
    await registry.open()
    try:
        assert registry.connecting() == frozenset()
        await registered.add(ToolRegistration(type="mcp", name="late", url="https://example.org/mcp"))
        assert registry.connecting() == {"api"}
        await registered.add(ToolRegistration(type="mcp", name="gone", url="https://example.org/mcp"))
        await eventually(lambda: "could not be started" in (registered.problem or ""))
        assert registry.connecting() == frozenset()
    finally:
        await registry.aclose()
