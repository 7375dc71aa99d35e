"""A server on stdin and stdout for tests: the tools of the conformance suite, some that print, and one that waits."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.server.mcp.conformance import door
from tests.server.mcp.doors import FakeDoor, Waiting, says, tool
from toolgate.cli.mcp import serve_stdio
from toolgate.tools.tool import Output, Tell


async def prints(arguments: Mapping[str, Any], tell: Tell) -> Output:
    print("this must not reach the client", flush=True)
    await (await asyncio.create_subprocess_shell("echo nor this; cat")).wait()
    return says(f"printed, and stdin is {'empty' if os.read(0, 1) == b'' else 'not'}")


async def was_cancelled(arguments: Mapping[str, Any], tell: Tell) -> Output:
    await waiting.cancelled.wait()
    return says("yes")


@asynccontextmanager
async def opening() -> AsyncIterator[FakeDoor]:
    global waiting
    waiting = Waiting()
    made = door()
    for spec in (tool("prints", prints), tool("waits", waiting), tool("was_cancelled", was_cancelled)):
        made.all[spec[0].name] = spec
    try:
        yield made
    finally:
        sys.stderr.write("closed\n")


if __name__ == "__main__":
    sys.exit(serve_stdio(opening()))
