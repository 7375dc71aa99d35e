"""The fairness law: a caller who floods what callers share delays another caller by no more than one job at a time.

No clock is looked at. Something that is shared is filled by one caller and held; then another caller comes, and it is let go
job by job. What is counted is how many of the flood's jobs are served between the other's request and its own job: in an
idle server none, and one under any flood, so that the other waits for twice what it needs alone at most.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, body
from tests.app.test_faults import GOOD_WHOLE
from tests.stage import MEMORY, QUIET
from tests.upstreams.transport.faulty import Faulty, Peer
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.config.settings import ServerSettings
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.listener import Listener
from toolgate.http.request_limits import RequestLimits
from toolgate.scheduling import CALLER, FairQueue

SLOTS = 4
FLOOD = 30
PATIENCE = 60


class HeldUpstream:
    """Takes requests at once and answers one whenever it is let go; `arrived` are the callers in the order of asking."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.changed = asyncio.Event()
        self.go = asyncio.Semaphore(0)

    async def play(self, peer: Peer) -> None:
        """Answer the requests of one connection, each when it is its turn."""
        while (request := await peer.request()) is not None:
            self.arrived.append("flood" if b"from flood" in request.body else "other")
            self.changed.set()
            await self.go.acquire()
            await peer.send(GOOD_WHOLE)

    async def has(self, count: int) -> None:
        """Return when so many requests have arrived."""
        async with asyncio.timeout(PATIENCE):
            while len(self.arrived) < count:
                self.changed.clear()
                await self.changed.wait()


class Shared:
    """A gateway that a flooding caller and another one use."""

    def __init__(self, listener: Listener, gate: Toolgate, upstream: HeldUpstream) -> None:
        self.listener = listener
        self.gate = gate
        self.upstream = upstream
        self._client = httpx.AsyncClient(
            base_url=listener.url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None)
        )

    async def send(self, who: str, method: str, path: str, payload: Any = None, **headers: str) -> httpx.Response:
        """One request of a caller."""
        headers |= {"authorization": f"Bearer {who}-key"}
        return await self._client.request(method, path, json=payload, headers=headers)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


@asynccontextmanager
async def shared(slots: int = SLOTS, limits: RequestLimits | None = None) -> AsyncIterator[Shared]:
    """A gateway over an upstream of few slots, and a model that needs none."""
    held = HeldUpstream()
    async with Faulty(held.play) as faulty:
        base = f"http://127.0.0.1:{faulty.port}/v1"
        upstream = UpstreamConfig(name="u", dialect="openai_chat", base_url=base, max_connections=slots)
        config = Config(
            server=ServerSettings(port=0),
            upstreams={"u": upstream},
            models=(
                ModelConfig(name="m", targets=(TargetConfig(upstream="u", model="up"),), retries=0),
                ModelConfig(name="echo", targets=(TargetConfig(upstream=BUILTIN, model="echo"),)),
            ),
            keys=tuple(
                KeySettings(name=name, key=Secret(f"{name}-key"), scopes=("chat", "tools"))
                for name in ("flood", "other")
            ),
            storage=MEMORY,
            log=QUIET,
        )
        gate = Toolgate(config)
        listener = Listener(gate, limits=limits)
        await listener.open()
        opened = Shared(listener, gate, held)
        try:
            yield opened
        finally:
            for _ in range(2 * max(FLOOD, slots)):
                held.go.release()
            await opened.aclose()
            await listener.close()


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            held = holds()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.005)


async def served_before_the_other(upstream: HeldUpstream, queued: int) -> int:
    """How many of the flood's requests reach the upstream before the other's, which waits; none of `queued` answered yet."""
    while "other" not in upstream.arrived:
        count = len(upstream.arrived)
        upstream.go.release()
        await upstream.has(count + 1)
    return upstream.arrived.index("other") - queued


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_upstreams_slots_are_shared_among_callers(client: str) -> None:
    async with shared() as gateway:
        flood = [
            asyncio.ensure_future(gateway.send("flood", "POST", PATHS[client], body(client, "m", False, "from flood")))
            for _ in range(FLOOD)
        ]
        await gateway.upstream.has(SLOTS)
        await until(lambda: sum(one.done() for one in flood) == FLOOD - 2 * SLOTS)  # as many wait as may
        other = asyncio.ensure_future(gateway.send("other", "POST", PATHS[client], body(client, "m", False, "Hi")))
        await until(lambda: sum(one.done() for one in flood) == FLOOD - 2 * SLOTS + 1)  # one made room
        assert await served_before_the_other(gateway.upstream, SLOTS) <= 1
        for _ in range(FLOOD):
            gateway.upstream.go.release()
        assert (await other).status_code == 200
        assert {(await one).status_code for one in flood} == {200, 503}


