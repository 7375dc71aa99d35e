"""Save a response when it is complete, and in the same transaction the items that it adds to its conversation.

It is saved before the client receives its end: a fast next turn always finds it.
"""

import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from toolgate.api.responses.item_normalization import with_ids
from toolgate.conversation.call_ids import is_storable
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.responses import ResponseStore, StoredResponse, Write
from toolgate.wire.jsontext import decode

_TERMINAL = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")
_APPENDED = ("completed", "incomplete")
_LAST_SECOND = 253_402_300_799  # of the year 9999: Python's dates end there


class ContinuedRequest(Struct, frozen=True):
    """A request with the items that it continues: its body, its new items, and its conversation.

    `past` are the items before the new ones; if they are `unsaved` they are stored with the response.
    """

    owner: str
    body: dict[str, Any]
    new_items: list[Any]
    conversation: str | None = None
    past: list[Any] = []
    unsaved: bool = False

    @property
    def stored(self) -> bool:
        """Whether the response is stored for the client to read again."""
        return self.body.get("store") is not False

    @property
    def previous(self) -> str | None:
        """The response that this one continues, if that is stored."""
        previous = self.body.get("previous_response_id")
        return previous if type(previous) is str and not self.unsaved else None

    @property
    def stored_items(self) -> list[Any]:
        """The items that are stored with the response."""
        return [*self.past, *self.new_items] if self.unsaved else self.new_items


def last_response(chunk: bytes) -> dict[str, Any] | None:
    """Return the response object in the last frame of a stream, if the chunk has that."""
    # This runs for every chunk: a search is much faster than to split it into frames.
    if not any(name in chunk for name in _TERMINAL):
        return None
    for frame in chunk.split(b"\n\n"):
        if frame.startswith(_TERMINAL):
            response: dict[str, Any] = decode(frame.partition(b"\ndata: ")[2])["response"]
            return response
    return None


async def large_last_response(chunk: bytes) -> dict[str, Any] | None:
    """Return the same; that of a large chunk is decoded in a thread."""
    return last_response(chunk) if len(chunk) <= LARGE_BODY else await run_in_thread(last_response, chunk)


class FinishedResponseSaver:
    """Saves the response of one turn, and then calls `on_saved`: the next turn may come (`AnswerRecorder`)."""

    def __init__(
        self,
        store: ResponseStore,
        turn: ContinuedRequest,
        conversations: ConversationStore | None,
        on_saved: Callable[[], None],
        with_response: Callable[[str], tuple[Write, ...]] = lambda response: (),
    ) -> None:
        """`with_response` returns further writes that are made together with the response of this id."""
        self._with_response = with_response
        self._store = store
        self._turn = turn
        self._conversations = conversations
        self._on_saved = on_saved

    async def before_chunk(self, chunk: bytes) -> None:
        """Save the response if these frames complete it."""
        response = await large_last_response(chunk)
        if response is not None:
            await self.save(response)

    async def before_whole(self, body: bytes) -> None:
        await self.save(decode(body) if len(body) <= LARGE_BODY else await run_in_thread(decode, body))

    async def save(self, response: dict[str, Any], *also: Write) -> None:
        """Save the response, unless the client does not want it stored, and append its items to its conversation."""
        turn, conversations = self._turn, self._conversations
        if turn.conversation is not None and conversations is not None and response.get("status") in _APPENDED:
            response = await _with_unused_ids(response, turn, turn.conversation, conversations)
            output = response.get("output")
            items = with_ids([*turn.new_items, *(output if type(output) is list else [])])
            if turn.stored:  # in one transaction with the response
                also = (*also, conversations.appending(turn.owner, turn.conversation, items))
            else:
                await conversations.append(turn.owner, turn.conversation, items)
        if turn.stored:
            await self._store.save(to_stored(turn, response), *also, *self._with_response(response["id"]))
        self._on_saved()


async def _with_unused_ids(
    response: dict[str, Any], turn: ContinuedRequest, conversation: str, store: ConversationStore
) -> dict[str, Any]:
    """Return the response with new ids for the items whose ids its conversation has already.

    Not all upstreams make a new id for each item, and an item that is appended replaces the one of its id.
    """
    output = response.get("output")
    if type(output) is not list:
        return response
    ids = [item["id"] for item in output if is_storable(item.get("id"))]
    taken = await store.taken_ids(turn.owner, conversation, ids)
    taken |= {item["id"] for item in turn.new_items if is_storable(item.get("id"))}
    items, is_changed = [], False
    for item in output:
        if is_storable(id := item.get("id")):
            if id in taken:
                item, is_changed = {**item, "id": None}, True
            taken.add(id)
        items.append(item)
    return {**response, "output": with_ids(items)} if is_changed else response


def to_stored(turn: ContinuedRequest, response: dict[str, Any]) -> StoredResponse:
    """Return the response of a turn as it is stored."""
    created = response["created_at"]
    if type(created) not in (int, float) or not 0 <= created <= _LAST_SECOND:
        created = time.time()  # upstreams fill this field as they like, and the client gets what they sent
    return StoredResponse(response["id"], turn.owner, turn.previous, int(created), turn.stored_items, response)
