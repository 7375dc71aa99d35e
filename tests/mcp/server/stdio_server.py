"""A server on stdin and stdout for tests: the tools of the conformance suite, some that print, and one that waits."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.mcp.server.conformance import conformance_catalog
from tests.mcp.server.fake_catalog import BlockingTool, FakeToolCatalog, text_output, tool
from toolgate.cli.mcp import serve_stdio
from toolgate.tools.tool import ReportProgress, ToolOutput


async def prints(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
    print("this must not reach the client", flush=True)
    await (await asyncio.create_subprocess_shell("echo nor this; cat")).wait()
    return text_output(f"printed, and stdin is {'empty' if os.read(0, 1) == b'' else 'not'}")


@asynccontextmanager
async def opening() -> AsyncIterator[FakeToolCatalog]:
    waiting = BlockingTool()

    async def was_cancelled(arguments: Mapping[str, Any], report_progress: ReportProgress) -> ToolOutput:
        await waiting.cancelled.wait()
        return text_output("yes")

    made = conformance_catalog()
    for spec in (tool("prints", prints), tool("waits", waiting), tool("was_cancelled", was_cancelled)):
        made.all[spec[0].name] = spec
    try:
        yield made
    finally:
        sys.stderr.write("closed\n")


if __name__ == "__main__":
    sys.exit(serve_stdio(opening()))
