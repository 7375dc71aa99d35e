"""Timelines show what runs did, across attempts and nodes, and cost nothing that grows without bound (spec: E8, D3)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.growth import is_linear
from tests.tools.execution.toolwork import soon
from toolgate.api.runs.run_object import timeline_object
from toolgate.change_notifications.notifier import LocalChangeNotifier
from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, Text, ToolCall, ToolResult
from toolgate.runs import timeline_recorder as timelines
from toolgate.runs.timeline_recorder import (
    RunTimeline,
    RunTimelines,
    TimelineCallEntry,
    TimelineEntry,
    TimelineStepEntry,
    decode_entries,
)
from toolgate.storage.database import Database
from toolgate.storage.responses import Write
from toolgate.storage.run_records import CUT_OFF, RunRecord, RunRecordStore


def call(number: int = 1) -> ToolCall:
    return ToolCall(f"call_{number}", "look_up", "{}", executor="gateway")


RAN = TimelineCallEntry(1, "call_1", "look_up", 2.0, tool_started=2.1)
WAITED = TimelineCallEntry(1, "call_1", "look_up", 2.0, outcome="waiting", approval="mcpr_1")
"""What the timeline of a server has that is killed: a call whose tool runs, and one that waits for a person."""

HISTORY = (
    Message("assistant", (Text("Well."), call(1), call(2))),
    Message("tool", (ToolResult("call_1", (Text("found"),), False, "look_up"),)),
)


def record(**fields: Any) -> RunRecord:
    usual: dict[str, Any] = {"owner": "ann", "kind": "background", "state": "running", "model": "m", "created": 1.0}
    return RunRecord("run", **{**usual, **fields})


def timeline(*entries: TimelineEntry, **fields: Any) -> RunTimeline:
    return RunTimeline(record(**fields), entries, lambda: 7.0, lambda timeline: None)


def outcomes(run: RunTimeline) -> list[tuple[Any, ...]]:
    return [(one.step, one.call if isinstance(one, TimelineCallEntry) else None, one.outcome) for one in run.entries]


def test_steps_and_calls_are_recorded_in_their_order() -> None:
    run = timeline()
    run.step_started(["look_up"])
    run.step_ended(Usage(10, 5), calls=True)
    run.call_started(call())
    run.call_ended("call_1", "denied", "python")
    run.call_ended("call_1", "failed")
    run.call_started(call(2))
    run.tool_started("call_2")
    run.call_ended("call_2", "completed")
    run.step_started(["look_up"])
    run.step_ended(Usage(20, 6), calls=False)
    ended = [(1, "call_1", "denied"), (1, "call_2", "completed")]
    assert outcomes(run) == [(1, None, "tool_calls"), *ended, (2, None, "answer")]
    assert [one.offered for one in run.entries if isinstance(one, TimelineStepEntry)] == [("look_up",), None]
    now = run.record()
    assert (now.steps, now.calls, now.tools, now.input_tokens, now.output_tokens) == (2, 1, '["look_up"]', 30, 11)


def test_what_a_dead_process_had_open_is_cut_off_and_its_step_is_made_again() -> None:
    run = timeline(TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), replace(RAN), TimelineStepEntry(2, 3.0))
    assert outcomes(run) == [(1, None, "tool_calls"), (1, "call_1", "unknown"), (2, None, "failed")]
    assert run.entries[2].ended is None
    run.step_started([])
    assert outcomes(run)[-1] == (2, None, "running")


@pytest.mark.parametrize("entry", [WAITED, TimelineCallEntry(1, "call_1", "look_up", 2.0)])
def test_a_call_whose_tool_was_not_started_goes_on_in_its_entry(entry: TimelineCallEntry) -> None:
    run = timeline(TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), replace(entry))
    run.call_started(call())
    run.tool_started("call_1")
    assert (outcomes(run)[1:], run.state) == ([(1, "call_1", "running")], "running")
    run.call_ended("call_1", "completed")
    assert (outcomes(run)[1:], run.record().calls) == ([(1, "call_1", "completed")], 1)


@pytest.mark.parametrize("entry", [WAITED, RAN])
@pytest.mark.parametrize("resumed", [True, False])
def test_a_call_that_waits_when_the_run_ends_was_cancelled(entry: TimelineCallEntry, resumed: bool) -> None:
    """Whether or not a server has written the end of the run."""
    run = timeline(replace(entry))
    if resumed:
        run.end("failed", "No such model.", None, 0.0)
    shown = timeline_object(record(state="failed"), run.entries if resumed else [entry])
    assert shown[0]["outcome"] == ("cancelled" if entry is WAITED else "unknown")


def test_a_call_that_is_run_again_has_an_entry_of_its_own() -> None:
    run = timeline(TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), replace(RAN), calls=1)
    run.call_started(call())
    run.tool_started("call_1")
    run.call_ended("call_1", "completed")
    assert outcomes(run)[1:] == [(1, "call_1", "unknown"), (1, "call_1", "completed")]
    assert (run.record().calls, run.entries[1].ended) == (2, None)


def test_the_question_whether_to_run_a_call_again_has_an_entry_of_its_own() -> None:
    run = timeline(TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), replace(RAN), calls=1)
    run.call_waiting("call_1", "mcpr_1")
    unknown = (1, "call_1", "unknown")
    assert (outcomes(run)[1:], run.state) == ([unknown, (1, "call_1", "waiting")], "waiting")
    run.call_decided("call_1")
    run.call_started(call())
    run.tool_started("call_1")
    run.call_ended("call_1", "completed")
    assert (outcomes(run)[1:], run.state) == ([unknown, (1, "call_1", "completed")], "running")


@pytest.mark.parametrize("stored", [(), (WAITED,), (RAN,)])
def test_a_call_that_is_not_run_again_has_no_second_entry_and_no_end(stored: tuple[TimelineCallEntry, ...]) -> None:
    """Also where its start was stored for the run, and not yet in the timeline."""
    run = timeline(*[replace(entry) for entry in stored], calls=sum(entry is RAN for entry in stored))
    run.reconcile(HISTORY[:1], {"call_1"})
    run.call_refused(call(), "unknown")
    entry = next(one for one in run.entries if isinstance(one, TimelineCallEntry))
    assert (entry.call, entry.outcome, entry.ended) == ("call_1", "unknown", None)
    assert (len([one for one in run.entries if isinstance(one, TimelineCallEntry)]), run.record().calls) == (1, 1)


@pytest.mark.parametrize(
    "stored",
    [
        (),
        (TimelineStepEntry(1, 1.0),),
        (TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), TimelineCallEntry(1, "call_1", "look_up", 2.0)),
        (TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), RAN),
        (TimelineStepEntry(1, 1.0, 2.0, "tool_calls"), WAITED),
    ],
)
def test_what_was_finished_but_not_written_in_time_is_added(stored: tuple[TimelineEntry, ...]) -> None:
    run = timeline(*[replace(entry) for entry in stored], calls=int(RAN in stored))
    run.reconcile(HISTORY)
    assert outcomes(run) == [(1, None, "tool_calls"), (1, "call_1", "completed")]
    assert run.record().calls == 1
    run.step_started([])
    assert outcomes(run)[-1] == (2, None, "running")


def test_what_was_finished_is_added_in_time_that_grows_with_the_number_of_calls() -> None:
    def seconds(count: int) -> float:
        calls = tuple([call(number) for number in range(count)])
        results = tuple([ToolResult(f"call_{number}", (Text("ok"),)) for number in range(count)])
        run, before = timeline(), time.thread_time()
        run.reconcile([Message("assistant", calls), Message("tool", results)])
        return time.thread_time() - before

    assert is_linear(seconds, 475)


def test_the_steps_of_a_fork_are_counted_after_the_copied_ones() -> None:
    copied = (
        TimelineStepEntry(1, 1.0, 2.0, "tool_calls", copied=True),
        TimelineStepEntry(2, 1.0, 2.0, "tool_calls", copied=True),
    )
    run = timeline(*copied, TimelineStepEntry(3, 4.0), forked_run="other", forked_step=2)
    run.reconcile(HISTORY)
    assert outcomes(run)[2:] == [(3, None, "tool_calls"), (3, "call_1", "completed")]
    run.step_started([])
    assert outcomes(run)[-1] == (4, None, "running")


def test_a_timeline_is_bounded_and_the_run_is_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MOST_ENTRIES", 5)
    run = timeline()
    for number in range(9):
        run.step_started([])
        run.step_ended(None, calls=True)
        run.call_started(call(number))
        run.tool_started(f"call_{number}")
        run.call_ended(f"call_{number}", "completed")
    assert (len(run.entries), run.record().steps, run.record().calls) == (5, 9, 9)


@pytest.fixture
async def database(storage_url: str) -> AsyncIterator[Database]:
    database = Database(storage_url)
    yield database
    await database.aclose()


class Node:
    """The timelines of one node, whose writes are made one after the other."""

    def __init__(
        self, database: Database, notifier: LocalChangeNotifier, name: str, is_gone: Callable[[str], bool]
    ) -> None:
        self.cancelled: list[str] = []
        self._database = database
        self._writing: set[asyncio.Task[None]] = set()
        store = RunRecordStore(database, name, is_gone=is_gone)
        self.timelines = RunTimelines(store, self._put, notifier, self._cancel)
        self._has: set[str] = set()

    def begin(self, id: str) -> RunTimeline:
        self._has.add(id)
        return self.timelines.begin(id, "ann", "m")

    def _cancel(self, run: str) -> bool:
        if run in self._has:
            self.cancelled.append(run)
        return run in self._has

    def _put(
        self,
        owner: str,
        kind: str,
        write: Write,
        size: int = 0,
        records: int = 1,
        written: Callable[[], None] | None = None,
    ) -> None:
        async def run() -> None:
            await self._database.change(write)
            if written is not None:
                written()

        task = asyncio.get_running_loop().create_task(run())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def written(self) -> None:
        self.timelines.flush()
        await asyncio.gather(*self._writing)


async def test_a_run_is_cancelled_on_the_node_that_makes_it(database: Database) -> None:
    notifier = LocalChangeNotifier()
    here, there = [Node(database, notifier, name, lambda node: False) for name in ("here", "there")]
    there.timelines.open()
    there.begin("run")
    await there.written()
    await here.timelines.cancel("run")
    await soon(lambda: there.cancelled == ["run"])
    await there.timelines.cancel("run")
    assert (there.cancelled, here.cancelled) == (["run"] * 2, [])
    await there.timelines.aclose()
    await there.written()


async def test_a_run_of_a_dead_node_is_ended_by_one_that_always_has_runs(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timelines, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(timelines, "_BEAT_SECONDS", 0.05)
    looks: list[str] = []

    def is_gone(node: str) -> bool:
        looks.append(node)
        return len(looks) > 1  # it dies while the other looks after its own run

    dead, busy = [Node(database, LocalChangeNotifier(), name, is_gone) for name in ("dead", "busy")]
    dead.begin("run").step_started([])
    busy.begin("other").step_started([])
    await dead.written()
    await busy.written()
    busy.timelines.open()

    async def ended() -> RunRecord | None:
        found = await busy.timelines.store.find("run", "ann")
        return found if found is not None and found.is_over else None

    assert (await soon(ended)).error == CUT_OFF
    await busy.timelines.aclose()
    await busy.written()


async def test_a_run_of_a_dead_node_is_ended_at_the_start_of_another(database: Database) -> None:
    notifier = LocalChangeNotifier()
    dead, alive = [Node(database, notifier, name, lambda node: node == "dead") for name in ("dead", "alive")]
    dead.begin("run").step_started([])
    await dead.written()
    alive.timelines.open()

    async def ended() -> RunRecord | None:
        found = await alive.timelines.store.find("run", "ann")
        return found if found is not None and found.is_over else None

    found = await soon(ended)
    assert (found.state, found.error) == ("failed", CUT_OFF)
    await alive.timelines.aclose()
    again = await alive.timelines.resume("run", "ann", "m")
    assert outcomes(again) == [(1, None, "failed")], "the same request continues its timeline"
    await alive.written()
    stored = decode_entries(await alive.timelines.store.entries("run"))
    assert [one.outcome for one in stored] == ["failed"]
