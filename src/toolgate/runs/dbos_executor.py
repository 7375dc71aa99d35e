"""Execute runs as workflows of DBOS, which stores their steps in its system database.

DBOS has an event loop and threads of its own here, because its database calls block; the work of a run is done in the
server's loop, and its steps are written in threads. Importing this file imports DBOS, which takes most of a second and
60 MB: it is imported when there is a run to execute.

DBOS stores steps, and refuses those of an execution that another has replaced, in the same transaction. Which node may
execute a run is decided by the leases of `toolgate.storage.runs`: DBOS does not notice dead nodes.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID, error
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from toolgate.conversation.errors import InternalGatewayError
from toolgate.runs.dbos_postgres_database import RETRY_SECONDS, DbosPostgresDatabase
from toolgate.runs.dbos_sqlite_database import DbosSqliteDatabase
from toolgate.runs.executor import StepsLost, Work
from toolgate.storage.runs import RunLeaseLost
from toolgate.storage.sql_engine import unavailable

_T = TypeVar("_T")

# The format of the steps: DBOS gives a run only to nodes that write the same.
FORMAT = "1"

_WRITERS = 4

_current: list["DbosExecutor"] = []  # DBOS is one to a process and finds its workflows by name


@DBOS.workflow(name="run")
async def _run(id: str) -> None:
    if not _current:
        raise asyncio.CancelledError  # left for a node that is not closing
    await _current[0].execute(id)


class DbosExecutor:
    """Executes runs in DBOS (`toolgate.runs.executor.DurableRunExecutor`)."""

    def __init__(
        self, url: str, node: str, report: Callable[[str], None], *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        """`url` is that of DBOS's system database; `report` takes the errors that DBOS logs.

        While PostgreSQL is away a connection is tried every `retry_seconds`.
        """
        self._url = url
        self._node = node
        self._report = report
        self._retry_seconds = retry_seconds
        self._server_loop: asyncio.AbstractEventLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="toolgate-steps")
        self._work: Work | None = None
        self._database: DbosSqliteDatabase | DbosPostgresDatabase | None = None

    async def open(self, work: Work) -> None:
        """Start DBOS in threads of its own."""
        if _current:
            raise InternalGatewayError(
                "Another server in this process carries out runs already; give this one its own process."
            )
        _current.append(self)
        self._server_loop, self._work = asyncio.get_running_loop(), work
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name="toolgate-runs", daemon=True)
        self._thread.start()
        try:
            await self._in_loop(self._launch)
        except BaseException:
            await self.aclose()
            raise

    async def begin(self, id: str) -> None:
        """Start the workflow of this id here."""
        await self._in_loop(lambda: _start(id))

    async def resume(self, id: str, begun: bool = False) -> None:
        """Queue the workflow for any node; from now on DBOS refuses the steps of earlier executions."""

        async def resume() -> None:
            try:
                await DBOS.resume_workflow_async(id)
            except error.DBOSNonExistentWorkflowError:
                if begun:
                    raise StepsLost from None
                await _start(id)  # the process ended between accepting the run and starting it

        await self._in_loop(resume)

    async def forget(self, ids: Sequence[str]) -> None:
        """Delete the workflows of runs that have ended: DBOS has no garbage collection."""
        await self._in_loop(lambda: DBOS.delete_workflows_async(list(ids)))

    async def execute(self, id: str) -> None:
        """Do the work of a workflow, called in the loop of DBOS; an exception leaves the workflow pending."""
        assert self._server_loop is not None
        assert self._work is not None
        # The list of steps is read outside of the workflow, in an empty context, where it is no step itself.
        reading = DBOS.list_workflow_steps_async(id)
        listing = asyncio.get_running_loop().create_task(reading, context=contextvars.Context())
        names = {step["function_id"]: step["function_name"] for step in await listing}
        # DBOS numbers the steps of an execution as they are run: running the written ones again returns their values,
        # and takes the numbering to where new ones follow. A step that was not written leaves a gap, which is filled.
        numbers = range(1, max(names, default=0) + 1)
        values = [await DBOS.run_step_async({"name": names.get(number, "nothing")}, str) for number in numbers]
        work = self._work(id, DbosStepLog(self._writers, contextvars.copy_context(), values))

        async def done() -> None:  # run_coroutine_threadsafe takes a coroutine, and `work` is any awaitable
            await work

        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(done(), self._server_loop))
        except Exception as failure:
            raise asyncio.CancelledError from failure  # any other exception would end the workflow

    async def aclose(self) -> None:
        """Stop DBOS; workflows stay as they are."""
        if self in _current:
            _current.remove(self)
        if self._loop is not None and self._thread is not None:
            if self._database is not None:
                self._database.stop()  # first, or threads that wait for PostgreSQL would keep DBOS from ending
            await self._in_loop(_cancel_tasks)
            await asyncio.to_thread(DBOS.destroy)
            if self._database is not None:
                self._database.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._writers.shutdown(wait=False)
            self._loop = None

    async def _launch(self) -> None:
        # Only its errors are reported; without a handler DBOS would add one of its own.
        log = logging.getLogger("dbos")
        log.propagate = False
        log.handlers = [_ReportingHandler(self._report)]
        log.setLevel(logging.ERROR)
        if self._url.startswith("sqlite:"):
            self._database = DbosSqliteDatabase(self._url)
        else:
            self._database = DbosPostgresDatabase(self._url, self._retry_seconds)
        config: DBOSConfig = {
            "name": "toolgate",
            "system_database_url": self._url,
            "system_database_engine": self._database.engine,
            "application_version": FORMAT,
            # DBOS resumes at a start what the executor of the same id left, whether or not its lease has run out. The
            # name of a node is new at each start, so that the scheduler alone resumes runs.
            "executor_id": self._node,
            "serializer": DBOSPortableJSONSerializer(),
            "use_listen_notify": False,  # its messages are not used, and the listener leaves its connection open
            "enable_otlp": False,
            "log_level": "ERROR",
        }
        try:
            DBOS(config=config)
            DBOS.launch()
        except SQLAlchemyError as problem:
            # Without the SQL statement, which SQLAlchemy adds to the message and which does not help a user.
            why = str(problem.orig if isinstance(problem, DBAPIError) else problem).partition("\n")[0]
            raise unavailable(f"the tables of runs cannot be used: {why}") from problem
        self._database.mark_ready()

    async def _in_loop(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a coroutine in the loop of DBOS."""
        if self._loop is None:
            raise InternalGatewayError("Runs are not carried out any more.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))


class DbosStepLog:
    """The steps of one workflow, written from the server's loop, one at a time (`DurableStepLog`)."""

    def __init__(self, threads: Executor, context: contextvars.Context, recorded: Sequence[str]) -> None:
        """`context` is that of the workflow: DBOS knows by it which workflow a step belongs to."""
        self.recorded = recorded
        self._threads = threads
        self._context = context
        self._turn = asyncio.Lock()

    async def keep(self, name: str, value: str) -> None:
        """Write a step; RunLeaseLost if another execution has replaced this one."""
        # In turn, since the number of a step is that of its writing, and a context is entered by one thread at a time.
        loop = asyncio.get_running_loop()
        async with self._turn:
            writing = loop.run_in_executor(self._threads, self._context.run, _write_step, name, value)
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.gather(writing, return_exceptions=True)  # the next step must not be written meanwhile
                raise


def _write_step(name: str, value: str) -> None:
    # DBOS does not call the function of a step that is stored already, but returns what is stored.
    written = []

    def write() -> str:
        written.append(value)
        return value

    try:
        DBOS.run_step({"name": name}, write)
    except error.DBOSWorkflowConflictIDError:
        raise RunLeaseLost from None
    except SQLAlchemyError as problem:
        raise unavailable("a step could not be stored") from problem
    if not written:
        raise RunLeaseLost  # another execution has stored this step


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _cancel_tasks() -> None:
    """Cancel what waits in this loop: a workflow that another node has taken over waits for its result there."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _start(id: str) -> None:
    with SetWorkflowID(id):
        await DBOS.start_workflow_async(_run, id)


class _ReportingHandler(logging.Handler):
    """Reports the errors that DBOS logs."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())
