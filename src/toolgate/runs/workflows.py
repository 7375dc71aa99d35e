"""Runs as workflows of DBOS: their steps are written to its system database, and any node goes on with them.

DBOS has a loop and threads of its own here, because its database calls block; what a run does happens in the server's loop,
and its steps are written in threads. Importing this file imports DBOS, which takes
most of a second and 60 MB: only whoever has runs to carry out does.

A workflow of DBOS belongs to whoever was given it last: a step of anybody else is refused in the same transaction.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID, error
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from toolgate.conversation.errors import GatewayFault, Overloaded
from toolgate.runs.execution import StepsLost, Work
from toolgate.runs.sqlite import StepsFile
from toolgate.storage.engine import unavailable
from toolgate.storage.runs import LeaseLost

_T = TypeVar("_T")

FORMAT = "1"
"""Of the steps: DBOS gives a run only to nodes that write them in the same way."""

_MANY = 1000
_WRITERS = 4

_in_force: list["Workflows"] = []  # DBOS is one to a process and finds its workflows by name, so this is, too


@DBOS.workflow(name="run")
async def _run(id: str) -> None:
    if not _in_force:
        raise asyncio.CancelledError  # left for a node that is not closing
    await _in_force[0].carry_out(id)


class Workflows:
    """Carries out runs in DBOS (`toolgate.runs.execution.Execution`)."""

    def __init__(self, url: str, node: str, complain: Callable[[str], None]) -> None:
        """`url` is that of DBOS's system database."""
        self._url = url
        self._node = node
        self._complain = complain
        self._home: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._threads = ThreadPoolExecutor(_WRITERS, thread_name_prefix="toolgate-steps")
        self._work: Work | None = None
        self._file: StepsFile | None = None

    async def open(self, work: Work) -> None:
        """Start DBOS, which takes a moment, in threads of its own."""
        if _in_force:
            raise GatewayFault(
                "Another server in this process carries out runs already; give this one its own process."
            )
        _in_force.append(self)
        self._home, self._work = asyncio.get_running_loop(), work
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_keep_running, args=(self._loop,), name="toolgate-runs", daemon=True)
        self._thread.start()
        try:
            await self._there(self._launch)
        except BaseException:
            await self.aclose()
            raise

    async def begin(self, id: str) -> None:
        """Start the workflow of this id here."""
        await self._there(lambda: _begin(id))

    async def resume(self, id: str, begun: bool = False) -> None:
        """Queue the workflow for any node; from now on nobody else's steps are taken."""
        await self._there(lambda: _resume(id, begun))

    async def known(self) -> Sequence[str]:
        """The ids of the workflows that are there, the oldest many of them."""
        found = await self._there(lambda: DBOS.list_workflows_async(limit=_MANY, load_input=False, load_output=False))
        return [one.workflow_id for one in found]

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete workflows that have ended."""
        await self._there(lambda: DBOS.delete_workflows_async(list(ids)))

    async def carry_out(self, id: str) -> None:
        """The workflow itself, in the loop of DBOS; what is raised here leaves it pending."""
        assert self._home is not None
        assert self._work is not None
        assert self._loop is not None
        recorded = await _replayed(id)
        steps = WorkflowSteps(self._threads, contextvars.copy_context(), recorded)
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(self._work(id, steps)), self._home))
        except Exception as failure:
            raise asyncio.CancelledError from failure  # any other would end the workflow

    async def aclose(self) -> None:
        """Stop DBOS; workflows stay as they are."""
        if self in _in_force:
            _in_force.remove(self)
        if self._loop is not None and self._thread is not None:
            await self._there(_end_tasks)
            await asyncio.to_thread(DBOS.destroy)
            if self._file is not None:
                self._file.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._threads.shutdown(wait=False)
            self._loop = None

    async def _launch(self) -> None:
        _speak_through(self._complain)
        file = self._file = StepsFile(self._url) if self._url.startswith("sqlite:") else None
        config: DBOSConfig = {
            "name": "toolgate",
            "system_database_url": self._url,
            "system_database_engine": file.engine if file else None,
            "application_version": FORMAT,
            "executor_id": self._node,  # nobody was ever called so: DBOS by itself finds nothing to recover
            "serializer": DBOSPortableJSONSerializer(),
            "sys_db_pool_size": 5,
            "sys_db_idle_transaction_timeout_sec": 5.0,  # a frozen node must not hold up the others
            "db_engine_kwargs": {"pool_pre_ping": False},  # a lost connection is noticed and made again in any case
            "use_listen_notify": False,  # nobody waits for its messages, and the listener leaves its connection open
            "enable_otlp": False,
            "log_level": "ERROR",
        }
        try:
            DBOS(config=config)
            DBOS.launch()
        except SQLAlchemyError as problem:
            raise _unavailable(problem) from problem
        if file is not None:
            file.prepared()

    async def _there(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Have something done in the loop of DBOS."""
        if self._loop is None:
            raise GatewayFault("Runs are not carried out any more.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))


class WorkflowSteps:
    """The steps of one workflow, written from the server's loop, one at a time."""

    def __init__(self, threads: Executor, context: contextvars.Context, recorded: Sequence[str]) -> None:
        self.recorded = recorded
        self._threads = threads
        self._context = context
        self._turn = asyncio.Lock()

    async def keep(self, name: str, value: str) -> None:
        """Write a step, unless the workflow was given to somebody else."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            writing = loop.run_in_executor(self._threads, self._context.run, _keep, name, value)
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.gather(writing, return_exceptions=True)  # a context is entered by one thread at a time
                raise


def _keep(name: str, value: str) -> None:
    """In the context of a workflow, by which DBOS knows which it is."""
    try:
        DBOS.run_step({"name": name}, lambda: value)
    except error.DBOSWorkflowConflictIDError:
        raise LeaseLost from None
    except SQLAlchemyError as problem:
        raise unavailable("a step could not be kept") from problem


def _unavailable(problem: SQLAlchemyError) -> Overloaded:
    """Without the statement, which says nothing to anybody here."""
    why = str(problem.orig if isinstance(problem, DBAPIError) else problem).partition("\n")[0]
    return unavailable(f"the tables of runs cannot be used: {why}")


def _keep_running(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end_tasks() -> None:
    """Cancel what waits in this loop: a workflow that was given to another node waits for its result there."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _begin(id: str) -> None:
    with SetWorkflowID(id):
        await DBOS.start_workflow_async(_run, id)


async def _resume(id: str, begun: bool) -> None:
    try:
        await DBOS.resume_workflow_async(id)
    except error.DBOSNonExistentWorkflowError:
        if begun:
            raise StepsLost from None
        await _begin(id)  # the process ended between accepting the run and beginning it


async def _replayed(id: str) -> list[str]:
    """The steps that are written, in their order; DBOS is led past each of them to where new ones are written."""
    written = await _within(contextvars.Context(), lambda: DBOS.list_workflow_steps_async(id))
    known = {step["function_id"]: step["function_name"] for step in written}
    last = max(known, default=0)
    # A step that was not written leaves its place, which is filled.
    return [await DBOS.run_step_async({"name": known.get(number, "nothing")}, str) for number in range(1, last + 1)]


async def _within(context: contextvars.Context, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Have something done in this context: DBOS knows by it which workflow is meant, or that none is."""
    return await asyncio.get_running_loop().create_task(work(), context=context)


async def _awaited(work: Awaitable[None]) -> None:
    await work


class _Complaints(logging.Handler):
    """Passes on what DBOS has to say for itself."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        self._complain(record.getMessage())


def _speak_through(complain: Callable[[str], None]) -> None:
    """Make DBOS silent but for errors, and those go to our log; it adds a handler of its own if there is none."""
    log = logging.getLogger("dbos")
    log.propagate = False
    log.handlers = [_Complaints(complain)]
    log.setLevel(logging.ERROR)
