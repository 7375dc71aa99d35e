"""Steps that a killed process or `toolgate forget` left behind are deleted at the next start."""

import asyncio

from toolgate.app.runs import system_database
from toolgate.runs.dbos_executor import DbosExecutor
from toolgate.runs.dbos_workflow_ids import stored_workflows
from toolgate.runs.executor import LazyRunExecutor
from toolgate.runs.scheduler import EarlyEnd, LeasedRunScheduler, RunAttempt, SchedulerOptions
from toolgate.runs.step_records import DurableStepLog
from toolgate.storage.database import Database
from toolgate.storage.runs import RunStore


class NoWork:
    """Handles no run."""

    async def perform(self, attempt: RunAttempt) -> None:
        raise AssertionError("no run is to be performed")

    async def stop(self, attempt: RunAttempt, how: EarlyEnd) -> None:
        raise AssertionError("no run is to be ended")


async def write_steps(url: str, *ids: str) -> None:
    """Leave the steps of these runs, as a process does that is killed."""
    written = asyncio.Semaphore(0)

    async def work(id: str, steps: DurableStepLog) -> None:
        await steps.keep("step", "private text")
        written.release()
        await asyncio.Event().wait()

    executor = DbosExecutor(url, "killed", print)
    await executor.open(work)
    for id in ids:
        await executor.begin(id)
    for _ in ids:
        await asyncio.wait_for(written.acquire(), 30)
    await executor.aclose()


async def test_a_start_deletes_the_steps_of_runs_that_are_over_or_not_stored(storage_url: str) -> None:
    url, database = system_database(storage_url), Database(storage_url)
    assert url is not None
    assert await stored_workflows(url, database) == []
    await write_steps(url, "forgotten", "ended", "running")
    other, store = RunStore(database, "other"), RunStore(database, "this")
    for id in ("ended", "running"):
        await database.change(other.opening(id, "ann", b"{}"))
    ended = await other.claim("ended")
    assert ended is not None
    await database.change(other.ending("ended", ended.token, "completed"))
    assert sorted(await stored_workflows(url, database)) == ["ended", "forgotten", "running"]

    made: list[DbosExecutor] = []

    def make() -> DbosExecutor:
        made.append(DbosExecutor(url, "this", print))
        return made[-1]

    problems: list[str] = []
    executor = LazyRunExecutor(make, lambda: stored_workflows(url, database))
    scheduler = LeasedRunScheduler(store, executor, NoWork(), SchedulerOptions(), problems.append)
    scheduler.open()
    for _ in range(3000):
        if list(await stored_workflows(url, database)) == ["running"]:
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("the steps were not deleted")
    await scheduler.aclose()
    assert len(made) == 1

    # Nothing is left over: the next start does not even open the engine.
    scheduler = LeasedRunScheduler(store, executor, NoWork(), SchedulerOptions(look_seconds=0.01), problems.append)
    scheduler.open()
    await asyncio.sleep(0.1)
    await scheduler.aclose()
    assert len(made) == 1
    await database.aclose()
    assert problems == []
