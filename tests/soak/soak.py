"""Mixed traffic at a bounded rate against a server, watched from outside until the time is over (fault: R3)."""

import asyncio
import time
from collections import Counter
from pathlib import Path

from tests.soak.model import serving
from tests.soak.report import Soak
from tests.soak.server import Sample, Server
from tests.soak.traffic import Clients

SETTLE_SECONDS = 60.0
AT_ONCE = 24


async def soak(
    place: Path,
    storage: str,
    *,
    seconds: float,
    rate: float,
    workers: int = 1,
    seed: int = 1,
    every: float = 5.0,
    idle: float = 5.0,
) -> Soak:
    """Serve, send `rate` requests a second for so long, wait until all is quiet, and say what came of it.

    `every` so many seconds the server is looked at; after `idle` seconds without work it ends a worker of its tools.
    """
    async with serving() as upstream:
        server = Server(place, storage, upstream, workers, idle)
        await server.start()
        clients = Clients(server.url, seed)
        counts: Counter[str] = Counter()
        failures: list[str] = []
        samples: list[Sample] = []
        try:
            await _drive(clients, Counter(), failures, rate, 0)  # each kind loads what it needs
            # Pools of connections fill up to their bound with work at once, and stay as they are.
            await asyncio.gather(*[clients.kinds["background"]() for _ in range(AT_ONCE)])
            before = await _quiet(server, idle)
            watching = asyncio.ensure_future(_watch(server, samples, every))
            await _drive(clients, counts, failures, rate, seconds)
            watching.cancel()
            after = await _quiet(server, idle, before)
        finally:
            await clients.aclose()
            code = await server.stop()
        failures += [line[:500] for line in server.log.splitlines() if "Traceback" in line or '"crashed"' in line]
        return Soak(seconds / 60, storage.partition(":")[0], workers, counts, failures, samples, before, after, code)


async def _drive(clients: Clients, counts: Counter[str], failures: list[str], rate: float, seconds: float) -> None:
    """Begin requests at this rate, every kind in turn and each at least once, as many at once as are allowed."""
    free = asyncio.Semaphore(AT_ONCE)
    end = time.monotonic() + seconds
    kinds = list(clients.kinds.items())

    async def one(number: int) -> None:
        name, act = kinds[number % len(kinds)]
        try:
            async with asyncio.timeout(120):
                await act()
            counts[name] += 1
        except Exception as error:  # noqa: BLE001  # whatever it was, it is counted and told
            failures.append(f"{name}: {type(error).__name__} {error}"[:600])
        finally:
            free.release()

    async with asyncio.TaskGroup() as group:
        number = 0
        while time.monotonic() < end or number < len(kinds):
            await free.acquire()
            group.create_task(one(number))
            number += 1
            await asyncio.sleep(1 / rate)


async def _watch(server: Server, samples: list[Sample], every: float) -> None:
    while True:
        samples.append(await server.sample())
        await asyncio.sleep(every)


async def _quiet(server: Server, idle: float, before: Sample | None = None) -> Sample:
    """Look at the server once its idle workers have ended, or when it has had time enough for that."""
    await asyncio.sleep(1.6 * idle)
    sample = await server.sample()
    end = time.monotonic() + SETTLE_SECONDS
    while before is not None and time.monotonic() < end:
        if sample.descriptors <= before.descriptors and sample.children <= before.children:
            break
        await asyncio.sleep(min(idle, 1))
        sample = await server.sample()
    return sample
