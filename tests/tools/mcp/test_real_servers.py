"""Servers that people use, as they are installed from the package index (R2)."""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.tools.mcp.staging import calling, opened, source_of, tool
from toolgate.conversation.message import Text
from toolgate.tools.sources.mcp import Stdio


async def test_the_time_server_tells_the_time() -> None:
    async with opened(source_of(Stdio((sys.executable, "-m", "mcp_server_time")))) as source:
        assert source.trouble is None
        said = await tool(source, "get_current_time").invoke(calling({"timezone": "Europe/Berlin"}))
        assert said.structured["timezone"] == "Europe/Berlin"
        assert not said.is_error
        said = await tool(source, "get_current_time").invoke(calling({"timezone": "Nowhere/Land"}))
        assert said.is_error


async def test_the_git_server_shows_a_repository(tmp_path: Path) -> None:
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "new.txt").write_text("hello")
    server = Stdio((sys.executable, "-m", "mcp_server_git", "--repository", str(tmp_path)), cwd=str(tmp_path))
    async with opened(source_of(server, prefix="")) as source:
        status = tool(source, "git_status")
        assert status.spec.name == "git_status"
        said = await status.invoke(calling({"repo_path": str(tmp_path)}))
        assert isinstance(said.content[0], Text)
        assert "new.txt" in said.content[0].text
