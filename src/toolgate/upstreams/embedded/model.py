"""The embedded model as the gateway asks it."""

from msgspec.structs import replace

from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer
from toolgate.upstreams.embedded import plan
from toolgate.upstreams.embedded.answer import EmbeddedAnswer, Writing
from toolgate.upstreams.embedded.fetch import fetch
from toolgate.upstreams.embedded.keeper import Fetch, Keeper, Options
from toolgate.upstreams.embedded.line import Line
from toolgate.upstreams.embedded.state import State, Tell


class EmbeddedModel:
    """A model on this machine, in a process of its own, that answers one request at a time.

    It is fetched and loaded when it is started or first asked. `tell` hears of every change of its state.
    """

    def __init__(self, options: Options, tell: Tell = lambda state: None, fetch: Fetch = fetch) -> None:
        self._options = options
        self._keeper = Keeper(options, tell, fetch)
        self._line = Line(options.queue, options.wait)

    @property
    def state(self) -> State:
        """How it is doing."""
        return replace(self._keeper.state, waiting=self._line.waiting)

    def start(self) -> None:
        """Begin to fetch and load in the background."""
        self._keeper.start()

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece is written; waits for the weights, the engine and those who asked before."""
        planned = plan.make(request, self._options.max_tokens)
        await self._keeper.engine()  # nobody stands in line for an engine that is not there
        ticket = await self._line.enter()
        try:
            writing = Writing(await self._keeper.engine(), planned, self._options.model, ticket.leave)
            events = writing.events()
            first = await anext(events)
        except BaseException:
            ticket.leave()
            raise
        return EmbeddedAnswer(first, events, planned.warnings)

    async def aclose(self) -> None:
        """End the engine and whatever is being fetched; nothing stays behind."""
        await self._keeper.aclose()
