"""Run an application's ASGI lifespan: its startup and its shutdown."""

import asyncio
import logging
from typing import Any

from toolgate.http.asgi_types import AsgiApp, Message

_logger = logging.getLogger(__name__)


class Lifespan:
    """One lifespan task; `state` is what the application keeps in it for requests."""

    def __init__(self, app: AsgiApp, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._failed = False

    async def startup(self) -> bool:
        """Start the application and return whether it can serve; its reason is logged if not."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        await self._send_event("lifespan.startup", self._task)
        return not self._failed

    async def shutdown(self) -> None:
        """Stop the application."""
        if self._task is not None and not self._task.done():
            await self._send_event("lifespan.shutdown", self._task)

    async def _send_event(self, kind: str, task: asyncio.Task[None]) -> None:
        """Send an event and wait until the application has replied or returned."""
        self._replied = asyncio.Event()
        self._events.put_nowait({"type": kind})
        reply = asyncio.ensure_future(self._replied.wait())
        # The task as well: an application that raises, or knows no lifespan, returns without a reply.
        await asyncio.wait({reply, task}, return_when=asyncio.FIRST_COMPLETED)
        reply.cancel()

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        try:
            await self._app(scope, self._events.get, self._receive_reply)
        except Exception as error:
            self._failed = True
            _logger.error("The application failed to start or stop", exc_info=error)

    async def _receive_reply(self, message: Message) -> None:
        if message["type"].endswith(".failed"):
            self._failed = True
            _logger.error(message.get("message") or "The application did not start or stop.")
        self._replied.set()
