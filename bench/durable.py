"""What it costs that a run survives its process: `python -m bench.durable [steps]`.

A step is written while nothing else happens, so that its time is all beyond the tool's own. An unsafe call takes two steps,
its intent and its result, any other call one, and so does each answer of the model that calls a tool.
"""

import asyncio
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from toolgate.app.runs import system_database
from toolgate.conversation.message import Text, ToolResult
from toolgate.runs.dbos_executor import DbosExecutor
from toolgate.runs.step_records import CallFinishedStep, DurableStepLog, encode_step

STEP = encode_step(
    CallFinishedStep(ToolResult("call_0123456789abcdefghijklmn", (Text("sunny, 21 °C. " * 40),), False, "weather"))
)
WARM_UP = 20
PROMISED = 5.0
"""Milliseconds on PostgreSQL."""


class Cost(Struct, frozen=True):
    """Milliseconds of one step: the time that passes, and the CPU time of this process."""

    median: float
    slow: float
    cpu: float


async def measure(storage: str, steps: int) -> Cost:
    """Write so many steps of one run, one after the other."""
    url = system_database(storage)
    assert url is not None
    over: asyncio.Future[Cost] = asyncio.get_running_loop().create_future()

    async def work(id: str, run: DurableStepLog) -> None:
        over.set_result(await _timed(run, steps))

    workflows = DbosExecutor(url, "bench", print)
    await workflows.open(work)
    try:
        await workflows.begin("run")
        return await over
    finally:
        await workflows.aclose()


async def _timed(run: DurableStepLog, steps: int) -> Cost:
    for _ in range(WARM_UP):
        await run.keep("result", STEP)
    times, used = [], time.process_time()
    for _ in range(steps):
        began = time.perf_counter()
        await run.keep("result", STEP)
        times.append((time.perf_counter() - began) * 1000)
    cpu = (time.process_time() - used) / steps * 1000
    times.sort()
    return Cost(times[len(times) // 2], times[len(times) * 95 // 100], cpu)


@contextmanager
def storages() -> Iterator[dict[str, str]]:
    """A SQLite file, and a PostgreSQL of our own that writes to the disk as it would for anybody."""
    with tempfile.TemporaryDirectory(prefix="tg-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver  # takes its time, and only the tests have it

        server = pgserver.get_server(Path(folder) / "pg")  # type: ignore[attr-defined]
        try:
            yield {"SQLite": f"sqlite:///{folder}/toolgate.db", "PostgreSQL": server.get_uri()}
        finally:
            server.cleanup()


def main() -> int:
    """Print the table; 1 if the promise is missed."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    table = Table("", "median ms", "95 % within ms", "CPU ms", title=f"One durable step ({steps} of them)")
    missed = False
    with storages() as places:
        for name, storage in places.items():
            cost = asyncio.run(measure(storage, steps))
            table.add_row(name, f"{cost.median:.2f}", f"{cost.slow:.2f}", f"{cost.cpu:.2f}")
            missed = missed or (name == "PostgreSQL" and cost.median > PROMISED)
    Console().print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
