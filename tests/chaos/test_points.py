"""The harness itself: its points are where it says, they are all passed, and a release has none of them."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.chaos.model import planning
from tests.chaos.points import NAMES, POINTS, Fuse, Point, found
from tests.chaos.rounds import Ordeal
from tests.chaos.server import ROOT, Server


@pytest.mark.parametrize("point", POINTS, ids=NAMES)
def test_every_point_is_where_it_is_reported_to_be(point: Point) -> None:
    """fault: K-A: a function that is renamed takes no kill point with it unnoticed."""
    owner, name = found(point)
    assert callable(getattr(owner, name))


def test_every_kill_point_of_the_catalogue_is_there() -> None:
    assert {point.fault for point in POINTS} >= {f"K{number}" for number in range(11)}


def test_a_point_that_does_not_exist_is_an_error() -> None:
    async def gone() -> None:
        """Nowhere to be found."""

    with pytest.raises(AttributeError, match="must move"):
        found(Point("gone", "K0", gone))
    with pytest.raises(ValueError, match="no point"):
        Fuse().set("gone:1")


async def test_all_points_are_passed_while_clients_are_at_work(tmp_path: Path) -> None:
    """fault: K-A"""
    notes = tmp_path / "notes"
    async with planning() as (planner, upstream):
        ordeal = Ordeal("sqlite", Server(tmp_path, f"sqlite:///{tmp_path}/toolgate.db", upstream), planner, seed=1)
        try:
            await ordeal.begin(FAULT_NOTES=str(notes))
            assert await ordeal.work() == []
            assert await ordeal.end() == []
        finally:
            await ordeal.server.kill()
    assert set(notes.read_text().split()) == set(NAMES)


def test_a_release_can_be_killed_from_outside_alone(tmp_path: Path) -> None:
    """fault: K-A: the wheel holds neither the points nor the words that set them."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # our own words
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "tests" in Path(name).parts or "chaos" in name] == []
        assert [name for name in archive.namelist() if b"FAULT_KILL_AT" in archive.read(name)] == []
        assert any(name.endswith("app/reloadable_asgi_app.py") for name in archive.namelist())
