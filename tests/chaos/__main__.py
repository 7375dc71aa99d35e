"""`python -m tests.chaos`: hundreds of kill -9 at every point, over SQLite and PostgreSQL, and what was lost by it."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.model import Planner, planning
from tests.chaos.points import NAMES
from tests.chaos.report import table
from tests.chaos.rounds import Ordeal, Round
from tests.chaos.server import Server
from tests.chaos.world import Violation
from tests.databases import ENGINES, running_postgres


async def ordeal(
    database: str, server: Server, planner: Planner, points: list[str], seed: int, emitted: bool = False
) -> tuple[list[Round], list[Violation]]:
    """One crash at each of the points, in their order, over one storage."""
    it = Ordeal(database, server, planner, seed)
    rounds: list[Round] = []
    try:
        await it.begin()
        for point in points:
            rounds.append(await it.round(point))
            if emitted:
                _print(rounds[-1], it.server.last_words)
        return rounds, await it.end()
    finally:
        await it.server.kill()


def _print(round: Round, words: str) -> None:
    mark = "." if round.killed else "-"
    print(mark if not round.violations else "!", end="", flush=True)  # a command's output
    for found in round.violations:
        print(f"\n{round.database} {round.point}: {found.kind}: {found.what}", flush=True)
    if round.violations and words:
        print(words, flush=True)


def shuffled(rounds: int, seed: int, names: Sequence[str] = NAMES) -> list[str]:
    """Every point as often as any other, in any order."""
    many = [names[number % len(names)] for number in range(rounds)]
    random.Random(seed).shuffle(many)  # it is to be repeatable
    return many


async def _all(
    rounds: int, seed: int, databases: list[str], names: Sequence[str]
) -> tuple[list[Round], list[Violation]]:
    found: list[Round] = []
    late: list[Violation] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tg-chaos-")))
        async with planning() as (planner, upstream), asyncio.TaskGroup() as group:
            tasks = []
            for database in databases:
                place = folder / database
                place.mkdir()
                storage = f"sqlite:///{place}/toolgate.db"
                if database != "sqlite":
                    storage = stack.enter_context(stack.enter_context(running_postgres()).database())
                points = shuffled(-(-rounds // len(databases)), seed, names)
                server = Server(place, storage, upstream)
                tasks.append(group.create_task(ordeal(database, server, planner, points, seed, emitted=True)))
    for task in tasks:
        found += task.result()[0]
        late += task.result()[1]
    return found, late


def main() -> int:
    """Run, tell, and say by the exit status whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=216, help="kills, over all databases together")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--database", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--points", nargs="+", choices=NAMES, default=NAMES, metavar="POINT", help=", ".join(NAMES))
    asked = parser.parse_args()
    databases = list(ENGINES) if asked.database == "both" else [asked.database]
    began = time.monotonic()
    rounds, late = asyncio.run(_all(asked.rounds, asked.seed, databases, asked.points))
    print(f"\n\nseed {asked.seed}, {time.monotonic() - began:.0f} s\n")
    print(table(rounds, late))
    return 1 if late or any(one.violations for one in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
