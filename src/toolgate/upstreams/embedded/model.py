"""The embedded model as the gateway asks it."""

from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer
from toolgate.upstreams.embedded import plan
from toolgate.upstreams.embedded.answer import EmbeddedAnswer, Writing
from toolgate.upstreams.embedded.fetch import fetch
from toolgate.upstreams.embedded.keeper import Fetch, Options
from toolgate.upstreams.embedded.room import OwnRoom, Room
from toolgate.upstreams.embedded.state import State, Tell


class EmbeddedModel:
    """A model on this machine, in a process of its own, that answers one request at a time.

    It is fetched and loaded when it is started or first asked. `tell` hears of every change of its state; a `room` lends an
    engine that others use, too.
    """

    def __init__(
        self, options: Options, tell: Tell = lambda state: None, fetch: Fetch = fetch, room: Room | None = None
    ) -> None:
        self._options = options
        self._room = room or OwnRoom(options, tell, fetch)

    @property
    def state(self) -> State:
        """How it is doing."""
        return self._room.state

    def start(self) -> None:
        """Begin to fetch and load in the background."""
        self._room.start()

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece is written; waits for the weights, the engine and those who asked before."""
        planned = plan.make(request, self._options.max_tokens)
        turn = await self._room.enter()
        try:
            events = Writing(turn.engine, planned, self._options.model, turn.leave).events()
            first = await anext(events)
        except BaseException:
            turn.leave()
            raise
        return EmbeddedAnswer(first, events, planned.warnings)

    async def aclose(self) -> None:
        """End the engine and whatever is being fetched; nothing stays behind."""
        await self._room.aclose()
