"""`python -m tests.soak --minutes 30`: mixed traffic against a real server, and which promises it kept."""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.databases import ENGINES, running_postgres, storage_of
from tests.soak.report import Soak, write
from tests.soak.soak import soak

PAGE = Path(__file__).parents[2] / "docs" / "durability.md"


def main() -> int:
    """Soak, print the figures, and say by the exit code whether all promises were kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=12.0, help="requests begun in a second")
    parser.add_argument("--database", choices=ENGINES, default="sqlite")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/durability.md")
    options = parser.parse_args()
    outcome = _soaked(options)
    table, broken = outcome.table(), outcome.broken()
    print(table)
    for one in broken:
        print(f"BROKEN: {one}")
    if options.write and not broken:
        write(PAGE, table)
    return 1 if broken else 0


def _soaked(options: argparse.Namespace) -> Soak:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        storage = stack.enter_context(
            storage_of(options.database, place, lambda: stack.enter_context(running_postgres()))
        )
        seconds, rate = options.minutes * 60, options.rate
        return asyncio.run(soak(place, storage, seconds=seconds, rate=rate, workers=options.workers, seed=options.seed))


if __name__ == "__main__":
    sys.exit(main())
