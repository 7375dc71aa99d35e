"""`toolgate db status|migrate|check`: show, upgrade and check the tables of the database. Needs no server."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

from toolgate.cli.api_client import fail

if TYPE_CHECKING:
    from toolgate.config import Config
    from toolgate.conversation.errors import ToolgateError

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
    # Opening SQLite creates the file, which only `migrate` may do.
    if database.path is not None and not database.path.exists() and task != "migrate":
        return "there is no file yet"
    try:
        if task == "check":
            if damage := await database.check():
                fail("\n".join(["The database is damaged; restore a backup.", *damage]))
            return "nothing is damaged"
        now = await database.status()
        if task == "migrate":
            from toolgate.app.runs import prepare_runs

            await database.open()
            # The run engine has tables of its own; a server may then run without the right to create tables.
            await prepare_runs(config.storage.reveal(), lambda message: typer.echo(message, err=True))
            if now.version == now.newest:
                return f"version {now.version} of the tables, nothing to do"
            return f"from version {now.version} of the tables to {now.newest}"
        if now.version < now.newest:
            return f"version {now.version} of the tables; the newest is {now.newest}, see `toolgate db migrate`"
        if now.version > now.newest:
            return f"version {now.version} of the tables; this program knows {now.newest} and does not touch them"
        return f"version {now.version} of the tables, the newest"
    finally:
        await database.aclose()


def redacted_url(config: "Config") -> str:
    """Return the URL of the database without its password."""
    scheme, _, rest = config.storage.reveal().partition("://")
    if scheme == "sqlite" and (path := rest.removeprefix("/")):
        # In full: a relative path begins in the current folder, which may not be that of the server.
        return f"sqlite:///{Path(path).absolute()}"
    # PostgreSQL takes a password before the @ and in the query.
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
