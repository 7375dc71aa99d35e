"""Servers that people use, as they are installed from the package index (spec: R2)."""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.mcp.client.sources import calling, opened, source_of, tool
from toolgate.conversation.message import Text
from toolgate.mcp.client import StdioServerConfig


async def test_the_time_server_returns_the_time() -> None:
    async with opened(source_of(StdioServerConfig((sys.executable, "-m", "mcp_server_time")))) as source:
        assert source.problem is None
        output = await tool(source, "get_current_time").invoke(calling({"timezone": "Europe/Berlin"}))
        assert output.structured["timezone"] == "Europe/Berlin"
        assert not output.is_error
        output = await tool(source, "get_current_time").invoke(calling({"timezone": "Nowhere/Land"}))
        assert output.is_error


async def test_the_git_server_shows_a_repository(tmp_path: Path) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("hello")
    server = StdioServerConfig(
        (sys.executable, "-m", "mcp_server_git", "--repository", str(tmp_path)), cwd=str(tmp_path)
    )
    async with opened(source_of(server, prefix="")) as source:
        status = tool(source, "git_status")
        assert status.spec.name == "git_status"
        output = await status.invoke(calling({"repo_path": str(tmp_path)}))
        assert isinstance(output.content[0], Text)
        assert "new.txt" in output.content[0].text
