"""`toolgate export` and `toolgate forget`: print or delete records in the database, whether or not a server runs.

Records go to standard output, one JSON object per line; everything else goes to standard error.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.cli.api_client import fail
from toolgate.cli.config_file import end
from toolgate.cli.database_tasks import describe_error, redacted_url
from toolgate.cli.printing import count

if TYPE_CHECKING:
    from toolgate.config import Config
    from toolgate.storage.database import Database

_T = TypeVar("_T")

# The exit status where a key has no records: a script must not take a mistyped name for success.
NOTHING_FOUND = 3

# Names for the rows of tables; rows of other tables are internal and not counted.
RECORD_NAMES = {
    "responses": "response",
    "items": "stored item",
    "conversations": "conversation",
    "chats": "chat",
    "tool_invocations": "tool call",
    "request_records": "request record",
    "usage_sums": "daily usage total",
    "spending": "spending total",
    "approvals": "approval",
    "grants": "lasting approval",
    "run_records": "run",
    "idempotency": "repeatable answer",
    "peer_conversations": "peer conversation",
}


# Names for the records of kinds whose name is no plural.
_NAMES_OF_KINDS = {"usage": RECORD_NAMES["usage_sums"], "spending": RECORD_NAMES["spending"]}


def export(config: "Config", kinds: Iterable[str], owner: str | None, since: str | None) -> None:
    """Print the records of these kinds, all kinds if none is named."""
    from toolgate.storage.exports import KINDS

    selected = list(kinds) or list(KINDS)
    for kind in selected:
        if kind not in KINDS:
            fail(f"There are no {kind}: it must be one of {', '.join(KINDS)}.")
    start = None
    if since:
        try:
            when = datetime.fromisoformat(since)
            # In UTC unless it has a zone. A zone can move a time out of the calendar, which is the OverflowError.
            start = (when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            fail(f"{since} is no day or time: write it as 2026-01-31 or 2026-01-31T12:00.")
    counts = _run(config, _export(config, selected, owner, start))
    # `keys create` has an --owner, too: a note of the person who holds the key. It is easily taken for the name.
    if owner and not counts.total():
        named = "--owner takes the name of a key."
        if names := _run(config, _names_of_keys_with_note(config, owner)):
            fail(f"There is no key {owner}. It is the note of {', '.join(names)}; {named}")
        end(f"No records of {owner} were found; {named}", NOTHING_FOUND)
    listed = [count(counts[kind], _NAMES_OF_KINDS.get(kind, kind.removesuffix("s"))) for kind in selected]
    sys.stderr.write(", ".join(listed) + "\n")


def forget(config: "Config", owner: str) -> str:
    """Delete everything of one owner and return a sentence on what was deleted."""
    deleted = _run(config, _forget(config, owner))
    if not deleted:
        end(f"There were no records of {owner}.", NOTHING_FOUND)
    counts: Counter[str] = Counter()
    for table, rows in deleted.items():
        counts[RECORD_NAMES.get(table, "")] += rows
    listed = [count(number, name) for name, number in counts.items() if name and number]
    return f"Deleted of {owner}: {', '.join(listed) or 'only internal records'}."


async def _export(config: "Config", kinds: Iterable[str], owner: str | None, since: float | None) -> Counter[str]:
    from toolgate.storage.exports import exported

    counts: Counter[str] = Counter()
    async with _open_database(config) as database:
        for kind in kinds:
            async for line in exported(database, kind, owner=owner, since=since):
                sys.stdout.buffer.write(line + b"\n")
                counts[kind] += 1
    sys.stdout.flush()
    return counts


async def _names_of_keys_with_note(config: "Config", note: str) -> list[str]:
    """Return the names of keys that were made with this text as `--owner`, unless a key has it as its name."""
    from toolgate.storage.keys import KeyStore

    async with _open_database(config) as database:
        _, keys = await KeyStore(database).all()
    return [] if any(key.name == note for key in keys) else sorted([key.name for key in keys if key.owner == note])


async def _forget(config: "Config", owner: str) -> dict[str, int]:
    from toolgate.storage.retention import RetentionStore

    async with _open_database(config) as database:
        return await RetentionStore(database).forget(owner)


@asynccontextmanager
async def _open_database(config: "Config") -> "AsyncGenerator[Database, None]":
    from toolgate.storage.database import Database

    database = Database(config.storage.reveal(), connections=1)
    # Opening it would create an empty database, and report that there are no records.
    if database.path is not None and not database.path.exists():
        where = "" if config.source else " There is no toolgate.yaml here; name one with --config."
        fail(f"{redacted_url(config)}: there is no such file.{where}")
    try:
        yield database
    finally:
        await database.aclose()


def _run(config: "Config", work: Coroutine[Any, Any, _T]) -> _T:
    """Run the work; a database error ends the command with its message."""
    from toolgate.conversation.errors import ToolgateError

    try:
        return asyncio.run(work)
    except ToolgateError as error:
        fail(describe_error(config, error))
    except BrokenPipeError:
        raise  # the reader of the output has closed it
    except OSError as error:
        fail(f"The records cannot be written: {error.strerror}.")
