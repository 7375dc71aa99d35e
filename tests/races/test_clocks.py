"""Clocks that are set forward and back by an hour, or a leap second, on one node or on all (fault: K-M).

Who lives keeps what it has, who is dead loses it after a lease, and nothing runs twice. Nothing that waits asks what time
it is; what is told to people is in UTC, which knows no summer.
"""

import re
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import toolgate
from tests.approvals.builders import Clock, call, open_service
from tests.races.shifted import set_clock
from tests.runs.processes import WANTS, Server, calling, server, until
from toolgate.approvals import ApprovalLimits
from toolgate.conversation.errors import ToolgateError
from toolgate.storage.budget_reservations import BudgetReservationStore
from toolgate.storage.conversation_locks import ConversationLocks
from toolgate.storage.conversations import ConversationStore, StoredConversation
from toolgate.storage.database import Database
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.idempotency import (
    IdempotencyClaimGranted,
    IdempotencyClaimPending,
    IdempotencyStore,
    StoredIdempotentAnswer,
)
from toolgate.storage.retention import RetentionStore
from toolgate.storage.run_records import STALE_SECONDS, RunRecord, RunRecordStore
from toolgate.storage.runs import AbandonedRun, RunLeaseLost, RunStore
from toolgate.storage.streams import StreamStore

HOUR = 3600.0
JUMPS = [HOUR, -HOUR, 1.0, -1.0]
SOURCE = Path(toolgate.__file__).parent


class Node:
    """One that shares the time that passes with the other, and has a clock of its own on the wall."""

    def __init__(self, database: Database, passed: list[float]) -> None:
        self.database = database
        self.wrong = 0.0
        self._passed = passed

    def steady(self) -> float:
        return self._passed[0]

    def wall(self) -> float:
        return 1_800_000_000.0 + self._passed[0] + self.wrong


class Two:
    """Two nodes over one database, each with a connection of its own."""

    def __init__(self, url: str) -> None:
        self._passed = [0.0]
        self.here, self.there = [Node(Database(url), self._passed) for _ in range(2)]

    def wait(self, seconds: float) -> None:
        self._passed[0] += seconds

    def set(self, who: str, seconds: float) -> None:
        """Set the clock of the one who holds something, of the one who looks, or of both."""
        if who in ("holder", "both"):
            self.here.wrong += seconds
        if who in ("looker", "both"):
            self.there.wrong += seconds


@pytest.fixture
async def two(storage_url: str) -> AsyncIterator[Two]:
    nodes = Two(storage_url)
    yield nodes
    for node in (nodes.here, nodes.there):
        await node.database.aclose()


def jumping(test: Any) -> Any:
    """Once for every clock and every jump."""
    whose = pytest.mark.parametrize("whose", ["holder", "looker", "both"])
    return whose(pytest.mark.parametrize("jump", JUMPS)(test))


@jumping
async def test_a_run_stays_with_its_living_node_and_is_resumed_when_that_is_dead(
    two: Two, whose: str, jump: float
) -> None:
    """spec: D3; fault: K-M"""
    here, there = [
        RunStore(node.database, name, lease_seconds=6, clock=node.wall, steady=node.steady)
        for name, node in (("here", two.here), ("there", two.there))
    ]
    await two.here.database.change(here.opening("run", "ann", b"{}"))
    claim = await here.claim("run")
    assert claim is not None
    assert await there.take_abandoned() == []
    two.set(whose, jump)
    for _ in range(6):
        assert await there.take_abandoned() == []
        two.wait(2)
        assert [one.token for one in await here.renew(["run"])] == [claim.token]
    assert await there.take_abandoned() == []
    two.wait(5.9)
    assert await there.take_abandoned() == [], "its lease is not over"
    two.wait(0.2)
    assert await there.take_abandoned() == [AbandonedRun("run", True)]
    assert await there.claim("run") is not None
    with pytest.raises(RunLeaseLost):
        await here.check("run", claim.token)


@jumping
async def test_the_record_of_a_run_shows_it_as_running_until_its_node_is_dead(
    two: Two, whose: str, jump: float
) -> None:
    """fault: K-M"""
    here, there = [
        RunRecordStore(node.database, name, clock=node.wall, steady=node.steady)
        for name, node in (("here", two.here), ("there", two.there))
    ]
    record = RunRecord("run", "ann", "foreground", "running", "m", two.here.wall())
    await two.here.database.change(here.saving(record, []))
    assert await there.end_cut_off(()) == 0
    two.set(whose, jump)
    for _ in range(5):
        assert await there.end_cut_off(()) == 0
        two.wait(60)
        await here.beat(["run"])
    assert await there.end_cut_off(()) == 0
    two.wait(STALE_SECONDS)
    assert await there.end_cut_off(()) == 1


