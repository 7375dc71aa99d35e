"""A line that can be spoilt: a relay on a TCP port of loopback that delays, stalls, cuts, refuses, or loses an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class FaultProxy:
    """Carries bytes both ways, for as long and as well as it is told."""

    def __init__(self, target: str | tuple[str, int]) -> None:
        """`target` is a unix socket's path, or a host and a port."""
        self.port = 0
        self.delay = 0.0
        self.refusing = False
        self._refusals = asyncio.Semaphore(0)
        self.cut_after: int | None = None
        """Bytes towards the client after which each connection is cut."""
        self.lost = asyncio.Event()
        self._target = target
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._losing: bytes | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def stall(self) -> None:
        """Let every connection stand open and carry nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """Carry again what waits, and all that comes."""
        self._flowing.set()

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def lose_the_answer_to(self, words: bytes) -> None:
        """Let the next question with these words arrive, and cut the connection instead of its answer."""
        self._losing = words
        self.lost.clear()

    async def refused(self, count: int) -> None:
        """Wait until so many connections were refused."""
        for _ in range(count):
            await self._refusals.acquire()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        if self.refusing:
            self._refusals.release()
            writer.transport.abort()
            return
        if isinstance(self._target, str):
            there, back = await asyncio.open_unix_connection(self._target)
        else:
            there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        emitted = asyncio.Event()
        both = [self._carry(reader, back, emitted, True), self._carry(there, writer, emitted, False)]
        tasks = {asyncio.create_task(one) for one in both}
        self._tasks |= tasks
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, back):
            one.transport.abort()
        await asyncio.wait(tasks)
        self._tasks -= tasks
        self._writers -= {writer, back}

    async def aclose(self) -> None:
        """Cut everything and wait for the end of it."""
        self.cut()
        for task in self._tasks:
            task.cancel()  # it may sleep for an hour
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, emitted: asyncio.Event, asking: bool
    ) -> None:
        carried = 0
        with suppress(OSError):
            while piece := await source.read(1024):
                await asyncio.sleep(self.delay)
                await self._flowing.wait()
                if asking and self._losing is not None and self._losing in piece:
                    self._losing = None
                    emitted.set()
                elif not asking and emitted.is_set():  # it was done there
                    self.lost.set()
                    return
                carried += len(piece)
                if not asking and self.cut_after is not None and carried > self.cut_after:
                    return
                sink.write(piece)
                await sink.drain()


@asynccontextmanager
async def spoilt(target: str | tuple[str, int]) -> AsyncIterator[FaultProxy]:
    """The line to a target, for as long as the block lasts."""
    proxy = FaultProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
