"""The server's own files: other users cannot read them, tools cannot reach them, the database holds no plain credentials."""

import os
import stat
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.tools.execution.toolwork import CANARY, Work, at_work, call, results, soon
from toolgate.config import Secret
from toolgate.config.settings import ApprovalSettings, BuiltinToolSettings, ServerToolSettings

OWN = ("toolgate.db", "toolgate.db-wal", "toolgate.db-shm", "toolgate-runs.db", "toolgate-runs.db-wal", "toolgate.key")


@pytest.fixture
def usual_umask() -> Generator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()}


async def finish_a_run(work: Work) -> None:
    """A run in the background has its steps in a file of their own."""
    work.play("Done.")
    made = (await work.ask("openai_responses", store=True, background=True)).json
    path = f"/v1/responses/{made['id']}"

    async def ended() -> bool:
        return bool((await work.get(path)).json["status"] == "completed")

    await soon(ended, seconds=30)


async def register(work: Work) -> None:
    output = {"type": "http", "name": "far", "url": "https://tools.example.org/far", "description": "Far away."}
    received = await work.post("/v1/tools", {**output, "secret": CANARY, "headers": {"x-key": CANARY}})
    assert received.status == 201


@pytest.mark.usefixtures("usual_umask")
async def test_only_their_owner_may_use_the_files_of_the_server(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/toolgate.db")
    async with at_work(storage=storage) as work:
        await register(work)
        await finish_a_run(work)
        assert set(modes(tmp_path)) >= set(OWN)
        assert set(modes(tmp_path).values()) == {0o600}
    for name in modes(tmp_path):
        (tmp_path / name).chmod(0o644)  # as an earlier version left them
    async with at_work(storage=storage) as work:
        await finish_a_run(work)
        assert set(modes(tmp_path)) >= set(OWN)
        assert set(modes(tmp_path).values()) == {0o600}


async def test_credentials_of_registered_tools_are_not_readable_in_the_database(tmp_path: Path) -> None:
    storage = Secret(f"sqlite:///{tmp_path}/toolgate.db")
    async with at_work(storage=storage) as work:
        await register(work)
        kept = b"".join([(tmp_path / name).read_bytes() for name in OWN[:3]])
        assert b"far" in kept
        assert CANARY.encode() not in kept
    async with at_work(storage=storage) as work:
        assert b'"far"' in (await work.get("/v1/tools")).body


@pytest.mark.parametrize("name", OWN)
async def test_file_tools_do_not_reach_the_files_of_the_server(name: str, tmp_path: Path) -> None:
    builtin = BuiltinToolSettings(roots=(str(tmp_path),))
    tools = ServerToolSettings(builtin=builtin, approvals=ApprovalSettings(default="allow", open_world="allow"))
    other = tmp_path / "other"
    async with at_work(storage=Secret(f"sqlite:///{tmp_path}/toolgate.db"), tools=tools) as work:
        await register(work)
        if "runs" in name:
            await finish_a_run(work)
        os.link(tmp_path / name, other)
        script = work.play(
            [
                call("read_file", f'{{"path":"{name}"}}', 1),
                call("read_file", '{"path":"other"}', 2),
                call("list_files", "{}", 3),
            ],
            "Done.",
        )
        await work.ask()
        first, second, third = results(script.requests[1])
        assert "not for tools" in first
        assert "not for tools" in second
        assert name not in third.split()
