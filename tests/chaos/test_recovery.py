"""A recovery that is itself cut short, and a database file that somebody else holds (K-F, K-I)."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.chaos.model import planning
from tests.chaos.rounds import Ordeal
from tests.chaos.server import Server
from tests.chaos.sessions import Behind
from tests.chaos.test_lines import added, begun, gateway, healthy, texts
from tests.tools.execution.toolwork import soon
from toolgate.config import Secret


async def test_a_recovery_that_is_killed_is_begun_again(tmp_path: Path) -> None:
    """fault: K-F: the server dies in the middle of a run, then while it takes the run up again, then while it goes on."""
    async with planning() as (planner, upstream):
        server = Server(tmp_path, f"sqlite:///{tmp_path}/toolgate.db", upstream)
        ordeal = Ordeal("sqlite", server, planner, seed=1)
        session = Behind(ordeal.world, ordeal.oracle, "sq0")
        try:
            await ordeal.begin()
            server.arm("step-intended:1")
            following = asyncio.create_task(session.run())
            for point in ("claimed:1", "step-ended:1", ""):
                await asyncio.wait_for(server.died(), 60)
                ordeal.world.up.clear()
                await server.kill()
                await server.launch(**({"FAULT_KILL_AT": point} if point else {}))
                ordeal.world.up.set()
            await asyncio.wait_for(following, 60)
            assert await session.verify() == []
            assert await ordeal.end() == []
        finally:
            await server.kill()


async def test_a_locked_file_costs_503_and_refused_writes_are_not_there(tmp_path: Path) -> None:
    """fault: K-I"""
    file = tmp_path / "toolgate.db"
    async with gateway(storage=Secret(f"sqlite:///{file}")) as work:
        conversation = await begun(work)
        assert await added(work, conversation, "first") == 200
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asking = asyncio.ensure_future(added(work, conversation, "second"))
            assert await healthy(work)
            assert await asyncio.wait_for(asking, 30) == 503
            other.execute("ROLLBACK")

        async def adds() -> bool:
            return await added(work, conversation, "third") == 200

        await soon(adds, "it did not recover")
        assert await texts(work, conversation) == ["first", "third"]