async def test_a_run_that_is_renewed_after_a_poll_is_not_taken(two: Two) -> None:
    """fault: K-M, M6: who looks may be put to sleep between looking and taking."""
    here = RunStore(two.here.database, "here", lease_seconds=6, clock=two.here.wall, steady=two.here.steady)
    there = RunStore(two.there.database, "there", lease_seconds=6, clock=two.there.wall, steady=two.there.steady)
    await two.here.database.change(here.opening("run", "ann", b"{}"))
    await here.claim("run")
    assert await there.take_abandoned() == []
    two.wait(7)
    looked = two.there.database.read

    async def and_sleep(work: Any) -> Any:
        found = await looked(work)
        await here.renew(["run"])
        return found

    two.there.database.read = and_sleep  # type: ignore[method-assign]  # the moment between the two
    assert await there.take_abandoned() == []


@jumping
async def test_a_conversation_stays_locked_by_the_node_that_answers_in_it(two: Two, whose: str, jump: float) -> None:
    """spec: D4; fault: K-M, M5"""
    here, there = [
        ConversationStore(
            node.database, ConversationLocks(node.database, lease_seconds=20, clock=node.wall, steady=node.steady)
        )
        for node in (two.here, two.there)
    ]
    await here.create(StoredConversation("c", "ann", 1, {}), [])
    assert await here.locks.acquire("c") is not None
    assert await there.locks.acquire("c") is None
    two.set(whose, jump)
    for _ in range(6):
        assert await there.locks.acquire("c") is None
        assert await there.locks.acquire("other") is not None
        two.wait(5)
        await here.locks.renew(["c"])
        await there.locks.renew(["other"])
    assert await here.append("ann", "c", [{"id": "answer"}])
    assert await there.locks.acquire("c") is not None, "it was given back with the answer"
    assert await here.locks.acquire("c") is None
    two.wait(20)
    assert await here.locks.acquire("c") is not None


@pytest.mark.parametrize("how", ["takes", "adds", "renews"])
async def test_a_conversation_of_a_dead_node_is_free_for_everybody(two: Two, how: str) -> None:
    """fault: K-M: whoever is the first to see it, and whatever it wants there."""
    locks = ConversationLocks(two.there.database, lease_seconds=20, clock=two.there.wall, steady=two.there.steady)
    store = ConversationStore(two.there.database, locks)
    await store.create(StoredConversation("c", "ann", 1, {}), [])
    await ConversationLocks(two.here.database, clock=two.here.wall, steady=two.here.steady).acquire("c")
    two.there.wrong = -HOUR
    for passed in (False, True):
        if how == "takes":
            assert (await locks.acquire("c") is not None) == passed
        elif how == "adds":
            assert await adds(store) == passed
        else:
            await locks.renew([])
            assert await is_locked(two.there.database) != passed
        two.wait(21)


async def adds(store: ConversationStore) -> bool:
    try:
        return await store.append("ann", "c", [{"id": "item"}])
    except ToolgateError:
        return False


async def is_locked(database: Database) -> bool:
    found = await database.read(lambda db: db.execute("SELECT count(*) FROM conversation_locks").fetchone())
    return bool(found[0])


@jumping
async def test_a_request_under_a_key_is_carried_out_once(two: Two, whose: str, jump: float) -> None:
    """spec: D4; fault: K-M, M2"""
    here, there = [
        IdempotencyStore(node.database, lease=30, clock=node.wall, steady=node.steady) for node in (two.here, two.there)
    ]
    assert await here.claim("ann", "k", b"d", "here", b"s") == IdempotencyClaimGranted()
    two.set(whose, jump)
    for _ in range(6):
        assert await there.claim("ann", "k", b"d", "there", b"s") == IdempotencyClaimPending()
        two.wait(10)
        assert await here.renew("ann", "k", "here")
    assert await there.claim("ann", "k", b"d", "there", b"s") == IdempotencyClaimPending()
    two.wait(31)
    assert await there.claim("ann", "k", b"d", "there", b"s") == IdempotencyClaimGranted(), "the other is dead"
    assert not await here.keep("ann", "k", "here", StoredIdempotentAnswer(200, [], b"late"), b"s")
    kept = StoredIdempotentAnswer(200, [], b"answer")
    assert await there.keep("ann", "k", "there", kept, b"s")
    two.set(whose, -jump)
    assert await here.claim("ann", "k", b"d", "again", b"s") == kept


