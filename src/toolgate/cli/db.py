"""`toolgate db status|migrate|check`: show, upgrade and check the tables of the database. Needs no server."""

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

from toolgate.cli.api_client import fail

if TYPE_CHECKING:
    from toolgate.config import Config
    from toolgate.conversation.errors import ToolgateError
    from toolgate.storage.database import Database

Task: TypeAlias = Literal["status", "migrate", "check"]


def run_task(config: "Config", task: Task) -> str:
    """Carry out a task and return its report; an error ends the command."""
    from toolgate.conversation.errors import ToolgateError

    try:
        return f"{redacted_url(config)}: {asyncio.run(_run_task(config, task))}"
    except ToolgateError as error:
        fail(describe_error(config, error))


def describe_error(config: "Config", error: "ToolgateError") -> str:
    """Describe a database error with the database's own message, which API clients do not see."""
    cause = str(error.__cause__ or "").strip()
    detail = f" ({cause})" if cause and cause not in error.message else ""
    return f"{redacted_url(config)}: {error.message}{detail}"


async def _run_task(config: "Config", task: Task) -> str:
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
                if damage := await database.check():
                    fail("\n".join(["The database is damaged; restore a backup.", *damage]))
                return "nothing is damaged"
    finally:
        await database.aclose()


async def _status(database: "Database") -> str:
    now = await database.status()
    if now.version < now.newest:
        return f"version {now.version} of the tables; the newest is {now.newest}, see `toolgate db migrate`"
    if now.version > now.newest:
        return f"version {now.version} of the tables; this program knows {now.newest} and does not touch them"
    return f"version {now.version} of the tables, the newest"


async def _migrate(database: "Database", url: str) -> str:
    """Upgrade our tables and those of the run engine, so that a server may run without the right to create tables."""
    from toolgate.app.runs import prepare_runs

    before = await database.status()
    await database.open()
    await prepare_runs(url, lambda message: typer.echo(message, err=True))
    if before.version == before.newest:
        return f"version {before.version} of the tables, nothing to do"
    return f"from version {before.version} of the tables to {before.newest}"


def redacted_url(config: "Config") -> str:
    """Return the URL of the database without its password."""
    scheme, _, rest = config.storage.reveal().partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
