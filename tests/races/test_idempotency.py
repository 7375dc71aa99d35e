"""One idempotency key, fifty requests at once, two processes: one is carried out (spec: D4; fault: M2)."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import HttpResponse
from tests.databases import Postgres
from tests.races.pair import CHAT, RUN, Pair, crowd, obeying, output, running_pair
from toolgate.conversation.request import ModelRequest

ROUNDS, AT_ONCE = 4, 50


def numbered() -> Any:
    """A model that never gives the same answer twice."""
    numbers = count(1)
    return lambda request: f"Answer {next(numbers)}."


def key(name: str) -> str:
    return f"idempotency-key: {name}"


def codes(response: list[HttpResponse]) -> set[str]:
    return {one.json["error"]["code"] for one in response if one.status != 200}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_of_fifty_requests_with_one_key_one_is_carried_out(pair: Pair, stream: bool) -> None:
    """fault: M2"""
    script = pair.play(numbered())
    async with crowd(pair.urls, AT_ONCE) as many:
        for number in range(ROUNDS):
            body = output("Go", stream=stream)
            response = await many.volley(CHAT, [body] * AT_ONCE, "ann-key", key(f"{stream}-{number}"))
            assert {one.status for one in response} == {200}
            assert len({one.body for one in response}) == len(script.requests) - number == 1
            assert sum("idempotent-replayed" not in one.headers for one in response) == 1


async def test_a_key_that_two_bodies_fight_for_belongs_to_one_of_them(pair: Pair) -> None:
    """fault: M2: an editor shows 422 as a filtered answer, so that the others hear 400."""
    script = pair.play(numbered())
    async with crowd(pair.urls, AT_ONCE) as many:
        for number in range(ROUNDS):
            bodies = [output(("Go", "Stop")[place % 4 // 2]) for place in range(AT_ONCE)]
            response = await many.volley(CHAT, bodies, "ann-key", key(f"fight-{number}"))
            assert len(script.requests) == number + 1
            [won] = {
                body["messages"][0]["content"] for body, one in zip(bodies, response, strict=True) if one.status == 200
            }
            assert {one.status for body, one in zip(bodies, response, strict=True) if won not in str(body)} == {400}
            assert codes(response) == {"idempotency_key_reused"}
        late = await pair.request(1, "POST", "/v1/messages", output("Go", max_tokens=9), "ann-key", key("fight-0"))
    assert (late.status, late.json["type"], late.json["error"]["type"]) == (400, "error", "invalid_request_error")


async def test_the_same_key_of_two_tenants_is_two_keys(pair: Pair) -> None:
    """fault: M2"""
    script = pair.play(numbered())
    async with crowd(pair.urls, 25) as anns, crowd(pair.urls, 25) as bobs:
        bodies = [output("Go")] * 25
        mine, theirs = await asyncio.gather(
            anns.volley(CHAT, bodies, "ann-key", key("shared")), bobs.volley(CHAT, bodies, "bob-key", key("shared"))
        )
    assert {one.status for one in mine + theirs} == {200}
    assert len({one.body for one in mine}) == len({one.body for one in theirs}) == 1
    assert mine[0].body != theirs[0].body
    assert len(script.requests) == 2


async def test_a_tool_of_fifty_requests_with_one_key_runs_once(pair: Pair) -> None:
    """fault: M2"""
    pair.play(obeying)
    async with crowd(pair.urls, AT_ONCE) as many:
        response = await many.volley(CHAT, [output("mark Oslo", **RUN)] * AT_ONCE, "ann-key", key("tool"))
    assert {one.status for one in response} == {200}
    assert len({one.body for one in response}) == 1
    assert pair.ran.count("Oslo") == 1


async def test_a_waiting_request_takes_over_from_a_killed_process_and_repeats_no_unsafe_call(
    tmp_path: Path, postgres: Postgres
) -> None:
    """fault: M2: the tool had run when its server died, so that nobody knows whether it had its effect."""
    with postgres.database() as storage, running_pair(tmp_path, storage, None) as pair:
        asked: list[ModelRequest] = []

        def answer(request: ModelRequest) -> Any:
            asked.append(request)
            return obeying(request)

        pair.play(answer)
        pair.hold.touch()
        body = output("mark Bonn", **RUN)
        async with asyncio.TaskGroup() as group:
            cut = group.create_task(broken_off(pair, body))
            async with asyncio.timeout(30):
                while not pair.ran:  # noqa: ASYNC110 - the tool is in another process
                    await asyncio.sleep(0.01)
            rest = [group.create_task(pair.request(1, "POST", CHAT, body, "ann-key", key("cut"))) for _ in range(20)]
            pair.services[0].process.kill()
            await cut
            pair.hold.unlink()
        response = [await one for one in rest]
    assert {one.status for one in response} == {200}
    assert len({one.body for one in response}) == 1
    assert pair.ran == ["Bonn"]
    assert len(asked) == 2


async def broken_off(pair: Pair, body: Any) -> None:
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await pair.request(0, "POST", CHAT, body, "ann-key", key("cut"))
