"""Run a connection's requests in one task, one after the other.

A task of its own for every request would cost as much as reading the request does.
It knows tasks. It must not know sockets, clocks or which request comes next.
"""

import asyncio

from toolgate.http.asgi_types import AsgiApp
from toolgate.http.request_cycle import RequestResponseCycle


class ConnectionTask:
    """Runs requests; `tasks` contains its task while that runs one."""

    __slots__ = ("_app", "_loop", "_next", "_stopped", "_task", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop, app: AsgiApp, tasks: set[asyncio.Task[None]]) -> None:
        self._loop = loop
        self._app = app
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[RequestResponseCycle | None] | None = None
        self._stopped = False

    def run(self, response: RequestResponseCycle) -> None:
        """Run a request in the waiting task, or in a new one while that is still at the end of the one before."""
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(response)
        else:
            self._task = self._loop.create_task(self._serve(response))
            self._task.add_done_callback(self._tasks.discard)
        task = response.task = self._task
        assert task is not None  # it was made above, now or for an earlier request
        self._tasks.add(task)

    def stop(self) -> None:
        """Let the task end after the request that it runs; a later `run` makes a new one."""
        self._stopped = True
        waiting, self._next = self._next, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _serve(self, first: RequestResponseCycle) -> None:
        response: RequestResponseCycle | None = first
        task = first.task
        assert task is not None  # set by `run`
        while response is not None:
            # Awaited here: each coroutine around the application would cost every request its suspension.
            try:
                await response.call(self._app)
            except asyncio.CancelledError as cancelled:
                response.end(cancelled)
                raise
            except Exception as failure:  # noqa: BLE001  # the HTTP edge
                response.end(failure)
            else:
                response.end(None)
            self._tasks.discard(task)
            # A task that was once cancelled would take the next request's timeouts for that.
            if self._stopped or task is not self._task or task.cancelling():
                return
            self._next = self._loop.create_future()
            response = await self._next
