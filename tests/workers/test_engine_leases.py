"""Workers share one engine of the local model (spec: D4, U6)."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.upstreams.local.conftest import smallest  # noqa: F401  # a fixture
from tests.workers.server_process import RunningServer, is_alive, running_server, until
from toolgate.conversation.errors import GatewayOverloaded, UpstreamUnavailable
from toolgate.upstreams.local import frames
from toolgate.upstreams.local.engine_lease import EngineLease
from toolgate.upstreams.local.engine_process import EngineFault
from toolgate.upstreams.local.queue import EngineTurnQueue
from toolgate.upstreams.local.state import LocalModelState
from toolgate.workers import messages
from toolgate.workers.client import SupervisorClient
from toolgate.workers.engine_leases import EngineLeases
from toolgate.workers.shared_engine import BorrowedEngineProvider


class FakeEngine:
    """Generates two pieces of text; the prompt `wait` runs until cancelled, the prompt `die` ends the engine."""

    def __init__(self) -> None:
        self.cancelled = 0

    def generate(self, order: frames.EngineGenerateFrame, over: Callable[[], None]) -> "FakeGeneration":
        return FakeGeneration(self, str(order.messages[-1]["content"]))


class FakeGeneration:
    def __init__(self, engine: FakeEngine, text: str) -> None:
        self._engine = engine
        self._text = text
        self._over = False

    async def __aiter__(self) -> AsyncIterator[frames.GenerationFrame]:
        yield frames.EngineTextFrame(99, "You said ")
        if self._text == "die":
            raise EngineFault("The engine has died.")
        if self._text == "wait":
            await asyncio.Event().wait()
        yield frames.EngineTextFrame(99, self._text)
        self._over = True
        yield frames.EngineGenerationEndFrame(99, "stop", written=2)

    def cancel(self) -> None:
        self._engine.cancelled += not self._over


class FakeEnginePool:
    """A pool with one fake engine."""

    def __init__(self, places: int = 4) -> None:
        self.engine = FakeEngine()
        self.queue = EngineTurnQueue(places, 5.0)
        self.failure: Exception | None = None
        self.state = LocalModelState("ready", "fake", "")

    def start(self) -> None:
        pass

    async def lease(self, caller: str) -> EngineLease:
        if self.failure is not None:
            raise self.failure
        return EngineLease(self.engine, (await self.queue.acquire(caller)).release)

    async def aclose(self) -> None:
        pass


class Worker:
    """A worker and its process in the supervisor, connected without a socket: messages arrive at once."""

    def __init__(self, share: EngineLeases) -> None:
        self.supervisor = SupervisorClient()
        self.supervisor.send = lambda message: share.receive(self, message)  # type: ignore[method-assign,arg-type]
        self.engines = BorrowedEngineProvider(self.supervisor, "fake")

    def send(self, message: messages.EngineMessage) -> None:
        decoded = messages.decode_to_worker(messages.encode(message)[4:])
        self.supervisor.receive(decoded, self)

    def handle(self, command: messages.ToWorker) -> None:
        raise AssertionError(command)

    def metrics(self) -> bytes:
        return b""

    def supervisor_lost(self) -> None:
        pass


async def test_workers_know_how_far_the_model_is() -> None:
    pool = FakeEnginePool()
    share = EngineLeases(pool)
    first, late = Worker(share), Worker(share)
    assert first.engines.state.phase == "asleep"
    pool.state = LocalModelState("fetching", "fake", "Downloading.", 10.0)
    share.worker_started(first)
    assert first.engines.state == pool.state
    pool.state = LocalModelState("ready", "fake", "Ready.")
    share.state_changed(pool.state)
    share.worker_started(late)
    assert first.engines.state == late.engines.state == pool.state
    share.worker_ended(first)
    share.state_changed(LocalModelState("failed", "fake", "It has died."))
    assert (first.engines.state.phase, late.engines.state.phase) == ("ready", "failed")


def prompt(text: str) -> frames.EngineGenerateFrame:
    return frames.EngineGenerateFrame(0, ({"role": "user", "content": text},), 10)


async def generated(lease: EngineLease, text: str) -> str:
    written = ""
    async for report in lease.engine.generate(prompt(text), lease.release):
        written += report.text if isinstance(report, frames.EngineTextFrame) else ""
    return written


async def test_workers_get_the_engine_one_after_the_other() -> None:
    pool = FakeEnginePool()
    share = EngineLeases(pool)
    one, two = Worker(share), Worker(share)
    first = await one.engines.lease("ann")
    waiting = asyncio.create_task(two.engines.lease("ann"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await generated(first, "hello") == "You said hello"
    second = await waiting
    assert await generated(second, "goodbye") == "You said goodbye"


async def test_callers_of_all_workers_take_turns() -> None:
    share = EngineLeases(FakeEnginePool())
    one, two = Worker(share), Worker(share)
    first, order = await one.engines.lease("ann"), list[str]()

    async def come(worker: Worker, caller: str) -> None:
        lease = await worker.engines.lease(caller)
        order.append(caller)
        lease.release()

    waiting = [asyncio.create_task(come(one, "ann")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(come(two, "bob"))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.release()
    await asyncio.gather(*waiting)
    assert order == ["ann", "bob", "ann", "ann"]


async def test_a_cancelled_generation_leaves_the_engine_to_the_next_worker() -> None:
    pool = FakeEnginePool()
    share = EngineLeases(pool)
    one, two = Worker(share), Worker(share)
    lease = await one.engines.lease("ann")
    generation = lease.engine.generate(prompt("wait"), lease.release)
    async for _ in generation:
        break
    generation.cancel()
    assert pool.engine.cancelled == 1
    assert await generated(await two.engines.lease("ann"), "x") == "You said x"


async def test_a_dead_worker_leaves_the_engine_to_the_others() -> None:
    pool = FakeEnginePool()
    share = EngineLeases(pool)
    one, two = Worker(share), Worker(share)
    lease = await one.engines.lease("ann")
    lease.engine.generate(prompt("wait"), lease.release)
    also = asyncio.create_task(one.engines.lease("ann"))
    await asyncio.sleep(0)
    share.worker_ended(one)
    assert await generated(await two.engines.lease("ann"), "x") == "You said x"
    assert pool.engine.cancelled == 1
    also.cancel()


async def test_errors_of_the_engine_reach_the_worker_that_leases_it() -> None:
    pool = FakeEnginePool(places=0)
    share = EngineLeases(pool)
    one, two = Worker(share), Worker(share)
    lease = await one.engines.lease("ann")
    with pytest.raises(GatewayOverloaded, match="queue is full") as full:
        await two.engines.lease("ann")
    assert full.value.retry_after
    with pytest.raises(EngineFault, match="has died"):
        await generated(lease, "die")
    lease.release()
    pool.failure = UpstreamUnavailable("There are no weights.", status=503)
    with pytest.raises(UpstreamUnavailable, match="no weights"):
        await two.engines.lease("ann")


async def test_all_waiting_requests_fail_when_the_supervisor_is_gone() -> None:
    one = Worker(EngineLeases(FakeEnginePool(places=1)))
    lease = await one.engines.lease("ann")
    waiting = asyncio.create_task(one.engines.lease("ann"))
    await asyncio.sleep(0)
    generation = lease.engine.generate(prompt("wait"), lease.release)
    one.supervisor.lose(one)
    with pytest.raises(UpstreamUnavailable):
        await waiting
    with pytest.raises(EngineFault):
        async for _ in generation:
            pass


def engines(server: RunningServer) -> list[int]:
    return [pid for pid in server.workers() if b"upstreams.local.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes through /proc")
def test_two_workers_share_one_engine_that_is_replaced_when_it_dies(smallest: Path, tmp_path: Path) -> None:  # noqa: F811
    config = f"embedded: {{model: {json.dumps(str(smallest))}, context: 1024}}\nlog: {{level: warning}}\n"
    body = {"model": "local", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with running_server(tmp_path, config, "--workers", "2", embedded=True) as server:
        server.announced()
        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(lambda _: server.post(body), range(6))) == [200] * 6
        until(lambda: json.loads(server.get("/v1/status"))["local_model"]["state"] == "ready")
        [engine] = engines(server)
        os.kill(engine, signal.SIGKILL)
        until(lambda: not is_alive(engine))
        until(lambda: server.post(body) == 200)
        [another] = engines(server)
        assert another != engine
    until(lambda: not is_alive(another))
