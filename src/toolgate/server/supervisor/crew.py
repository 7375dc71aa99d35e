"""Keeps so many workers serving: starts them, replaces those that die, and one by one all of them when asked.

Each place has a socket of its own, so that the kernel shares connections out evenly; the supervisor has them all, so that
none is lost with a worker. While a place is empty another worker accepts for it, too.

Whoever renews the workers and whoever replaces a dead one take turns, or one place would get two.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

from toolgate.server.supervisor import words
from toolgate.server.supervisor.board import Board
from toolgate.server.supervisor.hand import Hand
from toolgate.telemetry.logs import Log

GAVE_UP = 3
"""The exit status of a supervisor whose workers die as soon as they are started."""

BAD_CONFIG = 2


class Terms(Struct, frozen=True):
    """How patient the supervisor is, in seconds; `attempts` in a row may fail while nobody serves."""

    start: float = 60.0
    steady: float = 10.0
    first_pause: float = 0.25
    longest_pause: float = 10.0
    attempts: int = 5
    drain: float = 45.0
    forced: float = 4.0
    linger: float = 5.0


class Crew:
    """The workers of one server."""

    def __init__(
        self,
        size: int,
        hire: Callable[[int], Awaitable[Hand]],
        board: Board,
        log: Log,
        terms: Terms | None = None,
        *,
        renew: Callable[[int], Awaitable[Hand]] | None = None,
        read: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """`hire` starts a worker for a place with the configuration in force, `renew` with what `read` gives of its file."""
        self._hire = hire
        self._hire_renewed = renew or hire
        self._read = read
        self._reload: words.Reload | None = None
        self._board = board
        self._log = log
        self._terms = terms or Terms()
        self._posts: list[Hand | None] = [None] * size
        self._covers: list[Hand | None] = [None] * size
        self._failures = [0] * size
        self._hands: set[Hand] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changing = asyncio.Lock()
        self._over = asyncio.Event()
        self._opening = True
        self._asked = 0
        self._code = 0

    async def open(self) -> bool:
        """Whether all serve; the first is started alone, so that what is wrong with all is told once."""
        if not await self._man(0):
            return False
        self._opening = False
        async with self._changing:
            await asyncio.gather(*[self._man(place) for place in range(1, len(self._posts))])
        return not self._asked

    def reload(self) -> None:
        """Have all read the configuration again."""
        self._reload = words.Reload(self._read())
        for hand in self._hands:
            hand.say(self._reload)

    def renew(self) -> None:
        """Replace all workers, one after the other, without anybody noticing."""
        self._begin(self._renew())

    def drain(self) -> None:
        """Have all end: the first time when all is answered, the second time at once."""
        self._asked += 1
        for hand in self._hands:
            hand.say(words.Drain())
        if self._asked <= 2:
            self._begin(self._insist(self._terms.drain if self._asked == 1 else self._terms.forced))
        if not self._hands:
            self._over.set()

    async def ended(self) -> int:
        """Wait for the end of all, and tell the exit status."""
        await self._over.wait()
        for task in self._tasks:
            task.cancel()
        return self._code

    async def _insist(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for hand in self._hands:
            hand.kill()

    async def _man(self, place: int) -> bool:
        """Put a new worker in a place; whether it serves."""
        known = self._reload
        hand = self._posts[place] = await self._start(place, self._hire)
        if hand is None:
            self._failed(place, GAVE_UP)
            return False
        serves = await hand.serves(self._terms.start)
        if serves:
            self._catch_up(hand, known)
            self._uncover(place)
        return serves

    def _catch_up(self, hand: Hand, known: words.Reload | None) -> None:
        """Have a new worker read what the others were told to while it could not listen yet."""
        if self._reload is not None and self._reload is not known:
            hand.say(self._reload)

    async def _start(self, place: int, hire: Callable[[int], Awaitable[Hand]]) -> Hand | None:
        if self._asked:  # the listening sockets are closed, and their numbers may stand for something else
            return None
        try:
            hand = await hire(place)
        except OSError as error:  # no process, no file: there may be one in a moment
            self._log.error("worker not started", place=place, problem=str(error))
            return None
        self._hands.add(hand)
        self._board.joined(hand)
        self._begin(self._attend(hand))
        if self._asked:
            hand.say(words.Drain())
        return hand

    async def _attend(self, hand: Hand) -> None:
        """Listen to a worker until it is gone, and see to its place."""
        async for message in hand.heard():
            await self._board.heard(hand, message)
        code = await hand.gone()
        self._hands.discard(hand)
        self._board.left(hand)
        self._recover(hand)
        if self._posts[hand.place] is hand:
            self._posts[hand.place] = None
            self._lost(hand, code)
        if self._asked and not self._hands:
            self._over.set()

    def _lost(self, hand: Hand, code: int) -> None:
        """A worker has ended that nobody asked to."""
        if self._asked:
            return
        place, lived = hand.place, asyncio.get_running_loop().time() - hand.began
        self._failures[place] = self._failures[place] + 1 if lived < self._terms.steady else 0
        if not self._opening or code != BAD_CONFIG:
            self._log.error("worker ended", place=place, pid=hand.pid, status=code, seconds=round(lived, 3))
        self._cover(place)
        self._try_again(place, code)

    def _failed(self, place: int, code: int) -> None:
        """There could be no worker for a place."""
        if not self._asked:
            self._failures[place] += 1
            self._try_again(place, code)

    def _try_again(self, place: int, code: int) -> None:
        serving = any(one.serving for one in self._hands)
        if not serving and (self._opening or self._failures[place] >= self._terms.attempts):
            self._give_up(code)
        else:
            self._begin(self._replace(place))

    def _give_up(self, code: int) -> None:
        """Nobody serves, and those who are started end at once."""
        self._code = code if code == BAD_CONFIG else GAVE_UP
        if code != BAD_CONFIG:  # which the worker has told in words for a person
            self._log.error("giving up", problem="workers end as soon as they are started; the lines above say why")
        self.drain()

    async def _replace(self, place: int) -> None:
        failures, terms = self._failures[place], self._terms
        if failures:
            await asyncio.sleep(min(terms.longest_pause, terms.first_pause * 2 ** (failures - 1)))
        async with self._changing:
            if self._posts[place] is None and not self._asked:
                await self._man(place)

    async def _renew(self) -> None:
        async with self._changing:
            for place in range(len(self._posts)):
                if self._asked or not await self._relieve(place):
                    return
        self._log.info("workers renewed", count=len(self._posts))

    async def _relieve(self, place: int) -> bool:
        """Put a new worker in a place, then let the old one go; false if the new one does not serve."""
        known = self._reload
        new = await self._start(place, self._hire_renewed)
        if new is None or not await new.serves(self._terms.start):
            self._log.error("workers not renewed", place=place, problem="the new worker did not start; the old stays")
            return False
        self._catch_up(new, known)
        old, self._posts[place] = self._posts[place], new
        self._uncover(place)
        if old is not None:
            old.say(words.Retire(self._terms.linger))
            self._recover(old)
        return True

    def _cover(self, place: int) -> None:
        """Have another accept for an empty place."""
        other = next((one for one in self._posts if one is not None and one.serving), None)
        self._covers[place] = other
        if other is not None:
            other.say(words.Cover(place, True))

    def _uncover(self, place: int) -> None:
        other, self._covers[place] = self._covers[place], None
        if other is not None:
            other.say(words.Cover(place, False))

    def _recover(self, gone: Hand) -> None:
        """Find others for the places that one accepted for who is gone himself."""
        for place, cover in enumerate(self._covers):
            if cover is gone and not self._asked:
                self._cover(place)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
