"""The model on this machine, lent by the supervisor to one worker after the other, an answer at a time."""

import asyncio
from typing import Any

from msgspec import Raw, json, structs

from toolgate.conversation.errors import Overloaded, ToolgateError
from toolgate.server.supervisor import words
from toolgate.server.supervisor.hand import Hand
from toolgate.upstreams.embedded import frames
from toolgate.upstreams.embedded.process import EngineFault
from toolgate.upstreams.embedded.room import Generation, Room, Turn


class _Loan:
    """One turn of a worker, from when it asks to when it releases."""

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.generations: dict[int, Generation] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def end(self) -> None:
        """Stop whatever is written for it, and let the next one in."""
        for task in self.tasks:
            task.cancel()
        for generation in self.generations.values():
            generation.cancel()
        if self.turn is not None:
            self.turn.leave()


class Lender:
    """Lends the engine to workers."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._loans: dict[tuple[Hand, int], _Loan] = {}

    def heard(self, hand: Hand, message: words.Engage | words.Order | words.Release) -> None:
        """A worker wants something of it."""
        at = (hand, message.turn)
        loan = self._loans.get(at)
        match message:
            case words.Engage(number):
                loan = self._loans[at] = _Loan()
                self._begin(loan, self._engage(hand, number, loan))
            case words.Order(number, order) if loan is not None:
                self._order(hand, number, loan, frames.decode_order(bytes(order)))
            case words.Release() if loan is not None:
                self._loans.pop(at).end()

    def left(self, hand: Hand) -> None:
        """A worker is gone, and wants nothing any more."""
        for at in [at for at in self._loans if at[0] is hand]:
            self._loans.pop(at).end()

    def start(self) -> None:
        """Begin to fetch and load the weights."""
        self._room.start()

    async def aclose(self) -> None:
        """End the engine."""
        await self._room.aclose()

    async def _engage(self, hand: Hand, number: int, loan: _Loan) -> None:
        try:
            loan.turn = await self._room.enter()
        except ToolgateError as error:
            self._loans.pop((hand, number), None)
            overloaded = isinstance(error, Overloaded)
            hand.say(words.Declined(number, error.message, error.code, overloaded, error.retry_after))
        else:
            hand.say(words.Engaged(number))

    def _order(self, hand: Hand, number: int, loan: _Loan, order: frames.Order) -> None:
        match order:
            case frames.Generate(id) if loan.turn is not None:
                generation = loan.generations[id] = loan.turn.engine.generate(order, lambda: None)
                self._begin(loan, self._tell(hand, number, id, generation))
            case frames.Cancel(id):
                cancelled = loan.generations.pop(id, None)
                if cancelled is not None:
                    cancelled.cancel()

    async def _tell(self, hand: Hand, number: int, id: int, generation: Generation) -> None:
        """Pass on what the engine says, under the number that the worker gave it."""
        try:
            async for told in generation:
                hand.say(words.Report(number, Raw(json.encode(structs.replace(told, id=id)))))
        except EngineFault as fault:
            hand.say(words.Broken(number, str(fault)))

    def _begin(self, loan: _Loan, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        loan.tasks.add(task)
        task.add_done_callback(loan.tasks.discard)
