"""Where the engine is: who has it at the moment, and who has it next. Knows nothing of what it is asked.

There is one engine on a machine, so that another room than this may be one that asks for a turn elsewhere.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.upstreams.embedded import frames
from toolgate.upstreams.embedded.fetch import fetch
from toolgate.upstreams.embedded.keeper import Fetch, Keeper, Options
from toolgate.upstreams.embedded.line import Line
from toolgate.upstreams.embedded.state import State, Tell


class Generation(Protocol):
    """One text that is being written."""

    def __aiter__(self) -> AsyncIterator[frames.Told]:
        """What is told of it, the last being `Over` or `Failed`; EngineFault if the engine ends before."""

    def cancel(self) -> None:
        """Have it stopped, unless it is over."""


class Engine(Protocol):
    """Something that writes."""

    def generate(self, order: frames.Generate, over: Callable[[], None]) -> Generation:
        """Begin to write; `over` is called as soon as it is written."""


class Turn(Struct, frozen=True):
    """The engine, for one answer; it must be left, and may be more than once."""

    engine: Engine
    leave: Callable[[], None]


class Room(Protocol):
    """Lends the engine, one turn at a time."""

    @property
    def state(self) -> State:
        """How the model is doing."""

    def start(self) -> None:
        """Begin to fetch and load in the background."""

    async def enter(self) -> Turn:
        """A turn with the engine, after those who asked before; Overloaded or Unavailable if it cannot be had."""

    async def aclose(self) -> None:
        """Let go of it."""


class OwnRoom:
    """The engine in a process that this one has started."""

    def __init__(self, options: Options, tell: Tell = lambda state: None, fetch: Fetch = fetch) -> None:
        self._keeper = Keeper(options, tell, fetch)
        self._line = Line(options.queue, options.wait)

    @property
    def state(self) -> State:
        """How the model is doing, and how many wait for it."""
        return replace(self._keeper.state, waiting=self._line.waiting)

    def start(self) -> None:
        """Begin to fetch and load in the background."""
        self._keeper.start()

    async def enter(self) -> Turn:
        """A turn with the engine, after those who asked before."""
        await self._keeper.engine()  # nobody stands in line for an engine that is not there
        ticket = await self._line.enter()
        try:
            return Turn(await self._keeper.engine(), ticket.leave)
        except BaseException:
            ticket.leave()
            raise

    async def aclose(self) -> None:
        """End the engine and whatever is being fetched; nothing stays behind."""
        await self._keeper.aclose()
