"""One budget, long answers on two processes, some broken off: passed by one request at most (spec: E5; fault: M4)."""

import asyncio
import random
from typing import Any

import pytest

from tests.races.pair import CHAT, Pair, output
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.storage.database import Database

BUDGET, COST, TOKENS = 1.0, 0.1, 100_000
DEAR = ModelResponse((Text("A long answer, and a dear one."),), "stop", Usage(0, TOKENS))


class Gate:
    """Answers stop after their beginning until it is open; the model looks at it from a loop of its own."""

    def __init__(self) -> None:
        self.is_open = False

    async def wait(self) -> None:
        while not self.is_open:  # noqa: ASYNC110 - an event belongs to one loop
            await asyncio.sleep(0.01)


def dear(request: ModelRequest) -> ModelResponse:
    """A model that makes many words."""
    return DEAR


async def book(pair: Pair, key: str) -> tuple[float, int]:
    """What a key has spent, and how many holds it has."""
    database = Database(pair.storage)
    holds = "SELECT count(*) FROM budget_holds WHERE key = ?"
    amount = "SELECT coalesce(max(amount), 0) FROM spending WHERE key = ? AND period = 'ever'"
    # The holds first: PostgreSQL may settle them between the two, and then the amount must be the one afterwards.
    found = await database.read(lambda db: [db.execute(text, (key,)).fetchone()[0] for text in (holds, amount)])
    await database.aclose()
    return found[1], found[0]


async def settled(pair: Pair, key: str) -> float:
    """What a key has spent once nothing is held back for it any more."""
    async with asyncio.timeout(30):
        while True:
            spent, holds = await book(pair, key)
            if not holds:
                return spent
            await asyncio.sleep(0.05)


async def stream(pair: Pair, number: int, leaves: bool) -> str:
    """What becomes of one stream: refused, left by its client, or heard to its end."""
    body = output("Go", stream=True, max_tokens=TOKENS)
    async with pair.asking(number % 2, "POST", CHAT, body, "frugal-key") as caller:
        status, _ = await caller.head()
        if status != 200:
            return "refused"
        assert await caller.chunk()
        if leaves:
            return "left"
        while await caller.chunk():
            pass
        return "heard"


async def all_but(most: float, streams: list[asyncio.Task[str]]) -> None:
    """Wait until no more than so many are under way: those who were let in wait for the gate."""
    async with asyncio.timeout(30):
        while sum(not one.done() for one in streams) > most:  # noqa: ASYNC110 - any of them may be the last
            await asyncio.sleep(0.02)


async def test_many_streams_at_once_pass_a_budget_by_one_at_most_and_nothing_is_given_back_twice(pair: Pair) -> None:
    """fault: M4"""
    chance, spent, least, most = random.Random(4), 0.0, 0.0, 0.0
    while spent < BUDGET:
        gate = Gate()
        pair.play(dear, pace=gate.wait)
        leavers = [chance.random() < 0.3 for _ in range(24)]
        streams = [asyncio.create_task(stream(pair, number, leaves)) for number, leaves in enumerate(leavers)]
        await all_but(BUDGET / COST, streams)
        gate.is_open = True
        fates = [await one for one in streams]
        least += fates.count("heard") * COST
        most += (len(fates) - fates.count("refused")) * COST  # who leaves at the last moment pays for all of it
        before, spent = spent, await settled(pair, "frugal")
        assert spent >= before
        assert least - 0.001 <= spent <= most + 0.001
    assert spent <= BUDGET + COST + 0.01
    assert await stream(pair, 0, False) == await stream(pair, 1, False) == "refused"


async def test_responses_in_the_background_pass_a_budget_by_one_at_most(pair: Pair) -> None:
    """fault: M4: none of them has a client that waits."""
    gate = Gate()
    pair.play(dear, pace=gate.wait)
    body = {"model": "m", "input": "Go", "background": True, "max_output_tokens": TOKENS}
    asked = [pair.request(number % 2, "POST", "/v1/responses", body, "patient-key") for number in range(30)]
    begun = [one.json["id"] for one in await asyncio.gather(*asked) if one.status == 200]
    assert len(begun) == BUDGET / COST
    gate.is_open = True
    await asyncio.gather(*[ended(pair, id) for id in begun])
    assert await settled(pair, "patient") == pytest.approx(BUDGET)


async def ended(pair: Pair, id: str) -> Any:
    async with asyncio.timeout(30):
        while True:
            found = (await pair.request(0, "GET", f"/v1/responses/{id}", None, "patient-key")).json
            if found["status"] not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.05)
