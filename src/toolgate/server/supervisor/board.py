"""What there is one of for all workers, and the supervisor therefore keeps: counts, sums, and the passing on of news."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

import msgspec

from toolgate.limits import Hold, LocalCounters
from toolgate.server.supervisor import words
from toolgate.server.supervisor.hand import Hand
from toolgate.telemetry.exposition import family
from toolgate.telemetry.summing import Sum

_COUNT_SECONDS = 0.5
"""How long a sum waits for a worker that is busy; then what it counted last time is taken."""


class Engine(Protocol):
    """The model on this machine, for whoever asks first."""

    def heard(self, hand: Hand, message: words.Engage | words.Order | words.Release) -> None:
        """A worker wants something of it."""

    def left(self, hand: Hand) -> None:
        """A worker is gone, and wants nothing any more."""


class Board:
    """Answers what workers ask."""

    def __init__(self, engine: Engine | None = None, accepted: Callable[[str], None] = lambda digest: None) -> None:
        """`accepted` is called with the digest of a configuration that a worker serves."""
        self._accepted = accepted
        self._engine = engine
        self._hands: set[Hand] = set()
        self._counters = LocalCounters()
        self._holds: dict[Hand, dict[int, Hold]] = {}
        self._numbers = count(1)
        self._past = Sum()
        self._counting: dict[int, tuple[set[Hand], asyncio.Event]] = {}
        self._sums: set[asyncio.Task[None]] = set()

    def joined(self, hand: Hand) -> None:
        """There is one more."""
        self._hands.add(hand)
        self._holds[hand] = {}

    def left(self, hand: Hand) -> None:
        """One is gone: it holds nothing any more, and what it counted stays counted."""
        self._hands.discard(hand)
        for hold in self._holds.pop(hand, {}).values():
            self._counters.settle(hold, hold.tokens)
        self._past.add(hand.counted, gauges=False)
        for number in list(self._counting):
            self._has_counted(number, hand)
        if self._engine is not None:
            self._engine.left(hand)

    async def heard(self, hand: Hand, message: words.FromWorker) -> None:
        """A worker says something."""
        match message:
            case words.Ready():
                hand.begins()
            case words.Accepted(digest):
                self._accepted(digest)
            case words.Take():
                await self._take(hand, message)
            case words.Settle(number, tokens):
                if hold := self._holds[hand].pop(number, None):
                    self._counters.settle(hold, tokens)
            case words.Charge(key, tokens):
                self._counters.charge(key, tokens)
            case words.Gather():
                self._gather(hand, message)
            case words.Counted(number, own):
                hand.counted = own
                self._has_counted(number, hand)
            case words.Changed():
                for other in self._hands - {hand}:
                    other.say(message)
            case words.Engage() | words.Order() | words.Release():
                if self._engine is not None:
                    self._engine.heard(hand, message)

    async def _take(self, hand: Hand, asked: words.Take) -> None:
        taken = await self._counters.take(asked.key, asked.limits, asked.tokens)
        if taken.hold is not None:
            number = next(self._numbers)
            self._holds[hand][number] = taken.hold
            taken = msgspec.structs.replace(taken, hold=Hold(asked.key, taken.hold.tokens, slot=number))
        hand.say(words.Granted(asked.id, taken))

    def _gather(self, hand: Hand, asked: words.Gather) -> None:
        hand.counted = asked.own
        task = asyncio.get_running_loop().create_task(self._sum(hand, asked.id))
        self._sums.add(task)
        task.add_done_callback(self._sums.discard)

    async def _sum(self, hand: Hand, id: int) -> None:
        number, others = next(self._numbers), {one for one in self._hands if one is not hand and one.serving}
        if others:
            everybody = asyncio.Event()
            self._counting[number] = (others, everybody)
            for other in set(others):
                other.say(words.Count(number))
            await _within(_COUNT_SECONDS, everybody.wait)
            del self._counting[number]
        total = Sum()
        for one in sorted(self._hands, key=lambda one: one.place):
            total.add(one.counted)
        total.add(self._past.text(), gauges=False)
        serving = sum(one.serving for one in self._hands)
        total.add(family("toolgate_workers", "gauge", "Workers that serve.", [("", (), serving)]))
        hand.say(words.Summed(id, total.text()))

    def _has_counted(self, number: int, hand: Hand) -> None:
        waited, everybody = self._counting.get(number, (set(), None))
        waited.discard(hand)
        if everybody is not None and not waited:
            everybody.set()


async def _within(seconds: float, wait: Callable[[], Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait()
    except TimeoutError:
        pass
