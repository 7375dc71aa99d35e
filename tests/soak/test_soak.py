"""A short soak, so that the long one keeps working: every kind of traffic a few times, and nothing is left behind."""

from pathlib import Path

from tests.soak.soak import soak


async def test_mixed_traffic_fails_nowhere_and_leaves_nothing_behind(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/toolgate.db"
    outcome = await soak(tmp_path, storage, seconds=1.5, rate=40.0, every=0.5, idle=0.5)
    assert outcome.broken(slope=float("inf")) == []  # in seconds, memory shows nothing but the warming up
    assert all(outcome.counts[kind] for kind in ("background", "leave python tool", "approve", "websocket", "cancel"))
