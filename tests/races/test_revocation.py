"""A key that one process takes away while it is in use at another, with and without a Redis (spec: E5; fault: M7, Z5)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.api.http_client import HttpConnection
from tests.races.pair import CHAT, RUN, Pair, obeying, output
from toolgate.conversation.message import Part
from toolgate.conversation.request import ModelRequest
from toolgate.storage.database import Database
from toolgate.storage.runs import RunStore

HANG_SECONDS = 30.0


async def made(pair: Pair, name: str) -> str:
    """A key that the first process made and the second knows."""
    body = {"name": name, "scopes": ["chat", "tools"]}
    answer = await pair.request(0, "POST", "/v1/keys", body, "root-key")
    secret = str(answer.json["key"])
    await until_status(pair, secret, 200)
    return secret


async def until_status(pair: Pair, key: str, status: int) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while (await pair.request(1, "GET", "/v1/models", None, key)).status != status:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


async def rest(caller: HttpConnection) -> bytes:
    pieces = []
    while piece := await caller.chunk():
        pieces.append(piece)
    return b"".join(pieces)


async def test_a_stream_and_a_run_of_a_key_end_when_another_process_revokes_it_and_no_tool_is_called(
    pair: Pair, tmp_path: Path
) -> None:
    """fault: M7"""
    held = tmp_path / "held"
    held.touch()

    async def pace() -> None:
        while held.exists():  # noqa: ASYNC110 - it is looked at from another loop
            await asyncio.sleep(0.01)

    async def later(request: ModelRequest) -> Sequence[Part] | str:
        if "mark" in str(request.messages):
            await pace()
        return obeying(request)

    key = await made(pair, "carl")
    script = pair.play(later, pace=pace)
    run = {"model": "m", "input": "mark Kyiv", "background": True, **RUN}
    async with pair.asking(1, "POST", CHAT, output("Hi", stream=True), key) as caller, asyncio.timeout(HANG_SECONDS):
        await caller.head()
        begun = await caller.chunk()
        waiting = asyncio.create_task(pair.request(1, "POST", CHAT, output("mark Lviv", **RUN), key))
        accepted = await pair.request(1, "POST", "/v1/responses", run, key)
        while len(script.requests) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert (await pair.request(0, "DELETE", "/v1/keys/carl", None, "root-key")).status == 200
        emitted = begun + await rest(caller)
        refused = await waiting
        await until_status(pair, key, 401)
        await over(pair, accepted.json["id"])
        held.unlink()
    assert b"no longer valid" in emitted
    assert b'"finish_reason":"stop"' not in emitted
    assert refused.status == 401
    assert not {"Kyiv", "Lviv"} & set(pair.ran)


async def over(pair: Pair, id: str) -> None:
    """Return when the run has ended, of which nobody can ask any more."""
    database = Database(pair.storage)
    store = RunStore(database, "nobody")
    while (run := await store.load(id)) is None or not run.is_over:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    await database.aclose()
