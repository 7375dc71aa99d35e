"""`toolgate mcp` lists the tools of servers that are still starting when its client asks (spec: R8)."""

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.mcp.client.sources import PATIENCE, mock

PIPE = asyncio.subprocess.PIPE
COMMAND = (sys.executable, "-c", "import sys; from toolgate.cli import main; sys.exit(main())", "mcp", "--config")


def line(method: str, id: int, **params: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


async def test_the_first_list_and_an_early_call_wait_for_a_server_that_is_still_starting(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    late = f"read line < {gate}; exec {shlex.join(mock('plain', tmp_path).command)}"
    config = tmp_path / "toolgate.yaml"
    servers = {"box": {"command": ["sh", "-c", late], "connect_timeout": PATIENCE}}
    rules = [{"stance": "allow", "sources": ["mcp/box"]}]
    config.write_bytes(
        msgspec.json.encode({"storage": "sqlite://", "tools": {"mcp": servers, "approvals": {"rules": rules}}}) + b"\n"
    )
    process = await asyncio.create_subprocess_exec(*COMMAND, str(config), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line("tools/list", 1) + line("tools/call", 2, name="box_echo", arguments={}) + line("ping", 3))
    process.stdin.close()  # what was asked is answered all the same
    first = msgspec.json.decode(await asyncio.wait_for(process.stdout.readline(), PATIENCE))
    assert first == {"jsonrpc": "2.0", "id": 3, "result": {}}
    await asyncio.to_thread(gate.write_text, "go\n")
    out, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    answers = {one["id"]: one.get("result") for one in map(msgspec.json.decode, out.splitlines())}
    assert "box_echo" in [tool["name"] for tool in answers[1]["tools"]], errors
    assert answers[2]["isError"] is False
