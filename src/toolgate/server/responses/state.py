"""All that the Responses API has under way or shares between requests; it outlives any one configuration."""

from collections.abc import Callable

from toolgate.runs.host import Runs
from toolgate.runs.nodes import is_gone
from toolgate.server.fanout import Fanout
from toolgate.server.responses.background import Background, Terms
from toolgate.server.responses.locks import Occupied
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.database import Database
from toolgate.storage.locks import ConversationLocks
from toolgate.storage.responses import PastLimits, ResponseStore
from toolgate.storage.streams import StreamStore
from toolgate.telemetry.traced import Traced


class State:
    """Conversations, which of them are in use, and background responses."""

    def __init__(
        self,
        database: Database,
        store: ResponseStore,
        traced: Traced,
        runs: Runs,
        terms: Terms | None = None,
        fanout: Fanout | None = None,
        past_limits: PastLimits = PastLimits(),  # noqa: B008  # an immutable value
    ) -> None:
        self.past_limits = past_limits
        locks = ConversationLocks(database, node=runs.store.node, is_gone=is_gone)
        self.conversations = ConversationStore(database, locks)
        terms = terms or Terms()
        streams = StreamStore(database, keep_seconds=terms.stream_keep_seconds)
        self.background = Background(store, streams, runs, traced, terms, fanout)
        self._occupied = Occupied(self.conversations.locks)

    async def take(self, owner: str, conversation: str, *, wait: bool = False) -> Callable[[], None]:
        """Take a conversation for one response, which gives it back by calling what is returned.

        Conflict if another has it, unless this one is to `wait`. One that is not this owner's is for others to refuse.
        """
        if await self.conversations.load(owner, conversation) is None:
            return _nothing
        return await (self._occupied.wait(conversation) if wait else self._occupied.take(conversation))

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for background responses, then leave them to another node or the next start."""
        await self.background.aclose(seconds)
        await self._occupied.aclose()


def _nothing() -> None:
    """There is nothing to give back."""
