"""The supervisor as its worker sees it: who counts for all, knows what all count, and passes news on.

It must not know why the worker asks. When the supervisor is gone the worker ends, so nothing here waits for its return.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TypeVar

import msgspec

from toolgate.conversation.errors import Overloaded
from toolgate.limits import Hold, KeyLimits, Taken
from toolgate.server.fanout import LocalFanout
from toolgate.server.supervisor import words
from toolgate.wire.lengths import Overlong, next_framed

_T = TypeVar("_T")

_SUM_SECONDS = 2.0


class Foreman:
    """The line to the supervisor; `told` hears what it wants, `lost` that it is gone, `lent` of this machine's model."""

    def __init__(self) -> None:
        self.counters = CrewCounters(self)
        self.fanout = CrewFanout(self)
        self.told: Callable[[words.ToWorker], None] = _deaf
        self.lost: Callable[[], None] = _nobody
        self.lent: Callable[[words.Lent | None], None] = _deaf
        self.count: Callable[[], bytes] = bytes
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[words.ToWorker]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def open(self, line: socket.socket) -> None:
        """Begin to listen."""
        reader, self._writer = await asyncio.open_unix_connection(sock=line)
        self._hearing = asyncio.get_running_loop().create_task(self._hear(reader))

    def say(self, message: words.FromWorker) -> None:
        """Tell the supervisor, if it can still hear."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(words.encode(message))

    async def ask(self, question: Callable[[int], words.FromWorker], answer: type[_T]) -> _T:
        """What the supervisor says to a question; Overloaded if it is gone."""
        number = next(self._numbers)
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.say(question(number))
            if self._hearing is None or self._hearing.done():
                raise _gone()
            said = await future
        finally:
            del self._asked[number]
        assert isinstance(said, answer)  # whoever answers knows the question
        return said

    async def sum(self, own: bytes) -> bytes:
        """What all workers count together, or what this one does if that cannot be had."""
        with suppress(TimeoutError, Overloaded):
            async with asyncio.timeout(_SUM_SECONDS):
                summed = await self.ask(lambda number: words.Gather(number, own.decode()), words.Summed)
                return summed.all.encode()
        return own

    async def aclose(self) -> None:
        """Say what was counted to the end, and hang up."""
        self.say(words.Counted(0, self.count().decode()))
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.wait({self._hearing})
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, Overlong, msgspec.DecodeError):
            while True:
                self._take_in(words.decode_to_worker(await next_framed(reader.readexactly, words.LONGEST)))
        for future in self._asked.values():
            if not future.done():
                future.set_exception(_gone())
        self.lent(None)
        self.lost()

    def _take_in(self, message: words.ToWorker) -> None:
        match message:
            case words.Granted(number) | words.Summed(number):
                future = self._asked.get(number)
                if future is not None and not future.done():
                    future.set_result(message)
                elif isinstance(message, words.Granted) and message.taken.hold is not None:
                    self.say(words.Settle(message.taken.hold.slot, 0))  # nobody waits for it any more
            case words.Changed(topic):
                self.fanout.pass_on(topic)
            case words.Count(number):
                self.say(words.Counted(number, self.count().decode()))
            case words.Engaged() | words.Declined() | words.Report() | words.Broken():
                self.lent(message)
            case _:
                self.told(message)


class CrewCounters:
    """Counters that all workers of this machine share, kept by the supervisor."""

    def __init__(self, foreman: Foreman) -> None:
        self._foreman = foreman

    async def take(self, key: str, limits: KeyLimits, tokens: int) -> Taken:
        """Take one request and so many tokens, if every limit allows."""
        granted = await self._foreman.ask(lambda number: words.Take(number, key, limits, tokens), words.Granted)
        return granted.taken

    def settle(self, hold: Hold, tokens: int) -> None:
        """The request is over and used so many tokens; a second time does nothing."""
        if not hold.settled:
            hold.settled = True
            self._foreman.say(words.Settle(hold.slot, tokens))

    def charge(self, key: str, tokens: int) -> None:
        """Tokens were used by something that holds nothing."""
        self._foreman.say(words.Charge(key, tokens))

    async def aclose(self) -> None:
        """Let go of what is open: nothing."""


class CrewFanout(LocalFanout):
    """Reaches all workers of this machine."""

    look_seconds = 1.0

    def __init__(self, foreman: Foreman) -> None:
        super().__init__()
        self._foreman = foreman

    def announce(self, topic: str) -> None:
        """Something has changed under this name."""
        super().announce(topic)
        self._foreman.say(words.Changed(topic))

    def pass_on(self, topic: str) -> None:
        """Another worker has announced it."""
        super().announce(topic)


def _gone() -> Overloaded:
    return Overloaded("The server is shutting down.", retry_after=1)


def _deaf(message: words.ToWorker | None) -> None:
    """Nobody listens yet."""


def _nobody() -> None:
    """Nobody cares yet."""