async def test_nothing_is_forgotten_because_a_clock_was_set_forward(two: Two) -> None:
    """fault: K-M: a request under a key is carried out once, a call that has begun is known, and no record is deleted."""
    clocks: dict[str, Any] = {"clock": two.here.wall, "steady": two.here.steady}
    keys, turns = IdempotencyStore(two.here.database, **clocks), HiddenTurnStore(two.here.database, **clocks)
    retention, chats = RetentionStore(two.here.database, **clocks), ConversationStore(two.here.database)
    kept = StoredIdempotentAnswer(200, [], b"answer")
    assert await keys.claim("ann", "k", b"d", "here", b"s") == IdempotencyClaimGranted()
    assert await keys.keep("ann", "k", "here", kept, b"s")
    await turns.keep("ann", ["call"], [])
    streams = StreamStore(two.here.database, **clocks)
    await two.here.database.change(streams.opening("old", True))
    await two.here.database.change(streams.ending("old", 0, [b"data: 1\n\n"], whole=True))
    await chats.create(StoredConversation("c", "ann", int(two.here.wall()), {}), [])
    two.set("both", 60 * 24 * HOUR)
    for _ in range(65):  # old turns are deleted with every sixty-fourth that is stored
        await turns.keep("ann", ["other"], [])
    await two.here.database.change(streams.opening("new", True))
    assert (await retention.expire(), await retention.sweep("conversations", 30)) == (0, 0)
    assert await streams.all("old") == [b"data: 1\n\n"]
    assert await keys.claim("ann", "k", b"d", "again", b"s") == kept
    assert "call" in await turns.find("ann", ["call"])
    two.wait(8 * 24 * HOUR)
    assert await retention.sweep("conversations", 30) == 1, "the clock was meant to be set"
    assert await retention.expire() > 0


@jumping
async def test_what_runs_holds_back_of_a_budget_until_it_has_ended(two: Two, whose: str, jump: float) -> None:
    """fault: K-M, M4"""
    here, there = [
        BudgetReservationStore(node.database, lease=900, now=node.wall, steady=node.steady)
        for node in (two.here, two.there)
    ]
    assert (await here.reserve("one", "ann", "total", 1.0, 0.9, []))[0]
    two.set(whose, jump)
    assert not (await there.reserve("two", "ann", "total", 1.0, 0.9, []))[0]
    await here.settle([("one", "ann", ["total"], 0.05)])
    assert (await there.reserve("two", "ann", "total", 1.0, 0.9, []))[0]
    two.wait(901 + HOUR)
    assert (await here.reserve("three", "ann", "total", 1.0, 0.9, []))[0], "whoever held it back is dead"


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_call_that_has_begun_is_known_when_its_request_comes_again(two: Two, jump: float) -> None:
    """fault: K-M: the same request within the hour goes on, and runs nothing twice."""
    store = HiddenTurnStore(two.here.database, clock=two.here.wall, steady=two.here.steady)
    await store.keep("ann", ["k"], [])
    await store.start("ann", "k", "call_1")
    two.wait(60)
    two.here.wrong = jump
    assert (await store.find("ann", ["k"], within=HOUR))["k"].started == {"call_1"}
    two.wait(2 * HOUR)
    assert await store.find("ann", ["k"], within=HOUR) == {}


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_question_is_answered_once_or_expires_for_good(jump: float) -> None:
    """fault: K-M: its end is a time that people are told, so that a clock set forward may bring it early, and no consent."""
    clock = Clock()
    async with open_service(options=ApprovalLimits(expiry_seconds=2000), now=clock) as service:
        first = await service.decide(call())
        assert first.approval is not None
        clock.time += jump
        found = await service.find(first.approval, by="ann", any_caller=True)
        assert found.state == ("expired" if jump == HOUR else "pending")
        clock.time -= jump
        if jump != HOUR:
            assert (await service.answer(first.approval, True, by="bob", any_caller=True)).state == "approved"
            clock.time += jump
            assert (await service.decide(call())).stance == "allow"
        assert (await service.decide(call())).stance != "allow", "a consent is good once"


