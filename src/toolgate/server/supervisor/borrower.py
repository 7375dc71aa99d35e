"""The model on this machine as a worker has it: lent by the supervisor, for one answer at a time."""

import asyncio
from collections.abc import Callable
from itertools import count

from msgspec import Raw, json, structs

from toolgate.conversation.errors import Overloaded, ToolgateError, Unavailable
from toolgate.server.supervisor import words
from toolgate.server.supervisor.foreman import Foreman
from toolgate.upstreams.embedded import frames
from toolgate.upstreams.embedded.process import EngineFault, Generation
from toolgate.upstreams.embedded.room import Turn
from toolgate.upstreams.embedded.state import State

_GONE = "The server is shutting down."


class LentEngine:
    """The engine during one turn."""

    def __init__(self, number: int, say: Callable[[words.FromWorker], None]) -> None:
        self.mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number = number
        self._say = say
        self._ids = count(1)
        self._generations: dict[int, Generation] = {}

    def generate(self, order: frames.Generate, over: Callable[[], None] = lambda: None) -> Generation:
        """Begin to write; `over` is called as soon as it is written."""
        id = next(self._ids)
        generation = self._generations[id] = Generation(self, id, over)
        self._order(structs.replace(order, id=id))
        return generation

    def forget(self, id: int) -> None:
        """Nobody listens to this answer any more."""
        if self._generations.pop(id, None) is not None:
            self._order(frames.Cancel(id))

    def hear(self, report: frames.Report) -> None:
        """Take in what the engine said."""
        match report:
            case frames.Over(id) | frames.Failed(id):
                if generation := self._generations.pop(id, None):
                    generation.hear(report)
            case frames.Said(id) | frames.Reading(id):
                if generation := self._generations.get(id):
                    generation.hear(report)

    def break_off(self, how: str) -> None:
        """The engine, or whoever lends it, has ended."""
        if not self.mine.done():
            self.mine.set_exception(Unavailable(how, status=503))
        for generation in tuple(self._generations.values()):
            generation.hear(EngineFault(how))
        self._generations.clear()

    def _order(self, order: frames.Order) -> None:
        self._say(words.Order(self._number, Raw(json.encode(order))))


class LentRoom:
    """Asks the supervisor for turns."""

    def __init__(self, foreman: Foreman, model: str) -> None:
        self._foreman = foreman
        self._model = model
        self._numbers = count(1)
        self._turns: dict[int, LentEngine] = {}
        foreman.lent = self._hear

    @property
    def state(self) -> State:
        """Only the supervisor knows how the model is doing."""
        return State("asleep", self._model, "The supervisor has it.")

    def start(self) -> None:
        """The supervisor has started it."""

    async def enter(self) -> Turn:
        """A turn with the engine, after those of all workers who asked before."""
        number = next(self._numbers)
        engine = self._turns[number] = LentEngine(number, self._foreman.say)

        def leave() -> None:
            if self._turns.pop(number, None) is not None:
                self._foreman.say(words.Release(number))

        self._foreman.say(words.Engage(number))
        try:
            await engine.mine
        except BaseException:
            leave()
            raise
        return Turn(engine, leave)

    async def aclose(self) -> None:
        """The supervisor ends it."""

    def _hear(self, message: words.Lent | None) -> None:
        """The supervisor says something of a turn; None says that it is gone."""
        if message is None:
            for one in tuple(self._turns.values()):
                one.break_off(_GONE)
            return
        engine = self._turns.get(message.turn)
        if engine is None:
            return
        match message:
            case words.Engaged() if not engine.mine.done():
                engine.mine.set_result(None)
            case words.Declined() if not engine.mine.done():
                engine.mine.set_exception(_failure(message))
            case words.Report(_, report):
                engine.hear(frames.decode_report(bytes(report)))
            case words.Broken(_, how):
                engine.break_off(how)


def _failure(said: words.Declined) -> ToolgateError:
    if said.overloaded:
        return Overloaded(said.message, code=said.code or "upstream_full", retry_after=said.retry_after)
    return Unavailable(said.message, status=503)
