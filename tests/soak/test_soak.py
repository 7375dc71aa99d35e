"""A short soak, so that the long one keeps working: every kind of traffic a few times, and nothing is left behind."""

from pathlib import Path

from tests.soak.soak import soak


async def test_mixed_traffic_fails_nowhere_and_leaves_nothing_behind(tmp_path: Path) -> None:
    outcome = await soak(tmp_path, f"sqlite:///{tmp_path}/toolgate.db", seconds=8.0, rate=10.0, every=1.0)
    assert outcome.broken(slope=float("inf")) == []  # in seconds, memory shows nothing but the warming up
    assert all(outcome.counts[kind] for kind in ("background", "leave python tool", "approve", "websocket", "cancel"))
