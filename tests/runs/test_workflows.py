"""Runs in DBOS: steps that are finished come back, and nobody but the last holder writes any."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from toolgate.conversation.errors import GatewayFault, Overloaded
from toolgate.runs.execution import StepsLost
from toolgate.runs.steps import Steps
from toolgate.runs.workflows import Workflows
from toolgate.server.runs import system_database
from toolgate.storage.runs import LeaseLost

Work = Callable[[str, Steps], Awaitable[None]]


async def opened(storage_url: str, work: Work, node: str = "n") -> Workflows:
    url = system_database(storage_url)
    assert url is not None
    workflows = Workflows(url, node, print)
    await workflows.open(work)
    return workflows


async def test_finished_steps_come_back_in_their_order_and_new_ones_follow(storage_url: str) -> None:
    """requirement D3"""
    seen: list[list[str]] = []
    done = asyncio.Event()

    async def work(id: str, steps: Steps) -> None:
        seen.append(list(steps.recorded))
        for number in range(2):
            await steps.keep("step", f"{len(seen)}.{number}")
        done.set()
        if len(seen) < 3:
            raise RuntimeError("the process ends here")

    workflows = await opened(storage_url, work)
    await workflows.resume("run")  # never begun: begun by that
    for attempt in range(3):
        await asyncio.wait_for(done.wait(), 10)
        done.clear()
        if attempt < 2:
            await workflows.resume("run")
    await workflows.aclose()
    assert seen == [[], ["1.0", "1.1"], ["1.0", "1.1", "2.0", "2.1"]]


async def test_steps_side_by_side_are_all_kept(storage_url: str) -> None:
    seen: list[list[str]] = []
    done = asyncio.Event()

    async def work(id: str, steps: Steps) -> None:
        seen.append(list(steps.recorded))
        if len(seen) == 1:
            await asyncio.gather(*[steps.keep("step", str(number)) for number in range(8)])
        done.set()
        raise RuntimeError("the process ends here")

    workflows = await opened(storage_url, work)
    await workflows.begin("run")
    await asyncio.wait_for(done.wait(), 10)
    done.clear()
    await workflows.resume("run")
    await asyncio.wait_for(done.wait(), 10)
    await workflows.aclose()
    assert sorted(seen[1]) == [str(number) for number in range(8)]


async def test_who_was_replaced_can_write_no_step(storage_url: str) -> None:
    """fault: M6"""
    begun, replaced = asyncio.Event(), asyncio.Event()
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    attempts: list[Steps] = []

    async def work(id: str, steps: Steps) -> None:
        attempts.append(steps)
        if len(attempts) > 1:
            replaced.set()
            return
        begun.set()
        await replaced.wait()
        try:
            await steps.keep("intent", "late")
        except LeaseLost:
            outcome.set_result("lost")
            raise
        outcome.set_result("written")

    workflows = await opened(storage_url, work)
    await workflows.begin("run")
    await begun.wait()
    await workflows.resume("run")
    assert await asyncio.wait_for(outcome, 10) == "lost"
    await workflows.aclose()
    assert list(attempts[1].recorded) == []


async def test_a_run_that_has_ended_is_not_carried_out_again_and_can_be_forgotten(tmp_path: Path) -> None:
    count, done = [0], asyncio.Event()

    async def work(id: str, steps: Steps) -> None:
        count[0] += 1
        await steps.keep("step", "1")
        done.set()

    workflows = await opened(f"sqlite:///{tmp_path}/t.db", work)
    await workflows.begin("run")
    await asyncio.wait_for(done.wait(), 10)
    await workflows.begin("run")
    await workflows.forget(["run"])
    await workflows.begin("run")
    for _ in range(500):
        if count[0] == 2:
            break
        await asyncio.sleep(0.01)
    await workflows.aclose()
    assert count == [2]


async def test_a_run_that_was_begun_and_is_not_known_is_not_begun_anew(tmp_path: Path) -> None:
    """requirement D3: the file with the steps was lost, and nobody knows what was done."""
    begun: list[str] = []

    async def work(id: str, steps: Steps) -> None:
        begun.append(id)

    workflows = await opened(f"sqlite:///{tmp_path}/t.db", work)
    with pytest.raises(StepsLost):
        await workflows.resume("run", begun=True)
    await workflows.aclose()
    assert begun == []


async def test_one_process_has_one_engine(tmp_path: Path) -> None:
    async def work(id: str, steps: Steps) -> None:
        """Nothing to do."""

    first = await opened(f"sqlite:///{tmp_path}/a.db", work)
    with pytest.raises(GatewayFault, match="process"):
        await opened(f"sqlite:///{tmp_path}/b.db", work)
    await first.aclose()
    second = await opened(f"sqlite:///{tmp_path}/b.db", work)
    await second.aclose()


def test_the_steps_lie_beside_the_storage_and_nowhere_if_that_is_memory() -> None:
    assert system_database("sqlite:///toolgate.db") == "sqlite:///toolgate-runs.db"
    assert system_database("sqlite:////var/lib/t.db") == "sqlite:////var/lib/t-runs.db"
    assert system_database("sqlite://") is None
    assert system_database("postgres://me@host/db") == "postgresql://me@host/db"


async def test_a_step_that_cannot_be_kept_is_told_as_storage_that_is_away(tmp_path: Path) -> None:
    """fault: K-I: not as a crash of ours."""
    raised: asyncio.Future[Overloaded] = asyncio.get_running_loop().create_future()

    async def work(id: str, steps: Steps) -> None:
        with closing(sqlite3.connect(tmp_path / "t-runs.db")) as db:
            db.execute("DROP TABLE operation_outputs")
        try:
            await steps.keep("step", "a")
        except Overloaded as error:
            raised.set_result(error)

    workflows = await opened(f"sqlite:///{tmp_path}/t.db", work)
    await workflows.begin("run")
    error = await asyncio.wait_for(raised, 10)
    await workflows.aclose()
    assert error.message == "The storage is not available: a step could not be kept."
