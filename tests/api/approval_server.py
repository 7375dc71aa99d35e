"""Serve the approval endpoints on a real socket, over an approval service that a test can use directly."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from tests.approvals.builders import call, open_store
from tests.stage import in_a_thread
from toolgate.api.approvals import ApprovalEndpoints
from toolgate.approvals import ApprovalLimits, ApprovalPolicy, ApprovalService
from toolgate.auth.authenticator import Authenticator
from toolgate.config import Config, KeySettings, Secret
from toolgate.dialects.openai_chat import DIALECT
from toolgate.http.application import Application
from toolgate.http.listener import listening
from toolgate.http.origins import OriginPolicy
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry

KEYS = (
    KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat", "tools")),
    KeySettings(name="bob", key=Secret("bob-key"), scopes=("chat", "tools")),
    KeySettings(name="root", key=Secret("root-key"), scopes=("tools", "admin")),
    KeySettings(name="talker", key=Secret("talker-key"), scopes=("chat",)),
)


class ApprovalServer:
    """A server at `url` and the approval service behind it."""

    def __init__(self, url: str, approvals: ApprovalService, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.approvals = approvals
        self._loop = loop

    async def ask(self, **asked: Any) -> str:
        """Request an approval and return its id."""
        verdict = await self.approvals.decide(call(**asked))
        assert verdict.approval is not None
        return verdict.approval

    def ask_from_outside(self, **asked: Any) -> str:
        """Request an approval from another thread."""
        return asyncio.run_coroutine_threadsafe(self.ask(**asked), self._loop).result(10)


@asynccontextmanager
async def open_approval_server(
    policy: ApprovalPolicy | None = None, options: ApprovalLimits | None = None, **fields: Any
) -> AsyncGenerator[ApprovalServer]:
    """Serve the endpoints, and nothing else."""
    async with open_store() as store:
        approvals = ApprovalService(
            policy or ApprovalPolicy(), store, options=options or ApprovalLimits(workspace="w"), **fields
        )
        telemetry = Telemetry(Logger("error"), Metrics())
        origins = OriginPolicy(Config(keys=KEYS))
        app = Application(
            ApprovalEndpoints(approvals).endpoints(), {"/": DIALECT.server}, Authenticator(KEYS), origins, telemetry
        )

        async def served(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await app(scope, receive, send)
                return
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})

        async with listening(served) as url:
            yield ApprovalServer(url, approvals, asyncio.get_running_loop())


def approval_server_in_thread() -> AbstractContextManager[ApprovalServer]:
    """Serve in a thread of its own, for clients that block."""
    return in_a_thread(open_approval_server())
