"""Calls to ask about, and a desk with a clock that stands still."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.tools.approvals import Approval, Desk, Grant, Policy, Terms
from toolgate.tools.tool import Annotations, Asked, Invocation, Preparation, Stance, ToolSpec

READS = Annotations(read_only=True, destructive=False, open_world=False)
BROWSES = Annotations(read_only=True, destructive=False, open_world=True)


class Clock:
    """Tells whatever time it is set to."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def tool(name: str = "delete_file", **fields: Any) -> ToolSpec:
    """A tool that nobody promised anything about."""
    return ToolSpec(**{"description": "Deletes a file.", "source": "python", "name": name, **fields})


def call(
    spec: ToolSpec | None = None,
    arguments: Any = None,
    *,
    text: str | None = None,
    caller: str = "ann",
    session: str = "s1",
    run: str = "r1",
    stance: Stance | None = None,
    preparation: Preparation | None = None,
    tainted: bool = False,
) -> Asked:
    """A call of the tool that wants to run."""
    arguments = {"path": "/tmp/a"} if arguments is None else arguments
    text = msgspec.json.encode(arguments).decode() if text is None else text
    invocation = Invocation("call_1", arguments, text, caller=caller, session=session)
    return Asked(spec or tool(), invocation, run, preparation or Preparation(), stance, tainted)


@asynccontextmanager
async def open_store(path: Path | None = None) -> AsyncIterator[ApprovalStore[Approval, Grant]]:
    """A ledger on disk, or in memory."""
    database = Database(path)
    try:
        yield ApprovalStore(database, Approval, Grant)
    finally:
        await database.aclose()


@asynccontextmanager
async def open_desk(
    policy: Policy | None = None,
    *,
    path: Path | None = None,
    terms: Terms | None = None,
    now: Callable[[], float] | None = None,
    **options: Any,
) -> AsyncIterator[Desk]:
    """A desk over a ledger of its own."""
    async with open_store(path) as ledger:
        yield Desk(policy or Policy(), ledger, terms=terms or Terms(workspace="w"), now=now or Clock(), **options)
