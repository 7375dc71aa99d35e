"""The load generator: `python -m bench.load` reads one job as JSON on stdin and prints one result as JSON.

It runs as its own process, so that no server's CPU time contains it, and checks every answer: status, completeness,
the number of words, and for streams the dialect's terminator. It knows nothing of the servers it loads.
"""

import asyncio
import contextlib
import itertools
import math
import selectors
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import cast

import httptools
import msgspec
import uvloop


class Job(msgspec.Struct, frozen=True):
    """What to send, how often and in which manner, and what an answer must hold to count."""

    port: int
    path: str
    headers: dict[str, str]
    body: str
    requests: int
    connections: int
    words: int
    terminator: str = ""
    rate: float = 0  # requests a second, sent on time whatever the answers do; 0: as fast as answers come
    hold: bool = False  # open all streams, say "open", and keep them until stdin ends
    patience: float = 60  # seconds within which held streams must have begun
    others: tuple[str, ...] = ()  # bodies that are sent in turn with the first
    method: str = "POST"


class Outcome(msgspec.Struct, frozen=True):
    """How many answers were right, why the others were not, and the seconds each took.

    `lost` says why there is no outcome: the load generator itself failed, which is no fault of the server.
    """

    ok: int
    failures: dict[str, int]
    seconds: float
    latencies: list[float]
    first: list[float] = []  # until the first word
    lost: str = ""

    def percentile(self, share: float) -> float:
        """The latency that `share` of the right answers did not exceed."""
        return percentile(self.latencies, share)


def why_missing(outcomes: Iterable[Outcome]) -> str:
    """Why there is no figure, of outcomes without a right answer."""
    return next((outcome.lost for outcome in outcomes if outcome.lost), "no right answer")


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else math.nan


class Connection(asyncio.Protocol):
    """One keep-alive connection that carries one request at a time."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.loop = asyncio.get_running_loop()
        self.lost = False
        self.done: asyncio.Future[str] | None = None
        self.began: asyncio.Future[None] = self.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in deed, not by inheritance

    def ask(self, wire: bytes) -> asyncio.Future[str]:
        """Sends the request; the future brings "" when the answer is right, else what is wrong with it."""
        self.parser = httptools.HttpResponseParser(self)
        self.body: list[bytes] = []
        self.first = 0.0
        self.done = self.loop.create_future()
        self.transport.write(wire)
        return self.done

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.finish(f"bad HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        self.body.append(body)
        if not self.first and b"lorem" in body:
            self.first = time.perf_counter()
        if not self.began.done():
            self.began.set_result(None)

    def on_message_complete(self) -> None:
        self.finish(self.fault())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.finish("connection lost before the answer was complete")

    def finish(self, fault: str) -> None:
        """Settles the request under way, once."""
        if self.done is not None and not self.done.done():
            self.done.set_result(fault)
        if fault and not self.began.done():
            self.began.cancel()

    def fault(self) -> str:
        """What is wrong with the answer just received, or "" when nothing is."""
        body = b"".join(self.body)
        status = self.parser.get_status_code()
        if status != 200:
            return f"status {status}: {body[:200].decode(errors='replace')}"
        if (words := body.count(b"lorem")) < self.job.words:
            return f"{words} of {self.job.words} words"
        if self.job.terminator and self.job.terminator.encode() not in body[-400:]:
            return f"no {self.job.terminator!r} at the end"
        return ""


class Run:
    """One job being done: counts what comes back."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.latencies: list[float] = []
        self.first: list[float] = []
        self.failures: Counter[str] = Counter()
        self.left = job.requests
        self.wires = itertools.cycle([_wire(job, body) for body in (job.body, *job.others)])

    async def connect(self) -> Connection:
        """Opens a connection to the server under load."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self.job), "127.0.0.1", self.job.port)
        return connection

    async def ask(self, connection: Connection) -> None:
        """One request, timed from its last byte written to its first word and its last byte read, and counted."""
        wire = next(self.wires)
        began = time.perf_counter()
        fault = await connection.ask(wire)
        if fault:
            self.failures[fault] += 1
            return
        self.latencies.append(time.perf_counter() - began)
        if connection.first:
            self.first.append(connection.first - began)

    async def closed_loop(self) -> None:
        """Each connection asks again as soon as it is answered."""

        async def worker() -> None:
            connection = await self.connect()
            while self.left > 0:
                self.left -= 1
                if connection.lost:
                    connection = await self.connect()
                await self.ask(connection)
            connection.transport.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(self.job.connections):
                group.create_task(worker())

    async def open_loop(self) -> None:
        """Requests leave on a fixed beat, on a free connection if there is one, else on a new one."""
        loop = asyncio.get_running_loop()
        free = [await self.connect() for _ in range(self.job.connections)]

        async def once() -> None:
            connection = free.pop() if free else await self.connect()
            await self.ask(connection)
            if not connection.lost:
                free.append(connection)

        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(self.job.requests):
                await asyncio.sleep(start + number / self.job.rate - loop.time())
                group.create_task(once())
        for connection in free:
            connection.transport.close()

    async def hold(self) -> None:
        """Opens every stream, says so when each has begun or patience ends, and waits for the end of stdin."""
        held: list[Connection] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.job.patience):
                for _ in range(self.job.requests):
                    held.append(await self.connect())
                    held[-1].ask(next(self.wires))
                    if len(held) % 50 == 0:
                        await asyncio.wait([connection.began for connection in held[-50:]])
                await asyncio.wait([connection.began for connection in held])
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for connection in held:
            self.count_held(connection)
        if missing := self.job.requests - len(held):
            self.failures["not opened in time"] += missing

    def count_held(self, connection: Connection) -> None:
        """Counts a stream that has begun and not ended as right, and closes it."""
        if connection.done is not None and connection.done.done():
            self.failures[connection.done.result() or "stream ended early"] += 1
        elif not connection.began.done():
            self.failures["not begun in time"] += 1
        else:
            self.latencies.append(0)
        connection.transport.abort()


async def perform(job: Job) -> Outcome:
    """Does the job and tells the outcome."""
    run = Run(job)
    began = time.perf_counter()
    await (run.hold() if job.hold else run.open_loop() if job.rate else run.closed_loop())
    return Outcome(len(run.latencies), dict(run.failures), time.perf_counter() - began, run.latencies, run.first)


def _wire(job: Job, text: str) -> bytes:
    head = {"host": f"127.0.0.1:{job.port}", "content-type": "application/json", **job.headers}
    body = text.encode()
    lines = [f"{job.method} {job.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def _run(work: Coroutine[None, None, Outcome], job: Job) -> Outcome:
    # uvloop and epoll round timers to milliseconds; select does not, and few sockets are open when the beat matters.
    if job.rate:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
            return runner.run(work)
    return uvloop.run(work)


if __name__ == "__main__":
    todo = msgspec.json.decode(sys.stdin.readline(), type=Job)
    # Not `print`: where PYTHONUNBUFFERED is set, it drops what does not fit into the pipe at once.
    with open(sys.stdout.fileno(), "wb") as out:
        out.write(msgspec.json.encode(_run(perform(todo), todo)))
