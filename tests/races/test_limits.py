"""A limit of a key, many processes, bursts: as many are let in as it says, neither more nor fewer (spec: E5; fault: M3)."""

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
    script = pair.play(obeying)
    assert await burst(pair, "m") == {200: LIMIT, 429: AT_ONCE * BURSTS - LIMIT}
    assert len(script.requests) == LIMIT


async def test_four_workers_without_a_redis_grant_a_limit_exactly(tmp_path: Path) -> None:
    """fault: M3"""
    keys = [{"name": "quick", "key": "quick-key", "requests_per_minute": LIMIT}]
    config = {"keys": keys, "models": [{"name": "echo", "upstream": "builtin"}], "log": {"level": "warning"}}
    with running_server(tmp_path, json.dumps(config), "--workers", "4") as crew:
        assert len(crew.announced().workers()) == 4
        assert await burst(crew, "echo") == {200: LIMIT, 429: AT_ONCE * BURSTS - LIMIT}


async def burst(servers: Pair | RunningServer, model: str) -> Counter[int]:
    """How the requests of several bursts fare."""
    found = Counter[int]()
    async with crowd(servers.urls if isinstance(servers, Pair) else [servers.url], AT_ONCE) as many:
        for _ in range(BURSTS):
            bodies = [{**output("Hi"), "model": model}] * AT_ONCE
            found.update(one.status for one in await many.volley(CHAT, bodies, "quick-key"))
    return found
