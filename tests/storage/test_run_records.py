"""Runs are stored with their timelines, follow the state of background runs, and go in time (spec: E8, D1)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from toolgate.storage.database import Database
from toolgate.storage.keyset_page import TimeRange
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.retention import RetentionStore
from toolgate.storage.run_records import CUT_OFF, STALE_SECONDS, RunFilter, RunRecord, RunRecordStore
from toolgate.storage.runs import RunStore

NOW = 1_800_000_000.0


def run(number: int = 1, **fields: Any) -> RunRecord:
    usual: dict[str, Any] = {"owner": "ann", "kind": "foreground", "state": "running", "model": "m"}
    return RunRecord(id=f"run{number:04}", **{**usual, "created": NOW + number, **fields})


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


async def test_a_run_is_written_again_and_again_with_the_entries_that_changed(database: Database) -> None:
    store = RunRecordStore(database, "node")
    await database.change(store.saving(run(), [(0, "a"), (1, "b")]))
    ended = run(state="completed", ended=NOW + 9, steps=2, cost=0.5, tools='["clock"]')
    await database.change(store.saving(ended, [(1, "B"), (2, "c")]))
    assert await store.find("run0001", "ann") == ended
    assert await store.find("run0001", "bob") is None
    assert await store.entries("run0001") == ["a", "B", "c"]


async def test_a_background_run_has_the_state_of_its_run(database: Database) -> None:
    runs, store = RunStore(database, "node"), RunRecordStore(database)
    record = run(kind="background", state="queued")
    await database.change(lambda db: (runs.opening(record.id, "ann", b"{}")(db), store.opening(record)(db)))

    async def state() -> str:
        found = await store.find(record.id, None)
        assert found is not None
        return found.state

    assert await state() == "queued"
    claimed = await runs.claim(record.id)
    assert claimed is not None
    assert await state() == "running"
    await runs.set_waiting(record.id, claimed.token, True)
    assert await state() == "waiting"
    await database.change(store.saving(replace(record, state="running", steps=3), []))
    assert await state() == "waiting", "its own progress does not change its state"
    await runs.release(record.id, claimed.token)
    assert await state() == "queued"
    claimed = await runs.claim(record.id)
    assert claimed is not None
    await database.change(runs.ending(record.id, claimed.token, "failed"))
    found = await store.find(record.id, None)
    assert found is not None
    assert (found.state, found.steps, found.ended is not None, found.started is not None) == ("failed", 3, True, True)


async def test_runs_are_found_by_owner_state_model_and_time(database: Database) -> None:
    store = RunRecordStore(database)
    states = ("running", "completed", "failed")
    for number in range(12):
        one = run(number, owner=("ann", "bob")[number % 2], state=states[number % 3], model=("m", "n")[number // 6])
        await database.change(store.saving(one, []))

    async def found(**wanted: Any) -> list[int]:
        page = await store.page(RunFilter(**wanted), None, 50)
        assert page is not None
        return [int(one.id[3:]) for one in page.runs]

    assert await found() == list(range(11, -1, -1))
    assert await found(owner="ann") == [10, 8, 6, 4, 2, 0]
    assert await found(state="failed", owner="ann") == [8, 2]
    assert await found(model="n", state="running", owner="bob") == [9]
    assert await found(times=TimeRange(NOW + 3, NOW + 5)) == [5, 4, 3]
    first = await store.page(RunFilter(owner="ann", state="running"), None, 1)
    assert first is not None
    assert (len(first.runs), first.last) == (1, "run0006")
    second = await store.page(RunFilter(owner="ann", state="running"), first.last, 1)
    assert second is not None
    assert [one.id for one in second.runs] == ["run0000"]
    assert await store.page(RunFilter(owner="bob"), "run0000", 5) is None


async def test_a_next_page_begins_behind_a_run_of_the_same_owner_though_another_index_has_fewer_rows(
    database: Database,
) -> None:
    store = RunRecordStore(database)
    rare = [run(number, owner="bob", model="rare") for number in range(1, 60)]
    own = [run(0, model="rare"), *[run(100 + number) for number in range(1000)]]
    await database.change(lambda db: [store.opening(one)(db) for one in (*rare, *own)])
    found: list[RunRecord] = []
    after = None
    while (page := await store.page(RunFilter("ann", model="rare"), after, 5, rows=50)) is not None:
        found += page.runs
        if page.last is None:
            break
        after = page.last
        assert await store.find(after, "ann") is not None
    assert found == own[:1]


async def test_foreground_runs_of_dead_nodes_are_ended_and_those_of_living_ones_are_not(database: Database) -> None:
    clock = NOW
    nodes = {name: RunRecordStore(database, name, clock=lambda: clock) for name in ("dead", "silent", "alive", "own")}
    for number, store in enumerate(nodes.values()):
        await database.change(store.saving(run(number), []))
    own = RunRecordStore(database, "own", is_gone=lambda node: node == "dead", steady=lambda: clock)
    assert await own.end_cut_off(()) == 1, "which nodes are silent is not known yet"
    clock += STALE_SECONDS + 1
    assert await nodes["alive"].beat(["run0002"]) == []
    assert await own.end_cut_off(()) == 1
    found = [await own.find(f"run{number:04}", None) for number in range(4)]
    assert [one.state for one in found if one] == ["failed", "failed", "running", "running"]
    assert found[0] is not None
    assert (found[0].error, found[0].ended) == (CUT_OFF, NOW)


async def test_a_run_that_another_node_makes_is_marked_to_be_cancelled(database: Database) -> None:
    here, there = RunRecordStore(database, "here"), RunRecordStore(database, "there")
    await database.change(there.saving(run(), []))
    assert await here.cancel("run0001")
    assert await there.beat(["run0001", "nothing"]) == ["run0001"]
    await database.change(there.saving(run(state="cancelled"), []))
    assert not await here.cancel("run0001")


async def test_the_request_of_a_run_goes_with_its_response(database: Database) -> None:
    store, responses = RunRecordStore(database), ResponseStore(database)
    for number in (1, 2):
        response = StoredResponse(f"resp{number}", "ann", None, 7, [], {"id": f"resp{number}", "output": []})
        await responses.save(response, store.keeping_request(response.id, "ann", b"{}"))
        await database.change(store.saving(run(number, response=response.id), []))
    assert await store.request("resp1", "ann") == b"{}"
    assert await store.request("resp1", "bob") is None
    await responses.delete("ann", "resp1")
    await RetentionStore(database).sweep("responses", 1)
    for number in (1, 2):
        assert await store.request(f"resp{number}", "ann") is None
        found = await store.find(f"run{number:04}", "ann")
        assert found is not None
        assert found.response is None


async def test_a_response_that_was_deleted_before_its_run_was_written_is_not_linked(database: Database) -> None:
    store = RunRecordStore(database)
    await database.change(store.saving(run(response="resp_gone"), []))
    found = await store.find("run0001", "ann")
    assert found is not None
    assert found.response is None


async def test_ended_runs_go_after_their_days_and_all_of_an_owner_when_forgotten(database: Database) -> None:
    store = RunRecordStore(database)
    for number, (owner, ended) in enumerate((("ann", NOW), ("ann", None), ("bob", NOW))):
        await database.change(store.saving(run(number, owner=owner, ended=ended), [(0, "a")]))
    job = RetentionStore(database, clock=lambda: NOW + 40 * 86_400)
    assert await job.sweep("runs", 30) == 2
    assert await store.entries("run0000") == []
    assert await store.find("run0001", None) is not None
    assert await job.forget("ann") == {"run_records": 1, "run_entries": 1}
