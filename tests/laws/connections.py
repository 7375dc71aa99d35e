"""Connections in one process, on a loop whose clock skips what it would wait for.

A case is what a client does on one connection: the pieces that it sends, and how it goes on. The server's end is the real
protocol on a real socket with the limits of production; hours of its deadlines take milliseconds, since the clock jumps to
the next timer whenever nothing can be read or written.
"""

import asyncio
import contextlib
import random
import select
import selectors
import socket
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal

from msgspec import Struct

from tests.stage import Player
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.startup_helpers import open_storage
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import LogSettings, ServerSettings
from toolgate.http.protocol import HttpListenerState, HttpProtocol
from toolgate.http.request_limits import RequestLimits
from toolgate.testing import ScriptedModel

KEY = b"ann-key"
LONGEST = 4000.0
"""Seconds of the skipping clock after which the longest deadline, the age of a WebSocket, is long over."""
_THREADS = 0.0005  # for which a skip waits, so that what runs in threads can end first

Ending = Literal["wait", "half_close", "reset", "deaf"]
ENDINGS: tuple[Ending, ...] = ("wait", "wait", "wait", "half_close", "reset", "deaf")


class Case(Struct, frozen=True):
    """What a client sends, piece by piece, and what it does then.

    It reads until the server closes (`wait`), says first that it will send no more (`half_close`), leaves without a word
    (`reset`), or stays and does not read (`deaf`).
    """

    pieces: tuple[bytes, ...]
    ending: Ending = "wait"
    first: bytes = b""
    """Sent before the pieces, which then wait for an answer to it."""


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(min(timeout, _THREADS))
        if not events:
            self.skipped += timeout
        return events


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits for sockets and threads, and skips the time up to its next timer."""

    def __init__(self) -> None:
        self._clock = _SkippingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Real time and what was skipped."""
        return super().time() + self._clock.skipped


class Site:
    """A server with keys, and the way to its connections."""

    def __init__(self, gate: Toolgate) -> None:
        self.errors: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda _, context: self.errors.append(str(context)))
        self._state: HttpListenerState = HttpListenerState(gate, RequestLimits(), gate.refuse)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._state.connections)

    async def play(self, case: Case) -> bytes:
        """Let a client do what the case says, and return what it heard; TimeoutError if the server never closes."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        await self._loop.connect_accepted_socket(lambda: HttpProtocol(self._state, self._loop), sock=ours)
        response = bytearray()
        try:
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(LONGEST):
                    await self._act(case, theirs, response)
        finally:
            theirs.close()
        return bytes(response)

    async def _act(self, case: Case, theirs: socket.socket, response: bytearray) -> None:
        if case.first:
            await self._loop.sock_sendall(theirs, case.first)
            response += await self._loop.sock_recv(theirs, 65536)
        reading = None if case.ending == "deaf" else asyncio.ensure_future(self._read(theirs, response))
        try:
            with contextlib.suppress(ConnectionError):
                for piece in case.pieces:
                    await self._loop.sock_sendall(theirs, piece)
                    await asyncio.sleep(0)
            if case.ending == "reset":
                return
            if case.ending == "half_close":
                theirs.shutdown(socket.SHUT_WR)
            if reading is None:
                while not _has_hung_up(theirs):  # noqa: ASYNC110  # nothing tells one that does not read
                    await asyncio.sleep(20)
            else:
                await reading
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.wait({reading})

    async def _read(self, theirs: socket.socket, response: bytearray) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await self._loop.sock_recv(theirs, 65536):
                response += piece


def _has_hung_up(theirs: socket.socket) -> bool:
    """Return whether the other side has closed, without reading."""
    poll = select.poll()
    poll.register(theirs.fileno(), 0)
    return bool(poll.poll(0))


class _Endless(ScriptedModel):
    """Answers every request alike."""

    async def ask(self, request: Any) -> Any:
        return await ScriptedModel(["Hello."]).ask(request)


async def play_all(cases: Iterable[tuple[str, Case]], at_a_time: int = 100) -> list[str]:
    """Play the cases, so many at a time; return what went against the law, by the names of the cases."""
    player = Player()
    player.scripted = _Endless([])
    played = ModelConfig(name="played", targets=(TargetConfig(upstream=BUILTIN, model="played"),))
    ann = KeySettings(name="ann", key=Secret(KEY.decode()))
    config = Config(
        server=ServerSettings(port=0),
        models=(played,),
        storage=Secret("sqlite://"),
        log=LogSettings(level="error"),
        keys=(ann,),
    )
    gate = Toolgate(config, {"played": player})
    await open_storage(gate.services.database, gate.services.telemetry.log)
    site = Site(gate)
    wrong: list[str] = []
    batch: list[tuple[str, Case]] = []

    async def judge(name: str, case: Case) -> None:
        try:
            response = await site.play(case)
        except TimeoutError:
            wrong.append(f"{name}: neither answered nor closed: {case}")
            return
        if response and not response.startswith(b"HTTP/1."):
            wrong.append(f"{name}: {response[:100]!r} is no answer to {case}")
        if b"HTTP/1.1 500" in response or b"internal_error" in response:
            wrong.append(f"{name}: an internal error: {response[:300]!r} for {case}")

    for one in cases:
        batch.append(one)
        if len(batch) == at_a_time:
            await asyncio.gather(*(judge(*one) for one in batch))
            batch.clear()
    await asyncio.gather(*(judge(*one) for one in batch))
    await asyncio.sleep(LONGEST)  # those that the clients have left end, too
    if site.connections:
        wrong.append(f"{site.connections} connections are still open")
    await gate.services.database.aclose()
    return wrong + site.errors


def split(rng: random.Random, data: bytes) -> tuple[bytes, ...]:
    """Cut the bytes into a few pieces at random."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 2, 5))))
    edges = [0, *places, len(data)]
    return tuple(piece for a, b in pairwise(edges) if (piece := data[a:b]))
