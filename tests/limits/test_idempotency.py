"""`Idempotency-Key`: one execution, one answer, byte for byte (spec: D4; fault: M2, Z1)."""

import asyncio
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, HttpResponse, body
from tests.limits.limited_server import ANSWER, limited_server
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.openai_chat import DIALECT
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.limits import KeyLimits
from toolgate.limits.idempotency import IdempotencyPollingLimits
from toolgate.storage.database import Database
from toolgate.storage.idempotency import (
    IdempotencyClaimGranted,
    IdempotencyClaimPending,
    IdempotencyStore,
    StoredIdempotentAnswer,
)

CHAT = PATHS["openai_chat"]
QUESTION = body("openai_chat", "m", False)
KEY = "idempotency-key: k1"

KILLED = """
import asyncio, pathlib, sys
from tests.limits.limited_server import limited_server

async def stuck(_):
    print("asked", flush=True)
    await asyncio.Event().wait()

async def main():
    async with limited_server([stuck], path=pathlib.Path(sys.argv[1]), lease=0.5) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def content(folder: Path) -> bytes:
    """The bytes of all files of a folder."""
    return b"".join([file.read_bytes() for file in folder.iterdir()])


def own(response: HttpResponse) -> dict[str, str]:
    """The headers that are the answer's, not the request's."""
    return {
        name: value for name, value in response.headers.items() if name not in ("x-request-id", "request-id", "date")
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_request_that_is_sent_again_gets_the_same_bytes(client: str, stream: bool) -> None:
    async with limited_server([ANSWER]) as server:
        first, again = [await server.ask(PATHS[client], body(client, "m", stream), KEY) for _ in range(2)]
        assert (first.status, again.status) == (200, 200)
        assert again.body == first.body
        assert "idempotent-replayed" not in first.headers
        assert own(again) == {**own(first), "idempotent-replayed": "true"}
        assert len(server.model.requests) == 1


async def test_without_a_key_every_request_is_carried_out() -> None:
    async with limited_server([ANSWER] * 2) as server:
        for _ in range(2):
            assert (await server.ask(CHAT, QUESTION)).status == 200
        assert len(server.model.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_of_fifty_at_once_one_is_carried_out_and_all_get_its_answer(stream: bool) -> None:
    """(fault: M2)"""
    async with limited_server([ANSWER]) as server:
        question = body("openai_chat", "m", stream)
        response = await asyncio.gather(*[server.ask(CHAT, question, KEY) for _ in range(50)])
        assert {one.status for one in response} == {200}
        assert len({one.body for one in response}) == 1
        assert sum("idempotent-replayed" not in one.headers for one in response) == 1
        assert len(server.model.requests) == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_another_body_under_the_same_key_is_refused_and_not_with_422(client: str) -> None:
    """An editor shows 422 as a filtered answer, and SDKs retry 409. (fault: M2)"""
    async with limited_server([ANSWER]) as server:
        await server.ask(PATHS[client], body(client, "m", False), KEY)
        response = await server.ask(PATHS[client], body(client, "m", False, "Bye"), KEY)
        assert response.status == 400
        assert b"take a new key" in response.body
        if client.startswith("openai"):
            assert response.json["error"]["code"] == "idempotency_key_reused"
        assert len(server.model.requests) == 1


async def test_another_path_under_the_same_key_is_another_request() -> None:
    async with limited_server([ANSWER]) as server:
        await server.ask(CHAT, QUESTION, KEY)
        assert (await server.ask("/api/chat", QUESTION, KEY)).status == 400


async def test_other_callers_have_keys_of_their_own() -> None:
    """(fault: M2)"""
    async with limited_server([ANSWER, "Another answer"]) as server:
        mine = await server.ask(CHAT, QUESTION, KEY)
        theirs = await server.ask(CHAT, QUESTION, KEY, who="bob")
        assert "idempotent-replayed" not in theirs.headers
        assert mine.body != theirs.body


@pytest.mark.parametrize("key", ["", "x" * 256, "gr\xfc\xdfe", "a\tb", "\x01"])
async def test_a_key_that_is_none_is_refused(key: str) -> None:
    """(fault: Z1)"""
    async with limited_server([]) as server:
        response = await server.ask(CHAT, QUESTION, f"idempotency-key: {key}")
        assert response.status == 400
        if "\x01" not in key:  # which no reader of HTTP accepts
            assert response.json["error"]["code"] == "invalid_idempotency_key"


@pytest.mark.parametrize("key", ["x" * 255, "'; DROP TABLE idempotency; --", "%00", "../..", "k"])
async def test_a_key_may_hold_any_printable_character(key: str) -> None:
    """(fault: Z1)"""
    async with limited_server([ANSWER]) as server:
        response = [await server.ask(CHAT, QUESTION, f"idempotency-key: {key}") for _ in range(2)]
        assert [one.headers.get("idempotent-replayed") for one in response] == [None, "true"]


async def test_a_failure_is_not_kept() -> None:
    async with limited_server([UpstreamUnavailable("gone"), ANSWER]) as server:
        statuses = [(await server.ask(CHAT, QUESTION, KEY)).status for _ in range(3)]
        assert statuses == [502, 200, 200]
        assert len(server.model.requests) == 2


async def test_a_stream_that_failed_in_the_middle_is_not_kept() -> None:
    question = body("openai_chat", "m", True)
    async with limited_server([[Text("Hello"), UpstreamUnavailable("gone")], ANSWER]) as server:
        broken = await server.ask(CHAT, question, KEY)
        assert b"error" in broken.body
        whole = await server.ask(CHAT, question, KEY)
        assert b"error" not in whole.body
        assert "idempotent-replayed" not in whole.headers


async def test_a_waiting_request_takes_over_from_a_client_that_left() -> None:
    """(fault: M2)"""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def first(_: ModelRequest) -> ModelResponse:
        begun.set()
        await go_on.wait()
        return ANSWER

    async with limited_server([first, "The second"]) as server:
        async with HttpConnection(server.url) as caller:
            await caller.post(CHAT, QUESTION, "authorization: Bearer ann-key", KEY)
            await begun.wait()
            waiting = asyncio.create_task(server.ask(CHAT, QUESTION, KEY))
        response = await asyncio.wait_for(waiting, 30)
        assert b"The second" in response.body
        assert "idempotent-replayed" not in response.headers


async def test_a_request_that_waits_too_long_gets_a_retry_after() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ModelRequest) -> ModelResponse:
        begun.set()
        await go_on.wait()
        return ANSWER

    async with limited_server([slow], idempotency=IdempotencyPollingLimits(wait=0.05)) as server:
        first = asyncio.create_task(server.ask(CHAT, QUESTION, KEY))
        await begun.wait()
        second = await server.ask(CHAT, QUESTION, KEY)
        assert (second.status, second.json["error"]["code"]) == (409, "idempotency_in_progress")
        assert second.headers["retry-after"] == "5"
        go_on.set()
        assert (await first).status == 200


async def test_an_answer_on_another_node_is_waited_for(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ModelRequest) -> ModelResponse:
        begun.set()
        await go_on.wait()
        return ANSWER

    path, terms = tmp_path / "t.db", IdempotencyPollingLimits(poll=0.01)
    async with (
        limited_server([slow], path=path, idempotency=terms) as one,
        limited_server([], path=path, idempotency=terms) as two,
    ):
        first = asyncio.create_task(one.ask(CHAT, QUESTION, KEY))
        await begun.wait()
        second = asyncio.create_task(two.ask(CHAT, QUESTION, KEY))
        go_on.set()
        assert (await second).body == (await first).body


async def test_what_a_crash_left_unfinished_is_taken_over_and_carried_out_once(tmp_path: Path) -> None:
    """The first node claims and is never heard of again. (fault: M2)"""
    path, late = tmp_path / "t.db", StoredIdempotentAnswer(200, [], b"never")
    async with limited_server(
        [ANSWER], path=path, lease=0.3, idempotency=IdempotencyPollingLimits(poll=0.01)
    ) as server:
        database = Database(path)
        dead = IdempotencyStore(database, lease=0.3)
        digest = sha256(b"\0".join((CHAT.encode(), b"", msgspec.json.encode(QUESTION)))).digest()
        assert await dead.claim("ann", "k1", digest, "dead", b"s") == IdempotencyClaimGranted()
        assert await dead.claim("ann", "k1", digest, "other", b"s") == IdempotencyClaimPending()
        response = await asyncio.gather(*[server.ask(CHAT, QUESTION, KEY) for _ in range(10)])
        assert {one.status for one in response} == {200}
        assert len({one.body for one in response}) == 1
        assert len(server.model.requests) == 1
        assert not await dead.keep("ann", "k1", "dead", late, b"s")  # it woke up too late
        assert (await server.ask(CHAT, QUESTION, KEY)).body == response[0].body
        await database.aclose()


async def test_a_server_that_was_killed_in_the_middle_leaves_its_requests_to_the_next(tmp_path: Path) -> None:
    """(fault: M2)"""
    path = tmp_path / "t.db"
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert server.stdout is not None
    try:
        url = (await server.stdout.readline()).decode().strip()
        async with HttpConnection(url) as caller:
            await caller.post(CHAT, QUESTION, "authorization: Bearer ann-key", KEY)
            assert await server.stdout.readline() == b"asked\n"
            server.kill()
            await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
    async with limited_server(
        [ANSWER], path=path, lease=0.5, idempotency=IdempotencyPollingLimits(poll=0.05)
    ) as restarted:
        response = await asyncio.gather(*[restarted.ask(CHAT, QUESTION, KEY) for _ in range(20)])
        assert {one.status for one in response} == {200}
        assert len({one.body for one in response}) == len(restarted.model.requests) == 1


async def test_a_long_execution_keeps_its_claim() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ModelRequest) -> ModelResponse:
        begun.set()
        await go_on.wait()
        return ANSWER

    async with limited_server([slow], lease=0.15, idempotency=IdempotencyPollingLimits(poll=0.01)) as server:
        first = asyncio.create_task(server.ask(CHAT, QUESTION, KEY))
        await begun.wait()
        second = asyncio.create_task(server.ask(CHAT, QUESTION, KEY))
        done, _ = await asyncio.wait({second}, timeout=0.5)  # three leases long
        assert not done
        go_on.set()
        assert (await second).body == (await first).body
        assert len(server.model.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_too_large_to_keep_is_sent_once_and_not_made_again(stream: bool) -> None:
    question = body("openai_chat", "m", stream)
    async with limited_server([ANSWER], idempotency=IdempotencyPollingLimits(body_bytes=100)) as server:
        assert (await server.ask(CHAT, question, KEY)).status == 200
        again = await server.ask(CHAT, question, KEY)
        assert (again.status, again.json["error"]["code"]) == (409, "idempotency_not_replayable")
        assert len(server.model.requests) == 1


async def test_any_endpoint_that_takes_posts_can_be_made_idempotent() -> None:
    seen: list[Any] = []

    async def register(call: AdmittedHttpRequest) -> None:
        """Take note."""
        seen.append(await call.exchange.json())
        await call.exchange.respond(201, b"{}", [(b"x-more", b"yes")])

    more = [HttpRoute("POST", "/v1/tools", register, DIALECT.server, scope="admin")]
    async with limited_server([], more=more) as server:
        response = [await server.ask("/v1/tools", {"name": "t"}, KEY, who="root") for _ in range(2)]
        assert [(one.status, one.headers["x-more"]) for one in response] == [(201, "yes")] * 2
        assert seen == [{"name": "t"}]


async def test_a_replay_counts_as_a_request_but_uses_no_tokens() -> None:
    limits = {"ann": KeyLimits(requests_per_minute=3, tokens_per_minute=1_000_000)}
    async with limited_server([ANSWER], limits) as server:
        response = [await server.ask(CHAT, QUESTION, KEY) for _ in range(4)]
        assert [one.status for one in response] == [200, 200, 200, 429]
        assert [one.headers["x-ratelimit-remaining-requests"] for one in response] == ["2", "1", "0", "0"]
        assert int(response[3].headers["x-ratelimit-remaining-tokens"]) == 500_000


async def test_responses_expire_after_a_day_and_a_clock_set_back_delays_no_request() -> None:
    """(fault: K-M)"""
    now, steady = [1_000_000.0], [0.0]
    database = Database(None)
    store = IdempotencyStore(database, clock=lambda: now[0], steady=lambda: steady[0])
    assert await store.claim("ann", "k", b"d", "1", b"s") == IdempotencyClaimGranted()
    now[0] -= 3600
    assert await store.claim("ann", "k", b"d", "2", b"s") == IdempotencyClaimPending()
    steady[0] += 30
    assert await store.claim("ann", "k", b"d", "2", b"s") == IdempotencyClaimGranted()
    assert not await store.keep("ann", "k", "1", StoredIdempotentAnswer(200, [], b"late"), b"s")
    kept = StoredIdempotentAnswer(200, [(b"a", b"b")], b"\xff\0", streamed=True)
    assert await store.keep("ann", "k", "2", kept, b"s")
    assert await store.claim("ann", "k", b"d", "3", b"s") == kept
    now[0] += 86_400 + 3601
    steady[0] += 86_400 + 3601
    assert await store.claim("ann", "k", b"d", "4", b"s") == IdempotencyClaimGranted()
    await database.aclose()


async def test_the_lease_of_a_dead_holder_is_not_waited_for() -> None:
    """(fault: K-A): a start after a crash is no reason to wait half a minute."""
    database = Database(None)
    store = IdempotencyStore(database, lease=30.0, is_gone=lambda holder: holder == "dead")
    assert await store.claim("ann", "k1", b"digest", "dead", b"s") == IdempotencyClaimGranted()
    assert await store.claim("ann", "k1", b"digest", "alive", b"s") == IdempotencyClaimGranted()
    assert await store.claim("ann", "k1", b"digest", "third", b"s") == IdempotencyClaimPending()
    assert not await store.keep("ann", "k1", "dead", StoredIdempotentAnswer(200, [], b"late"), b"s")
    await database.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_database_alone_does_not_reveal_a_kept_answer(tmp_path: Path, stream: bool) -> None:
    """A client that said `store: false` has its answer kept for a day; only its own request opens it."""
    path, output = tmp_path / "t.db", "the launch code is ultramarine " * 5_000
    question = {**body("openai_chat", "m", stream), "store": False}
    async with limited_server([output], path=path) as server:
        first = await server.ask(CHAT, question, KEY)
        assert (first.status, b"ultramarine" in first.body) == (200, True)
        written = content(tmp_path)
        assert len(written) > len(output)
        assert b"ultramarine" not in written
        again = await server.ask(CHAT, question, KEY)
        assert (again.body, again.headers["idempotent-replayed"]) == (first.body, "true")
    assert b"ultramarine" not in content(tmp_path)


async def test_an_answer_that_an_earlier_version_kept_is_still_replayed(tmp_path: Path) -> None:
    path, kept = (
        tmp_path / "t.db",
        StoredIdempotentAnswer(200, [(b"content-type", b"application/json")], b'{"kept": "before"}'),
    )
    async with limited_server([], path=path) as server:
        database = Database(path)
        digest = sha256(b"\0".join((CHAT.encode(), b"", msgspec.json.encode(QUESTION)))).digest()
        await IdempotencyStore(database).claim("ann", "k1", digest, "earlier", b"s")
        values = (msgspec.msgpack.encode(kept),)
        await database.change(lambda db: db.execute("UPDATE idempotency SET answer = ?", values))
        await database.aclose()
        assert (await server.ask(CHAT, QUESTION, KEY)).body == kept.body
