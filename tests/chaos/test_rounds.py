"""A few crashes at points where most was lost before; `make chaos` makes hundreds of them."""

from pathlib import Path

from tests.chaos.__main__ import ordeal
from tests.chaos.model import planning
from tests.chaos.report import table
from tests.chaos.server import Server

POINTS = ["keeping-answer", "step-intended", "decided"]


async def test_a_killed_server_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    """fault: K-A, K-B, K-C, K-D, K-E"""
    async with planning() as (planner, upstream):
        server = Server(tmp_path, f"sqlite:///{tmp_path}/toolgate.db", upstream)
        rounds, late = await ordeal("sqlite", server, planner, POINTS, seed=1)
    violations = [found for one in rounds for found in one.violations if found.kind != "slow"]  # other tests run beside
    assert [*late, *violations] == [], f"{table(rounds, late)}\n{server.last_words}"
    assert all(one.killed for one in rounds), table(rounds, late)
