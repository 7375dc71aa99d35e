"""Kept approvals: one winner however many answer at once, and no way from state to state but those there are."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from toolgate.approvals.record import Approval, StandingApproval
from toolgate.storage.approvals import ApprovalStore, Order
from toolgate.storage.database import Database

NOW = 1000.0


def question(id: str = "mcpr_1", **changes: Any) -> Approval:
    fields: dict[str, Any] = {
        "id": id,
        "caller": "ann",
        "session": "s",
        "run": "r",
        "call": "c",
        "tool": "t",
        "source": "python",
        "origin": None,
        "arguments": "{}",
        "digest": f"digest of {id}",
        "spec": "spec",
        "policy": "policy",
        "why": "because",
        "created": NOW,
        "expires": NOW + 100,
        "tainted": True,
    }
    return Approval(**(fields | changes))


def grant(id: str = "grant_1", **changes: Any) -> StandingApproval:
    fields: dict[str, Any] = {"caller": "ann", "tool": "t", "source": "python", "spec": "spec", "level": "always"}
    return StandingApproval(**{"id": id, **fields, "place": "", "granted_by": "ann", "created": NOW, **changes})


def approved(asked: Approval, by: str = "ann") -> Approval:
    return replace(asked, state="approved", answered_by=by, answered=NOW, level="once")


def open_store(url: str) -> tuple[Database, ApprovalStore[Approval, StandingApproval]]:
    database = Database(url)
    return database, ApprovalStore(database, Approval, StandingApproval)


async def opened_store(url: str) -> tuple[Database, ApprovalStore[Approval, StandingApproval]]:
    """One that has made its tables: two that do so at the same moment are not what is tested here."""
    database, store = open_store(url)
    await store.find("none", NOW)
    return database, store


async def test_a_record_comes_back_as_it_was_given(storage_url: str) -> None:
    database, store = open_store(storage_url)
    asked = question(origin="o", title="null", question="true", message="1", arguments='{"a":"\u202e"}')
    assert await store.claim(asked, 9, NOW) == asked
    given = replace(approved(asked), reason="null", edited="{}", edited_digest="d", expires=NOW + 7)
    assert await store.answer(given, grant(place="null"), NOW)
    await database.aclose()
    database, store = open_store(storage_url)
    assert await store.find("mcpr_1", NOW) == given
    assert await store.grants() == [grant(place="null")]
    await database.aclose()


@pytest.mark.parametrize("stores", [1, 2])
async def test_of_many_answers_at_once_exactly_one_wins(storage_url: str, stores: int) -> None:
    """Over one database object and over several (fault: M1)."""
    opened = [await opened_store(storage_url) for _ in range(stores)]
    for number in range(20):
        asked = question(f"mcpr_{number}", digest=f"d{number}")
        await opened[0][1].claim(asked, 999, NOW)
        answers = [
            store.answer(
                replace(asked, state=("approved", "denied")[(turn + number) % 2], answered_by=f"{at}/{turn}"),
                None if (turn + number) % 2 else grant(f"grant_{number}_{at}_{turn}"),
                NOW,
            )
            for turn in range(25)
            for at, (_, store) in enumerate(opened)
        ]
        won = await asyncio.gather(*answers)
        assert sum(won) == 1
        kept = await opened[-1][1].find(asked.id, NOW)
        assert kept is not None
        turn = won.index(True)
        assert kept.answered_by == f"{turn % stores}/{turn // stores}"
        given = [one for one in await opened[0][1].grants() if one.id.startswith(f"grant_{number}_")]
        assert len(given) == (kept.state == "approved"), "the loser's grant is kept, or the winner's is not"
        uses = await asyncio.gather(*[store.use(f"d{number}", NOW) for _, store in opened * 10])
        assert len([use for use in uses if use is not None]) == (kept.state == "approved")
    for database, _ in opened:
        await database.aclose()


ANSWER_ALL = """
import asyncio, sys
from tests.storage.test_approvals import NOW, approved, open_store, question
async def main():
    database, store = open_store(sys.argv[1])
    await store.find("x", NOW)
    print("ready", flush=True)
    sys.stdin.readline()
    ids = [f"mcpr_{number}" for number in range(40)]
    won = [id for id in ids if await store.answer(approved(question(id), sys.argv[2]), None, NOW)]
    await database.aclose()
    print(" ".join(won))
