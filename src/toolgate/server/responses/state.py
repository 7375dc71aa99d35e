"""All that the Responses API has under way or shares between requests; it outlives any one configuration."""

from collections.abc import Callable

from toolgate.conversation.errors import Conflict
from toolgate.runs.host import Runs
from toolgate.server.responses.background import Background, Terms
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.database import Database
from toolgate.storage.responses import ResponseStore
from toolgate.storage.streams import StreamStore
from toolgate.telemetry.traced import Traced


class State:
    """Conversations, which of them are in use, and background responses."""

    def __init__(
        self, database: Database, store: ResponseStore, traced: Traced, runs: Runs, terms: Terms | None = None
    ) -> None:
        self.conversations = ConversationStore(database)
        terms = terms or Terms()
        streams = StreamStore(database, keep_seconds=terms.stream_keep_seconds)
        self.background = Background(store, streams, runs, traced, terms)
        self._in_use: set[tuple[str, str]] = set()

    def take(self, owner: str, conversation: str) -> Callable[[], None]:
        """Take a conversation for one response, which gives it back by calling what is returned."""
        key = (owner, conversation)
        if key in self._in_use:
            raise Conflict(
                f"Another response is being made in the conversation {conversation!r}; try again when it has ended.",
                param="conversation",
                code="conversation_locked",
                retry_after=1,
            )
        self._in_use.add(key)
        mine = [key]  # given back once, lest it be taken from whoever has it next
        return lambda: self._in_use.discard(mine.pop()) if mine else None

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for background responses, then leave them to another node or the next start."""
        await self.background.aclose(seconds)
