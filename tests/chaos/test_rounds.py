"""A few crashes at points where most was lost before; `make chaos` makes hundreds of them."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import ordeal
from tests.chaos.model import planning
from tests.chaos.report import table

POINTS = ["keeping-answer", "step-intended", "decided"]


@pytest.mark.parametrize("database", ["sqlite"])
async def test_a_killed_server_loses_nothing_and_does_nothing_twice(tmp_path: Path, database: str) -> None:
    """fault: K-A, K-B, K-C, K-D, K-E"""
    async with planning() as (_, upstream):
        storage = f"sqlite:///{tmp_path}/toolgate.db"
        rounds, late = await ordeal(database, storage, tmp_path, upstream, POINTS, seed=1)
    assert all(one.killed for one in rounds), table(rounds, late)
    violations = [found for one in rounds for found in one.violations if found.kind != "slow"]  # other tests run beside
    assert [*late, *violations] == [], table(rounds, late)
