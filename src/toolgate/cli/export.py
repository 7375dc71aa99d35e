"""`toolgate export` and `toolgate forget`: records straight from the database, whether or not a server runs.

One JSON object a line goes to the output, all else to the error stream.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.cli.asking import stop
from toolgate.cli.db import complaint, name_of

if TYPE_CHECKING:
    from toolgate.config import Config
    from toolgate.storage.database import Database

_T = TypeVar("_T")


def export(config: "Config", kinds: Iterable[str], owner: str | None, since: str | None) -> None:
    """Print the records of these kinds, all kinds if none is named."""
    from toolgate.storage.exports import KINDS

    wanted = list(kinds) or list(KINDS)
    for kind in wanted:
        if kind not in KINDS:
            stop(f"There are no {kind}: it must be one of {', '.join(KINDS)}.")
    counts = _carried_out(config, _exported(config, wanted, owner, _time(since) if since else None))
    sys.stderr.write(", ".join([f"{counts[kind]} {kind}" for kind in wanted]) + "\n")


def forget(config: "Config", owner: str) -> dict[str, int]:
    """Delete everything of one owner; how much there was."""
    return _carried_out(config, _forgotten(config, owner))


async def _exported(config: "Config", kinds: Iterable[str], owner: str | None, since: float | None) -> Counter[str]:
    from toolgate.storage.exports import exported
    from toolgate.wire.jsontext import encode

    counts: Counter[str] = Counter()
    async with _opened(config) as database:
        for kind in kinds:
            async for record in exported(database, kind, owner=owner, since=since):
                sys.stdout.buffer.write(encode(record) + b"\n")
                counts[kind] += 1
    sys.stdout.flush()
    return counts


async def _forgotten(config: "Config", owner: str) -> dict[str, int]:
    from toolgate.storage.retention import Retention

    async with _opened(config) as database:
        return await Retention(database).forget(owner)


@asynccontextmanager
async def _opened(config: "Config") -> "AsyncIterator[Database]":
    from toolgate.storage.database import Database

    database = Database(config.storage.reveal(), connections=1)
    if database.path is not None and not database.path.exists():
        stop(f"{name_of(config)}: there is no such file")
    try:
        yield database
    finally:
        await database.aclose()


def _carried_out(config: "Config", work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; a database that cannot be used ends the command with its own words."""
    from toolgate.conversation.errors import ToolgateError

    try:
        return asyncio.run(work)
    except ToolgateError as error:
        stop(complaint(config, error))
    except BrokenPipeError:
        raise  # whoever reads has enough
    except OSError as error:
        stop(f"The records cannot be written: {error.strerror}.")


def _time(text: str) -> float:
    """A day or a time as seconds since 1970; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        stop(f"{text} is no day or time: write it as 2026-01-31 or 2026-01-31T12:00.")
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
