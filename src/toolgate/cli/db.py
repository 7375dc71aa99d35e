"""`toolgate db status|migrate|check`: the version of the tables, and whether anything is damaged. Needs no server."""

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

from toolgate.cli.asking import stop

if TYPE_CHECKING:
    from toolgate.config import Config
    from toolgate.conversation.errors import ToolgateError
    from toolgate.storage.database import Database

Task: TypeAlias = Literal["status", "migrate", "check"]


def look_after(config: "Config", task: Task) -> str:
    """What is to be said of the database afterwards; the command ends here if it is not as it should be."""
    from toolgate.conversation.errors import ToolgateError

    try:
        return f"{name_of(config)}: {asyncio.run(_done(config, task))}"
    except ToolgateError as error:
        stop(complaint(config, error))


def complaint(config: "Config", error: "ToolgateError") -> str:
    """What is wrong with the database, and what it said itself, which requests do not hear."""
    said = str(error.__cause__ or "").strip()
    detail = f" ({said})" if said and said not in error.message else ""
    return f"{name_of(config)}: {error.message}{detail}"


async def _done(config: "Config", task: Task) -> str:
    from toolgate.storage.database import Database

    database = Database(config.storage.reveal(), connections=1)
    if database.path is not None and not database.path.exists() and task != "migrate":
        return "there is no file yet"
    try:
        match task:
            case "status":
                return await _status(database)
            case "migrate":
                return await _migrate(database, config.storage.reveal())
            case "check":
                return await _check(database)
    finally:
        await database.aclose()


async def _status(database: "Database") -> str:
    now = await database.status()
    if now.version < now.newest:
        return f"version {now.version} of the tables; the newest is {now.newest}, see `toolgate db migrate`"
    if now.version > now.newest:
        return f"version {now.version} of the tables; this program knows {now.newest} and does not touch them"
    return f"version {now.version} of the tables, the newest"


async def _migrate(database: "Database", place: str) -> str:
    """Ours, and those of the engine that carries out runs: whoever serves may then do without the right to make tables."""
    from toolgate.server.runs import prepare_runs

    before = await database.status()
    await database.open()
    await prepare_runs(place, lambda what: typer.echo(what, err=True))
    if before.version == before.newest:
        return f"version {before.version} of the tables, nothing to do"
    return f"from version {before.version} of the tables to {before.newest}"


async def _check(database: "Database") -> str:
    damage = await database.check()
    if damage:
        stop("\n".join(["The database is damaged; restore a backup.", *damage]))
    return "nothing is damaged"


def name_of(config: "Config") -> str:
    """The address without the password that it may hold."""
    scheme, _, rest = config.storage.reveal().partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