async def test_the_connections_to_a_host_are_shared_among_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host has 1,024 of them, fewer than an upstream has slots, and several upstreams may be on one host."""
    async with shared(slots=2 * FLOOD) as gateway:
        transport = gateway.gate.services.transport
        monkeypatch.setattr(transport, "_per_host", SLOTS)

        def ask(who: str, text: str) -> "asyncio.Task[httpx.Response]":
            payload = body("openai_chat", "m", False, text)
            return asyncio.ensure_future(gateway.send(who, "POST", PATHS["openai_chat"], payload))

        def waiting() -> int:
            return sum(len(pool._queue) for pool in transport._pools.values())

        flood = [ask("flood", "from flood") for _ in range(FLOOD)]
        await until(lambda: waiting() == FLOOD - SLOTS)
        other = ask("other", "Hi")
        await until(lambda: waiting() == FLOOD - SLOTS + 1)
        assert await served_before_the_other(gateway.upstream, SLOTS) <= 1
        for _ in range(FLOOD):
            gateway.upstream.go.release()
        assert {(await one).status_code for one in (*flood, other)} == {200}


async def test_background_runs_take_turns() -> None:
    async with shared() as gateway:
        more: dict[str, Any] = {"background": True, "store": True}
        payload = body("openai_responses", "m", False, "from flood", **more)
        flood = [(await gateway.send("flood", "POST", "/v1/responses", payload)).json()["id"] for _ in range(2 * SLOTS)]
        await gateway.upstream.has(SLOTS)

        async def failed() -> bool:
            shown = [await gateway.send("flood", "GET", f"/v1/responses/{id}") for id in flood]
            return [one.json()["status"] for one in shown].count("failed") == 1

        accepted = await gateway.send("other", "POST", "/v1/responses", body("openai_responses", "m", False, **more))
        assert accepted.status_code == 200, accepted.text
        await until(failed)  # the last of the flood made room
        assert await served_before_the_other(gateway.upstream, SLOTS) <= 1


def reading(gateway: Shared, who: str, number: int) -> Awaitable[httpx.Response]:
    return gateway.send(who, "GET", f"/v1/responses/resp_{number}")


def writing(gateway: Shared, who: str, number: int) -> Awaitable[httpx.Response]:
    return gateway.send(who, "POST", "/v1/conversations", {})


def repeated(gateway: Shared, who: str, number: int) -> Awaitable[httpx.Response]:
    payload = body("openai_chat", "echo", False)
    return gateway.send(who, "POST", PATHS["openai_chat"], payload, **{"idempotency-key": f"{who}-{number}"})


def listing(gateway: Shared, who: str, number: int) -> Awaitable[httpx.Response]:
    return gateway.send(who, "GET", "/v1/approvals")


class RecordingQueue(FairQueue[Any]):
    """A queue that counts, for each entry of the other caller, how many of the flood's entries leave before it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        self._queued: deque[int] = deque()
        self._keys: dict[Any, str] = {}
        self._taken = 0

    def put(self, key: str, entry: Any) -> None:
        super().put(key, entry)
        self._keys[entry] = key
        if key == "other":
            self._queued.append(self._taken)

    def take(self) -> Any:
        entry = super().take()
        key = self._keys.pop(entry)
        if key == "other":
            self.counts.append(self._taken - self._queued.popleft())
        self._taken += key == "flood"
        return entry


@pytest.mark.parametrize("send", [reading, writing, repeated, listing])
async def test_the_database_is_shared_among_callers(
    send: Callable[[Shared, str, int], Awaitable[httpx.Response]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts jobs that the database's thread takes and not finished answers, whose order also depends on the machine."""
    async with shared() as gateway:
        database, go, queue = gateway.gate.services.database, threading.Event(), RecordingQueue()
        monkeypatch.setattr(database._jobs, "_queue", queue)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(database.read(lambda _: go.wait(PATIENCE)))
            flood = [tasks.create_task(_sent(send(gateway, "flood", number))) for number in range(FLOOD)]
            await until(lambda: len(queue) >= FLOOD)
            other = tasks.create_task(_sent(send(gateway, "other", 0)))
            await until(lambda: len(queue) >= FLOOD + 1)
            go.set()
        assert queue.counts
        assert max(queue.counts) <= 1
        assert other.result() == flood[0].result() < 500


async def _sent(sending: Awaitable[httpx.Response]) -> int:
    return (await sending).status_code


async def test_the_thread_that_decodes_large_requests_is_shared_among_callers() -> None:
    """The requests themselves would be decoded in the order in which their bodies come; what counts is who waits."""
    go, order = threading.Event(), list[str]()

    async def one(who: str) -> None:
        CALLER.set(who)
        await run_in_thread(order.append, who)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_in_thread(go.wait, PATIENCE))
        left = [tasks.create_task(one("flood")) for _ in range(FLOOD)]
        await asyncio.sleep(0)
        tasks.create_task(one("other"))
        left[-1].cancel()
        await asyncio.sleep(0)
        go.set()
    assert order.index("other") <= 1
    assert len(order) == FLOOD
