"""Conversation objects at /v1/conversations: made, read, changed, forgotten, and their items.

A caller sees its own conversations; to anybody else they do not exist. What is said in one is read by the Responses
dialect before it is kept, so that no later request stumbles over it.
"""

import time
from typing import Any

from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.conversation.ids import mint
from toolgate.dialects.openai_responses import DIALECT
from toolgate.dialects.openai_responses.items import InputReader
from toolgate.engine.offload import off_loop
from toolgate.server.app import Call, Endpoint
from toolgate.server.responses.items import with_ids
from toolgate.server.responses.paging import listed, read_page, unknown_cursor
from toolgate.server.responses.state import State
from toolgate.server.responses.turns import Past, unknown_conversation
from toolgate.storage.conversations import StoredConversation
from toolgate.storage.responses import ResponseStore
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

MOST_ITEMS = 20
"""That one request may add."""

_MOST_NOTES, _LONGEST_NAME, _LONGEST_NOTE = 16, 64, 512


class ConversationObjects:
    """The endpoints of conversations and their items."""

    def __init__(self, store: ResponseStore, state: State) -> None:
        self._kept = state.conversations
        self._state = state
        self._past = Past(store, state)

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        words = DIALECT.server
        return [
            Endpoint("POST", "/v1/conversations", self.create, words),
            Endpoint("POST", "/v1/conversations/{}/items", self.add_items, words),
            Endpoint("GET", "/v1/conversations/{}/items", self.list_items, words),
            Endpoint("GET", "/v1/conversations/{}/items/{}", self.show_item, words),
            Endpoint("DELETE", "/v1/conversations/{}/items/{}", self.delete_item, words),
            Endpoint("GET", "/v1/conversations/{}", self.show, words),
            Endpoint("POST", "/v1/conversations/{}", self.update, words),
            Endpoint("DELETE", "/v1/conversations/{}", self.delete, words),
        ]

    async def create(self, call: Call) -> None:
        """Make a conversation, perhaps with its first items."""
        fields = Fields(await call.exchange.optional_json())
        metadata, given = _metadata(fields), _given(fields)
        items = await self._items(given, call.caller.name)
        made = StoredConversation("conv_" + mint(48), call.caller.name, int(time.time()), metadata)
        await self._kept.create(made, items)
        await call.exchange.respond(200, encode(_shown(made)))

    async def show(self, call: Call) -> None:
        """Tell about a conversation."""
        await call.exchange.respond(200, encode(_shown(await self._find(call))))

    async def update(self, call: Call) -> None:
        """Change what is noted about a conversation."""
        found = await self._find(call)
        fields = Fields(await call.exchange.json())
        fields.require("metadata")
        metadata = _metadata(fields)
        fields.no_more()
        await self._kept.update(found.owner, found.id, metadata)
        changed = StoredConversation(found.id, found.owner, found.created, metadata)
        await call.exchange.respond(200, encode(_shown(changed)))

    async def delete(self, call: Call) -> None:
        """Forget a conversation and its items."""
        id = call.arguments[0]
        if not await self._kept.delete(call.caller.name, id):
            raise unknown_conversation(id)
        await call.exchange.respond(200, encode({"id": id, "object": "conversation.deleted", "deleted": True}))

    async def add_items(self, call: Call) -> None:
        """Add items at the end, and tell them with their ids; not while a response is being made there."""
        found = await self._find(call)
        fields = Fields(await call.exchange.json())
        fields.require("items")
        given = _given(fields)
        release = await self._state.take(found.owner, found.id)
        try:
            items = await self._items(given, found.owner)
            added = await self._kept.append(found.owner, found.id, items)
        finally:
            release()
        if not added:
            raise unknown_conversation(found.id)
        await call.exchange.respond(200, encode(listed(items, MOST_ITEMS)))

    async def list_items(self, call: Call) -> None:
        """List items, newest first unless `order` says otherwise."""
        found, page = await self._find(call), read_page(call.exchange.query)
        if page.after is not None and await self._kept.item(found.owner, found.id, page.after) is None:
            raise unknown_cursor(page.after)
        limit = await self._kept.fitting(found.owner, found.id, page.order, page.after, page.limit)
        items = await self._kept.page(found.owner, found.id, page.order, page.after, limit + 1)
        await call.exchange.respond(200, encode(listed(items, limit)))

    async def show_item(self, call: Call) -> None:
        """Tell one item."""
        id, item = call.arguments
        found = await self._kept.item(call.caller.name, id, item)
        if found is None:
            raise _unknown_item(item)
        await call.exchange.respond(200, encode(found))

    async def delete_item(self, call: Call) -> None:
        """Take one item out, and tell the conversation that is left."""
        conversation, item = await self._find(call), call.arguments[1]
        if not await self._kept.remove(conversation.owner, conversation.id, item):
            raise _unknown_item(item)
        await call.exchange.respond(200, encode(_shown(conversation)))

    async def _find(self, call: Call) -> StoredConversation:
        found = await self._kept.load(call.caller.name, call.arguments[0])
        if found is None:
            raise unknown_conversation(call.arguments[0])
        return found

    async def _items(self, given: list[Any], owner: str) -> list[dict[str, Any]]:
        """The items with what they refer to, and with ids, once the dialect could read them."""
        meant = await self._past.resolved(given, owner)
        await off_loop(_check_items, meant)
        return with_ids(meant)


def _check_items(items: list[dict[str, Any]]) -> None:
    """Refuse items that the dialect cannot read."""
    for number, item in enumerate(items):
        InputReader().read(Fields(item, f"items[{number}]"))


def _shown(conversation: StoredConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": conversation.metadata,
    }


def _given(fields: Fields) -> list[Any]:
    """The items of a body, which says nothing else that was not read."""
    items = fields.items("items") or []
    fields.no_more()
    if len(items) > MOST_ITEMS:
        raise InvalidRequest(
            f"items may hold at most {MOST_ITEMS} items, not {len(items)}.",
            param="items",
            code="array_above_max_length",
        )
    return items


def _metadata(fields: Fields) -> dict[str, str]:
    metadata = fields.mapping("metadata") or {}
    if len(metadata) > _MOST_NOTES:
        raise InvalidRequest(f"metadata may hold at most {_MOST_NOTES} pairs.", param="metadata")
    for name, value in metadata.items():
        if type(value) is not str or len(name) > _LONGEST_NAME or len(value) > _LONGEST_NOTE:
            raise InvalidRequest(
                f"metadata takes names of at most {_LONGEST_NAME} and strings of at most {_LONGEST_NOTE} characters.",
                param=f"metadata.{name[:_LONGEST_NAME]}",
            )
    return metadata


def _unknown_item(id: str) -> NotFound:
    return NotFound(f"The item {id[:100]!r} was not found.", param="item_id", code="item_not_found")
