"""Runs in DBOS: finished steps are replayed, and only the latest execution writes new ones."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from toolgate.app.runs import system_database
from toolgate.conversation.errors import GatewayOverloaded, InternalGatewayError
from toolgate.runs.dbos_executor import DbosExecutor
from toolgate.runs.executor import StepsLost
from toolgate.runs.step_records import DurableStepLog
from toolgate.storage.runs import RunLeaseLost

Work = Callable[[str, DurableStepLog], Awaitable[None]]


async def opened(storage_url: str, work: Work, node: str = "n") -> DbosExecutor:
    url = system_database(storage_url)
    assert url is not None
    executor = DbosExecutor(url, node, print)
    await executor.open(work)
    return executor


async def test_finished_steps_are_replayed_in_order_and_new_ones_follow(storage_url: str) -> None:
    """spec: D3"""
    seen: list[list[str]] = []
    done = asyncio.Event()

    async def work(id: str, steps: DurableStepLog) -> None:
        seen.append(list(steps.recorded))
        for number in range(2):
            await steps.keep("step", f"{len(seen)}.{number}")
        done.set()
        if len(seen) < 3:
            raise RuntimeError("the process ends here")

    executor = await opened(storage_url, work)
    await executor.resume("run")  # never begun: begun by that
    for attempt in range(3):
        await asyncio.wait_for(done.wait(), 30)
        done.clear()
        if attempt < 2:
            await executor.resume("run")
    await executor.aclose()
    assert seen == [[], ["1.0", "1.1"], ["1.0", "1.1", "2.0", "2.1"]]


async def test_concurrent_steps_are_all_stored(storage_url: str) -> None:
    seen: list[list[str]] = []
    done = asyncio.Event()

    async def work(id: str, steps: DurableStepLog) -> None:
        seen.append(list(steps.recorded))
        if len(seen) == 1:
            await asyncio.gather(*[steps.keep("step", str(number)) for number in range(8)])
        done.set()
        raise RuntimeError("the process ends here")

    executor = await opened(storage_url, work)
    await executor.begin("run")
    await asyncio.wait_for(done.wait(), 30)
    done.clear()
    await executor.resume("run")
    await asyncio.wait_for(done.wait(), 30)
    await executor.aclose()
    assert sorted(seen[1]) == [str(number) for number in range(8)]


async def test_an_execution_that_was_replaced_can_write_no_step(storage_url: str) -> None:
    """fault: M6"""
    begun, replaced = asyncio.Event(), asyncio.Event()
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    attempts: list[DurableStepLog] = []

    async def work(id: str, steps: DurableStepLog) -> None:
        attempts.append(steps)
        if len(attempts) > 1:
            replaced.set()
            return
        begun.set()
        await replaced.wait()
        try:
            await steps.keep("intent", "late")
        except RunLeaseLost:
            outcome.set_result("lost")
            raise
        outcome.set_result("written")

    executor = await opened(storage_url, work)
    await executor.begin("run")
    await begun.wait()
    await executor.resume("run")
    assert await asyncio.wait_for(outcome, 30) == "lost"
    await executor.aclose()
    assert list(attempts[1].recorded) == []


async def test_an_ended_run_is_not_executed_again_until_it_is_forgotten(tmp_path: Path) -> None:
    count, done = [0], asyncio.Event()

    async def work(id: str, steps: DurableStepLog) -> None:
        count[0] += 1
        await steps.keep("step", "1")
        done.set()

    executor = await opened(f"sqlite:///{tmp_path}/t.db", work)
    await executor.begin("run")
    await asyncio.wait_for(done.wait(), 30)
    await executor.begin("run")
    await executor.forget(["run"])
    await executor.begin("run")
    for _ in range(500):
        if count[0] == 2:
            break
        await asyncio.sleep(0.01)
    await executor.aclose()
    assert count == [2]


async def test_a_started_run_without_stored_steps_is_not_started_again(tmp_path: Path) -> None:
    """spec: D3: the file with the steps was lost, and nobody knows what was done."""
    begun: list[str] = []

    async def work(id: str, steps: DurableStepLog) -> None:
        begun.append(id)

    executor = await opened(f"sqlite:///{tmp_path}/t.db", work)
    with pytest.raises(StepsLost):
        await executor.resume("run", begun=True)
    await executor.aclose()
    assert begun == []


async def test_a_process_has_one_executor(tmp_path: Path) -> None:
    async def work(id: str, steps: DurableStepLog) -> None:
        """Nothing to do."""

    first = await opened(f"sqlite:///{tmp_path}/a.db", work)
    with pytest.raises(InternalGatewayError, match="process"):
        await opened(f"sqlite:///{tmp_path}/b.db", work)
    await first.aclose()
    second = await opened(f"sqlite:///{tmp_path}/b.db", work)
    await second.aclose()


def test_steps_are_stored_beside_the_storage_unless_that_is_memory() -> None:
    assert system_database("sqlite:///toolgate.db") == "sqlite:///toolgate-runs.db"
    assert system_database("sqlite:////var/lib/t.db") == "sqlite:////var/lib/t-runs.db"
    assert system_database("sqlite://") is None
    assert system_database("postgres://me@host/db") == "postgresql://me@host/db"


async def test_a_step_that_cannot_be_stored_is_reported_as_unavailable_storage(tmp_path: Path) -> None:
    """fault: K-I: not as a crash of ours."""
    raised: asyncio.Future[GatewayOverloaded] = asyncio.get_running_loop().create_future()

    async def work(id: str, steps: DurableStepLog) -> None:
        with closing(sqlite3.connect(tmp_path / "t-runs.db")) as db:
            db.execute("DROP TABLE operation_outputs")
        try:
            await steps.keep("step", "a")
        except GatewayOverloaded as error:
            raised.set_result(error)

    executor = await opened(f"sqlite:///{tmp_path}/t.db", work)
    await executor.begin("run")
    error = await asyncio.wait_for(raised, 30)
    await executor.aclose()
    assert error.message == "The storage is not available: a step could not be stored."
