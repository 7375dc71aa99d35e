"""The approvals' endpoints on a real socket, over a desk that a test can put questions to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from tests.stage import in_a_thread
from tests.tools.approvals.asking import call, open_store
from toolgate.config import Config, Key, Secret
from toolgate.dialects.openai_chat import DIALECT
from toolgate.server.app import App
from toolgate.server.callers.auth import Keys
from toolgate.server.edge.listen import listening
from toolgate.server.origins import Origins
from toolgate.server.workshop.approvals import ApprovalInbox
from toolgate.telemetry.logs import Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.traced import Traced
from toolgate.tools.approvals import Desk, Policy, Terms

KEYS = (
    Key(name="ann", key=Secret("ann-key"), scopes=("chat", "tools")),
    Key(name="bob", key=Secret("bob-key"), scopes=("chat", "tools")),
    Key(name="root", key=Secret("root-key"), scopes=("tools", "admin")),
    Key(name="talker", key=Secret("talker-key"), scopes=("chat",)),
)


class Inbox:
    """A server at `url` and the desk behind it."""

    def __init__(self, url: str, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.desk = desk
        self._loop = loop

    async def ask(self, **asked: Any) -> str:
        """Put a question; its id."""
        verdict = await self.desk.decide(call(**asked))
        assert verdict.approval is not None
        return verdict.approval

    def ask_from_outside(self, **asked: Any) -> str:
        """The same from another thread."""
        return asyncio.run_coroutine_threadsafe(self.ask(**asked), self._loop).result(10)


@asynccontextmanager
async def open_inbox(policy: Policy | None = None, terms: Terms | None = None, **options: Any) -> AsyncIterator[Inbox]:
    """Serve the endpoints, and nothing else."""
    async with open_store() as ledger:
        desk = Desk(policy or Policy(), ledger, terms=terms or Terms(workspace="w"), **options)
        traced = Traced(Log("error"), Metrics())
        origins = Origins(Config(keys=KEYS))
        app = App(ApprovalInbox(desk).endpoints(), {"/": DIALECT.server}, Keys(KEYS), origins, traced)

        async def served(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await app(scope, receive, send)
                return
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})

        async with listening(served) as url:
            yield Inbox(url, desk, asyncio.get_running_loop())


def inbox_in_a_thread() -> AbstractContextManager[Inbox]:
    """Serve in a thread of its own, for clients that block."""
    return in_a_thread(open_inbox())