asyncio.run(main())
"""


async def test_of_two_processes_that_answer_one_wins(storage_url: str) -> None:
    """(fault: M1)"""
    database, store = open_store(storage_url)
    for number in range(40):
        await store.claim(question(f"mcpr_{number}"), 99, NOW)
    won = await asyncio.to_thread(_race, storage_url)
    assert sorted(won["one"] + won["two"]) == sorted(f"mcpr_{number}" for number in range(40))
    kept = {one.id: one.answered_by for one in await store.approvals(NOW)}
    assert kept == {id: name for name, ids in won.items() for id in ids}
    await database.aclose()


def _race(url: str) -> dict[str, list[str]]:
    """The ids that each of two processes says it answered, both let loose at once."""
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    names = ("one", "two")
    racers = [subprocess.Popen([sys.executable, "-c", ANSWER_ALL, url, name], **pipe) for name in names]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    return {name: racer.communicate("go\n", timeout=60)[0].split() for name, racer in zip(names, racers, strict=True)}


async def test_of_many_identical_questions_at_once_one_is_kept(storage_url: str) -> None:
    opened = [await opened_store(storage_url) for _ in range(2)]
    asked = [question(f"mcpr_{number}", digest="same", run=f"r{number}") for number in range(40)]
    settled = await asyncio.gather(*[opened[n % 2][1].claim(one, 9, NOW) for n, one in enumerate(asked)])
    assert len({one.id for one in settled if one is not None}) == 1
    assert len(await opened[0][1].approvals(NOW)) == 1
    for database, _ in opened:
        await database.aclose()


async def test_lists_are_newest_first_and_by_caller_and_state(storage_url: str) -> None:
    database, store = open_store(storage_url)
    for number, caller in enumerate(("ann", "bob", "ann")):
        await store.claim(question(f"mcpr_{number}", caller=caller, created=NOW + number), 9, NOW)
    assert await store.void("mcpr_0")
    assert not await store.void("mcpr_0")
    assert [one.id for one in await store.approvals(NOW)] == ["mcpr_2", "mcpr_1", "mcpr_0"]
    assert [one.id for one in await store.approvals(NOW, caller="ann")] == ["mcpr_2", "mcpr_0"]
    assert [one.id for one in await store.approvals(NOW, state="pending", limit=1)] == ["mcpr_2"]
    await database.aclose()


@pytest.mark.parametrize("order", ["asc", "desc", "fair"])
async def test_pages_follow_each_other_in_both_directions(storage_url: str, order: Order) -> None:
    database, store = open_store(storage_url)
    for number in range(7):
        caller = "bob" if number == 6 else "ann"
        await store.claim(question(f"mcpr_{number}", caller=caller, created=NOW + number // 2), 9, NOW)

    async def page(limit: int, after: str | None = None, before: str | None = None) -> list[str]:
        found = await store.page(
            NOW, filters={"state": "pending"}, order=order, after=after, before=before, limit=limit
        )
        assert found is not None
        return [one.id for one in found]

    everything = await page(100)
    if order == "fair":
        assert everything == [f"mcpr_{number}" for number in (0, 6, 1, 2, 3, 4, 5)]
    else:
        assert everything == sorted(everything, reverse=order == "desc")
    for size in (1, 2, 3):
        forward = await page(size)
        while more := await page(size, after=forward[-1]):
            forward += more
        backward = everything[-1:]
        while more := await page(size, before=backward[0]):
            backward = [*more, *backward]
        assert forward == backward == everything
    filters = {"caller": "bob"}
    assert await store.page(NOW, filters=filters, order=order, after="mcpr_0", before=None, limit=9) is None
    await database.aclose()


async def test_consent_that_a_call_used_up_is_found_among_any_number_of_others(storage_url: str) -> None:
    database, store = open_store(storage_url)
    for id, run in (("mcpr_1", "r"), ("mcpr_2", "other")):
        asked = question(id, run=run, digest="same")
        await store.claim(asked, 9, NOW)
        await store.answer(approved(asked), None, NOW)
        assert await store.use("same", NOW) is not None
    found = await store.used("ann", "r", "c", "same")
    assert found is not None
    assert found.id == "mcpr_1"
    assert await store.used("ann", "r", "another", "same") is None
    assert await store.used("bob", "r", "c", "same") is None
    await database.aclose()


def bytes_read() -> int:
    """How much this process has read from files, cached by the kernel or not."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])  # type: ignore[index]  # it is there


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs the counters of Linux")
async def test_only_the_approvals_of_a_page_are_read(tmp_path: Path) -> None:
    """One caller's list of 5,000 with long arguments read all of them, and others waited for the database for seconds."""
    database, store = await opened_store(f"sqlite:///{tmp_path / 'toolgate.db'}")
    long = '{"text":"' + "x" * 200_000 + '"}'
    for number in range(100):
        await store.claim(question(f"mcpr_{number}", arguments=long), 1000, NOW)
    narrowed: list[dict[str, str]] = [
        {"caller": "ann"},
        {"caller": "ann", "state": "pending"},
        {"caller": "ann", "tool": "t", "run": "r"},
        {"state": "pending"},
        {},
    ]
    for filters in narrowed:
        for order in get_args(Order):
            before = bytes_read()
            await store.page(NOW, filters=filters, order=order, after=None, before=None, limit=2)
            assert bytes_read() - before < 5_000_000, (filters, order)
    before = bytes_read()
    await store.claim(question("mcpr_new"), 1000, NOW)
    assert bytes_read() - before < 5_000_000
    await database.aclose()


async def test_the_same_grant_is_stored_once(storage_url: str) -> None:
    """A request that demands to be asked can be granted the same again and again, and each time was a row."""
    database, store = open_store(storage_url)
    for number in range(3):
        asked = question(f"mcpr_{number}")
        await store.claim(asked, 20, NOW)
        assert await store.answer(approved(asked), grant(f"grant_{number}"), NOW)
    assert [one.id for one in await store.grants()] == ["grant_2"]
    await database.aclose()
