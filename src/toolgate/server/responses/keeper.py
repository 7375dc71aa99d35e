"""Keeping a response when it is complete, and with it, in one go, what it adds to its conversation.

It is kept before the client hears that it is complete: a fast next turn always finds it.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from toolgate.server.responses.items import with_ids
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.responses import ResponseStore, StoredResponse, Write

_TERMINAL = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")
_ADDED_TO = ("completed", "incomplete")
_LAST_SECOND = 253_402_300_799  # of the year 9999


class Turn(Struct, frozen=True):
    """A request with its past in front of it: what is asked, the items that are new, and what it belongs to.

    `past` are the items before those; `unsaved` says that they are stored nowhere, so that they are kept with the response.
    """

    owner: str
    body: dict[str, Any]
    new_items: list[Any]
    conversation: str | None = None
    past: list[Any] = []
    unsaved: bool = False

    @property
    def stored(self) -> bool:
        """Whether the client may ask for the response again."""
        return self.body.get("store") is not False

    @property
    def previous(self) -> str | None:
        """The response that this one continues, where it can be found again."""
        previous = self.body.get("previous_response_id")
        return previous if type(previous) is str and not self.unsaved else None

    @property
    def kept_items(self) -> list[Any]:
        """The items that are stored with the response."""
        return [*self.past, *self.new_items] if self.unsaved else self.new_items


def last_response(chunk: bytes) -> dict[str, Any] | None:
    """The response as the frames tell it at its end, if they do."""
    if not any(name in chunk for name in _TERMINAL):
        return None
    for frame in chunk.split(b"\n\n"):
        if frame.startswith(_TERMINAL):
            response: dict[str, Any] = msgspec.json.decode(frame.partition(b"\ndata: ")[2])["response"]
            return response
    return None


class Keeper:
    """Keeps the response of one turn, and calls `on_kept` when that is done: the next turn may come."""

    def __init__(
        self,
        store: ResponseStore,
        turn: Turn,
        conversations: ConversationStore | None,
        on_kept: Callable[[], None],
    ) -> None:
        self._store = store
        self._turn = turn
        self._conversations = conversations
        self._on_kept = on_kept

    async def before_chunk(self, chunk: bytes) -> None:
        """Called before frames go out; those that complete the response are looked into."""
        response = last_response(chunk)
        if response is not None:
            await self.keep(response)

    async def before_whole(self, body: bytes) -> None:
        """Called before a whole response goes out."""
        await self.keep(msgspec.json.decode(body))

    async def keep(self, response: dict[str, Any], *also: Write) -> None:
        """Keep the response, unless the client wants none of it kept, and add to the conversation, if it has one."""
        turn = self._turn
        if turn.stored:
            await self._store.save(self.record(response), *also, *self._additions(response))
        elif turn.conversation is not None and self._conversations is not None and _is_added(response):
            await self._conversations.append(turn.owner, turn.conversation, _said(turn, response))
        self._on_kept()

    def record(self, response: dict[str, Any]) -> StoredResponse:
        """The response as it is stored."""
        turn = self._turn
        created = response["created_at"]
        if type(created) not in (int, float) or not 0 <= created <= _LAST_SECOND:
            created = time.time()  # an upstream's own word is passed on as it is
        return StoredResponse(response["id"], turn.owner, turn.previous, int(created), turn.kept_items, response)

    def _additions(self, response: dict[str, Any]) -> list[Write]:
        turn = self._turn
        if turn.conversation is None or self._conversations is None or not _is_added(response):
            return []
        return [self._conversations.appending(turn.owner, turn.conversation, _said(turn, response))]


def _is_added(response: dict[str, Any]) -> bool:
    return response.get("status") in _ADDED_TO


def _said(turn: Turn, response: dict[str, Any]) -> list[dict[str, Any]]:
    output = response.get("output")
    return with_ids([*turn.new_items, *(output if type(output) is list else [])])