def test_nothing_that_waits_asks_for_the_time_of_day() -> None:
    """fault: K-M: timeouts, retries, breakers, windows of limits and leases are measured."""
    waiting = (
        "upstreams",
        "engine",
        "runs",
        "limits",
        "http",
        "workers",
        "tools/egress",
        "tools/workers",
    )
    found = [
        file.relative_to(SOURCE).as_posix()
        for folder in waiting
        for file in sorted((SOURCE / folder).rglob("*.py"))
        if re.search(r"\btime\.time\b|from time import .*\btime\b|datetime\.now", file.read_text())
    ]
    # A header names the time of day at which a limit resets, budgets are for days and months, records of requests have it.
    expected = ["limits/admission.py", "limits/local_budgets.py", "http/application.py"]
    assert found == expected, "all others are for a while"


def test_no_time_is_taken_or_reported_in_the_zone_of_the_machine() -> None:
    """fault: K-M: summer time changes nothing but what a command prints for its user."""
    naive = re.compile(r"datetime\.now\(\)|fromtimestamp\([^,()]*\)|utcnow|localtime|date\.today|datetime\.today")
    files = [
        file.relative_to(SOURCE).as_posix() for file in sorted(SOURCE.rglob("*.py")) if naive.search(file.read_text())
    ]
    assert files == ["cli/chat/slash_commands.py", "cli/times.py"]


@contextmanager
def shifted_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    """Two servers over one file, whose clocks can be set; the second has no tools of its own to run."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'src'}")
    monkeypatch.setattr("tests.runs.processes.PROGRAM", [sys.executable, "-m", "tests.races.shifted"])
    with ExitStack() as stack:
        made = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            settings: dict[str, Any] = {"runs": {"lease_seconds": 6, "look_seconds": 0.1}}
            made.append(stack.enter_context(server(folder / name, f"sqlite:///{folder}/t.db", **settings)))
        yield made


def test_servers_whose_clocks_jump_run_every_call_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault: K-M: a harmless call runs in the background, and a request under a key waits for a person's consent."""
    output = {"model": "m", "messages": [{"role": "user", "content": "Go."}], **WANTS}

    def ask(where: Server) -> httpx.Response:
        return httpx.post(
            f"{where.url}/v1/chat/completions", json=output, headers={"idempotency-key": "once"}, timeout=60
        )

    with shifted_servers(tmp_path, monkeypatch) as (one, two), ThreadPoolExecutor(2) as clients:
        one.play(calling("put"))
        two.play(calling("put"))
        one.hold("put")
        one.start()
        two.start()
        with one.client() as client:
            id = client.responses.create(model="m", input="Go.", background=True, extra_body=WANTS).id
        until(lambda: one.ran)
        one.play(calling("book"))
        two.play(calling("book"))
        first = clients.submit(ask, one)
        question = one.pending()
        for here, there in ((0.0, 1800.0), (0.0, -HOUR), (-HOUR, 1800.0), (1800.0, 1800.0), (1.0, 0.0)):
            set_clock(one.place, here)
            set_clock(two.place, there)
            renewed(tmp_path / "t.db", id, times=15)
        second = clients.submit(ask, two)
        two.answer(question, "approve")
        answers = [first.result(), second.result()]
        one.play(calling("put"))
        one.let_go("put")
        response = two.ended(id)
    assert [line.partition(":")[0] for line in one.ran + two.ran] == ["put", "book"]
    assert [(one.status_code, one.content) for one in answers] == [(200, answers[0].content)] * 2
    assert "Paris is booked" in answers[0].text
    assert response.output_text.endswith("Paris is put")
    assert token_of(tmp_path / "t.db", id) == 1, "nobody took it"


def renewed(path: Path, run: str, times: int) -> None:
    """Wait until the lease of a run was renewed so often, while the other looks as often whether it is."""
    with closing(sqlite3.connect(path)) as db:
        seen: set[float] = set()

        def look() -> bool:
            seen.update(row[0] for row in db.execute("SELECT lease FROM runs WHERE id = ?", (run,)))
            time.sleep(0.02)
            return len(seen) > times

        until(look)


def token_of(path: Path, run: str) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT token FROM runs WHERE id = ?", (run,)).fetchone()[0])
