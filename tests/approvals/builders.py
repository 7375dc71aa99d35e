"""Build calls that need approval, and an ApprovalService whose clock stands still."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from toolgate.approvals import Approval, ApprovalLimits, ApprovalPolicy, ApprovalService, StandingApproval
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.tools.tool import Annotations, CallPreview, ProposedCall, ServerToolDefinition, Stance, ToolCallInput

READS = Annotations(read_only=True, destructive=False, open_world=False)
BROWSES = Annotations(read_only=True, destructive=False, open_world=True)


class Clock:
    """Returns the time that it is set to."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def tool(name: str = "delete_file", **fields: Any) -> ServerToolDefinition:
    """A tool without annotations."""
    return ServerToolDefinition(**{"description": "Deletes a file.", "source": "python", "name": name, **fields})


def call(
    spec: ServerToolDefinition | None = None,
    arguments: Any = None,
    *,
    text: str | None = None,
    caller: str = "ann",
    session: str = "s1",
    run: str = "r1",
    stance: Stance | None = None,
    preparation: CallPreview | None = None,
    tainted: bool = False,
) -> ProposedCall:
    """A call of the tool that is about to run."""
    arguments = {"path": "/tmp/a"} if arguments is None else arguments
    text = msgspec.json.encode(arguments).decode() if text is None else text
    invocation = ToolCallInput("call_1", arguments, text, caller=caller, session=session)
    return ProposedCall(spec or tool(), invocation, run, preparation or CallPreview(), stance, tainted)


@asynccontextmanager
async def open_store(path: Path | None = None) -> AsyncIterator[ApprovalStore[Approval, StandingApproval]]:
    """A store on disk, or in memory."""
    database = Database(path)
    try:
        yield ApprovalStore(database, Approval, StandingApproval)
    finally:
        await database.aclose()


@asynccontextmanager
async def open_service(
    policy: ApprovalPolicy | None = None,
    *,
    path: Path | None = None,
    options: ApprovalLimits | None = None,
    now: Callable[[], float] | None = None,
    **fields: Any,
) -> AsyncIterator[ApprovalService]:
    """A service with a store of its own."""
    async with open_store(path) as store:
        yield ApprovalService(
            policy or ApprovalPolicy(),
            store,
            options=options or ApprovalLimits(workspace="w"),
            now=now or Clock(),
            **fields,
        )
