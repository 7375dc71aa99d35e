"""A limit of a key, many processes, bursts: as many are let in as it says, neither more nor fewer (spec: E5; fault: M3)."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.races.pair import CHAT, Pair, crowd, obeying, output
from tests.workers.server_process import RunningServer, running_server

AT_ONCE, BURSTS, LIMIT = 60, 6, 60


@pytest.mark.parametrize("pair", ["postgresql"], indirect=True)
async def test_two_processes_with_a_redis_grant_a_limit_exactly(pair: Pair) -> None:
    """fault: M3: six times as many as are allowed."""
    for number in range(5):
        script = pair.play(obeying)
        granted = await burst(pair, "m", f"quick-{number}-key")
        # On a busy machine Redis may reply later than nodes wait for it; then each counts for itself, and says so.
        if granted[200] == LIMIT or not await counted_alone(pair):
            break
    assert granted == {200: LIMIT, 429: AT_ONCE * BURSTS - LIMIT}
    assert len(script.requests) == LIMIT


async def test_four_workers_without_a_redis_grant_a_limit_exactly(tmp_path: Path) -> None:
    """fault: M3"""
    keys = [{"name": "quick", "key": "quick-key", "requests_per_minute": LIMIT}]
    config = {"keys": keys, "models": [{"name": "echo", "upstream": "builtin"}], "log": {"level": "warning"}}
    with running_server(tmp_path, json.dumps(config), "--workers", "4") as processes:
        assert len(processes.announced().workers()) == 4
        assert await burst(processes, "echo") == {200: LIMIT, 429: AT_ONCE * BURSTS - LIMIT}


async def counted_alone(pair: Pair) -> bool:
    """Whether one of the servers has logged an outage of Redis since the last call."""
    await asyncio.sleep(1)  # for the threads that read the logs
    lines = [line for server in pair.services for line in server.log_lines]
    for server in pair.services:
        server.log_lines.clear()
    return any("limits are counted by this node alone" in line for line in lines)


async def burst(servers: Pair | RunningServer, model: str, key: str = "quick-key") -> Counter[int]:
    """How the requests of several bursts fare."""
    found = Counter[int]()
    async with crowd(servers.urls if isinstance(servers, Pair) else [servers.url], AT_ONCE) as many:
        for _ in range(BURSTS):
            bodies = [{**output("Hi"), "model": model}] * AT_ONCE
            found.update(one.status for one in await many.volley(CHAT, bodies, key))
    return found
