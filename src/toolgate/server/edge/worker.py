"""The task in which a connection's requests run, one after the other.

A task of its own for every request would cost as much as reading the request does.
It knows tasks.  It must not know sockets, clocks or turns, nor what an answer says.
"""

import asyncio

from uvicorn._types import ASGI3Application

from toolgate.server.edge.answer import Answer


class Worker:
    """Runs answers; `tasks` holds its task while that runs one."""

    __slots__ = ("_app", "_dismissed", "_loop", "_task", "_tasks", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, app: ASGI3Application, tasks: set[asyncio.Task[None]]) -> None:
        self._loop = loop
        self._app = app
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._waiting: asyncio.Future[Answer | None] | None = None
        self._dismissed = False

    def run(self, answer: Answer) -> None:
        """Run the answer in the task that waits for one, or in a new one while that is at the end of the one before."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        else:
            self._task = self._loop.create_task(self._serve(answer))
            self._task.add_done_callback(self._tasks.discard)
        task = answer.task = self._task
        assert task is not None  # there is one once something has been run
        self._tasks.add(task)

    def dismiss(self) -> None:
        """Let the task end with the answer that it runs, if it runs one; another may yet be asked for."""
        self._dismissed = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _serve(self, first: Answer) -> None:
        answer: Answer | None = first
        task = first.task
        assert task is not None  # `run` has said so
        while answer is not None:
            await answer.run(self._app)
            self._tasks.discard(task)
            # A task that was once cancelled would take the next answer's timeouts for that.
            if self._dismissed or task is not self._task or task.cancelling():
                return
            self._waiting = self._loop.create_future()
            answer = await self._waiting
