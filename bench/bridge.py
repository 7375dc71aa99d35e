"""What a lent model costs beside a Chat upstream: `python -m bench.bridge [--rounds N] [--streams N]`.

A gateway serves two models with the same answers: one of the mock upstream, and one that an editor in this process lends.
Both are asked in turns, so that whatever else the machine does meets both alike. The gateway's CPU time is read from
outside; the editor's own does not count.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from bench.measure import cpu_seconds
from bench.peers.toolgate import PROGRAM
from bench.processes import ROOT, WORK, free_port, running
from tests.bridge.scripted_editor import GPT, Frame, ScriptedEditor, delta, done, editor, text

CHUNKS, PAUSE = 100, 0.005
MOCK, LENT = f"mock-chunks-{CHUNKS}-every-5", "gpt-4o"
MOST_MICROSECONDS, MOST_MILLISECONDS = 50.0, 3.0
"""What a lent model may cost beyond a Chat upstream: CPU for each delta, and time to the first."""


async def answers(window: ScriptedEditor, asked: Frame) -> AsyncGenerator[Frame, None]:
    """Answer as the mock does: as many words, as far apart, one in each frame."""
    yield {"type": "started"}
    for number in range(CHUNKS):
        yield delta(*text(f" lorem{number % 10}"))
        await asyncio.sleep(PAUSE)
    yield done(usage={"input": 10, "output": CHUNKS})


async def first_token(http: httpx.AsyncClient, model: str) -> float:
    """Seconds from the request to the first text of its stream."""
    sent = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    began = time.perf_counter()
    took: float | None = None
    async with http.stream("POST", "/v1/chat/completions", json=sent) as response:
        async for chunk in response.aiter_bytes():
            if took is None and b"lorem" in chunk:
                took = time.perf_counter() - began
    assert took is not None, "the model said nothing"
    return took


async def measure(url: str, pid: int, rounds: int, streams: int) -> dict[str, dict[str, list[float]]]:
    """Ask both models in turns; CPU seconds for each delta of many streams, and seconds to the first token of one."""
    found: dict[str, dict[str, list[float]]] = {model: {"cpu": [], "first": []} for model in (MOCK, LENT)}
    limits = httpx.Limits(max_connections=streams)
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http,
        editor(url, models=[GPT], script=answers),
    ):
        for number in range(rounds + 1):
            for model in (MOCK, LENT) if number % 2 else (LENT, MOCK):
                before = cpu_seconds(pid)
                await asyncio.gather(*[first_token(http, model) for _ in range(streams)])
                cpu = (cpu_seconds(pid) - before) / (streams * CHUNKS)
                first = [await first_token(http, model) for _ in range(5)]
                if number:  # the first round warms up
                    found[model]["cpu"].append(cpu)
                    found[model]["first"] += first
    return found


def report(found: dict[str, dict[str, list[float]]]) -> bool:
    """Print what was found, and return whether it is within the bounds."""
    middle = {model: {kind: statistics.median(all) for kind, all in kinds.items()} for model, kinds in found.items()}
    cpu = (middle[LENT]["cpu"] - middle[MOCK]["cpu"]) * 1e6
    first = (middle[LENT]["first"] - middle[MOCK]["first"]) * 1e3
    table = Table("", "a Chat upstream", "a lent model", "beyond it", "at most")
    rows: list[tuple[Any, ...]] = [
        ("CPU per delta, µs", middle[MOCK]["cpu"] * 1e6, middle[LENT]["cpu"] * 1e6, cpu, MOST_MICROSECONDS),
        ("first token, ms", middle[MOCK]["first"] * 1e3, middle[LENT]["first"] * 1e3, first, MOST_MILLISECONDS),
    ]
    for what, *figures in rows:
        table.add_row(what, *[f"{one:.2f}" for one in figures])
    Console().print(table)
    return cpu <= MOST_MICROSECONDS and first <= MOST_MILLISECONDS


def main() -> int:
    """Measure, print, and fail if a lent model costs too much."""
    parser = argparse.ArgumentParser(prog="python -m bench.bridge", description="What a lent model costs.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=16)
    options = parser.parse_args()
    folder = WORK / "bridge"
    folder.mkdir(parents=True, exist_ok=True)
    mock, port = free_port(), free_port()
    os.environ["TOOLGATE_BRIDGE_TOKEN_FILE"] = str(folder / "state" / "bridge.token")
    config = folder / "toolgate.json"
    settings = {
        "upstreams": {"mock": {"dialect": "openai_chat", "base_url": f"http://127.0.0.1:{mock}/v1"}},
        "models": [{"name": MOCK, "upstream": "mock"}],
        "storage": "sqlite://",
        "log": {"level": "error"},
    }
    config.write_text(json.dumps(settings))
    serve = [str(PROGRAM), "serve", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with (
        running("mock", [sys.executable, "-m", "bench.mock", str(mock)], mock, env={"PYTHONPATH": str(ROOT)}),
        running("bridge", serve, port) as gateway,
    ):
        found = asyncio.run(measure(f"http://127.0.0.1:{port}", gateway.pid, options.rounds, options.streams))
    return 0 if report(found) else 1


if __name__ == "__main__":
    sys.exit(main())
