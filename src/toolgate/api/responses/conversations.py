"""Serve conversation objects at /v1/conversations: create, read, change and delete them and their items.

A caller sees its own conversations; for others they do not exist. Items are decoded by the Responses dialect before they
are stored, so that no later request fails on them.
"""

import time
from typing import Any

from toolgate.api.encode_json import encode_json
from toolgate.api.metadata import read_metadata
from toolgate.api.paging import list_all, list_page, read_page, unknown_cursor
from toolgate.api.responses.conversations_and_background import ConversationsAndBackground
from toolgate.api.responses.item_normalization import with_ids
from toolgate.api.responses.previous_items import PreviousItemLoader, is_reference, unknown_conversation
from toolgate.conversation.call_ids import MAX_STORED
from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.conversation.random_ids import random_suffix
from toolgate.dialects.openai_responses import DIALECT
from toolgate.dialects.openai_responses.input_items import InputItemDecoder
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.storage.conversations import StoredConversation
from toolgate.storage.responses import ResponseStore
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

# The limit of OpenAI on items that one request may add.
MAX_ITEMS = 20


class ConversationEndpoints:
    """The endpoints of conversations and their items."""

    def __init__(self, store: ResponseStore, state: ConversationsAndBackground) -> None:
        self._store = state.conversations
        self._state = state
        self._previous = PreviousItemLoader(store, state)

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        codec = DIALECT.server
        return [
            HttpRoute("POST", "/v1/conversations", self.create, codec),
            HttpRoute("POST", "/v1/conversations/{}/items", self.add_items, codec),
            HttpRoute("GET", "/v1/conversations/{}/items", self.list_items, codec),
            HttpRoute("GET", "/v1/conversations/{}/items/{}", self.show_item, codec),
            HttpRoute("DELETE", "/v1/conversations/{}/items/{}", self.delete_item, codec),
            HttpRoute("GET", "/v1/conversations/{}", self.show, codec),
            HttpRoute("POST", "/v1/conversations/{}", self.update, codec),
            HttpRoute("DELETE", "/v1/conversations/{}", self.delete, codec),
        ]

    async def create(self, call: AdmittedHttpRequest) -> None:
        """Create a conversation, perhaps with its first items."""
        fields = Fields(await call.exchange.optional_json())
        metadata, given = read_metadata(fields), _read_items(fields)
        for number, item in enumerate(given):
            # A request of a few bytes would copy megabytes, of which the client sees nothing.
            if is_reference(item):
                raise InvalidRequest(
                    "A new conversation cannot begin with references to items; add those with POST …/items.",
                    param=f"items[{number}]",
                )
        items = await self._items(given, call.caller.name)
        created = StoredConversation("conv_" + random_suffix(48), call.caller.name, int(time.time()), metadata)
        await self._store.create(created, items)
        await call.exchange.respond(200, encode(_to_json(created)))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return a conversation."""
        await call.exchange.respond(200, encode(_to_json(await self._find(call))))

    async def update(self, call: AdmittedHttpRequest) -> None:
        """Change the metadata of a conversation."""
        found = await self._find(call)
        fields = Fields(await call.exchange.json())
        fields.require("metadata")
        metadata = read_metadata(fields)
        fields.refuse_unknown()
        await self._store.update(found.owner, found.id, metadata)
        changed = StoredConversation(found.id, found.owner, found.created, metadata)
        await call.exchange.respond(200, encode(_to_json(changed)))

    async def delete(self, call: AdmittedHttpRequest) -> None:
        """Delete a conversation and its items."""
        id = call.arguments[0]
        if not await self._store.delete(call.caller.name, id):
            raise unknown_conversation(id)
        await call.exchange.respond(200, encode({"id": id, "object": "conversation.deleted", "deleted": True}))

    async def add_items(self, call: AdmittedHttpRequest) -> None:
        """Append items and return them with their ids; Conflict while a response is being made there."""
        found = await self._find(call)
        fields = Fields(await call.exchange.json())
        fields.require("items")
        given = _read_items(fields)
        # A response that is being made has read the items already: it would be made without these.
        unlock = await self._state.lock_conversation(found.owner, found.id)
        try:
            items = await self._items(given, found.owner)
            added = await self._store.append(found.owner, found.id, items)
        finally:
            unlock()
        if not added:  # it was deleted meanwhile
            raise unknown_conversation(found.id)
        await call.exchange.respond(200, await encode_json(list_all(items)))

    async def list_items(self, call: AdmittedHttpRequest) -> None:
        """List items, newest first unless `order` is given."""
        found, page = await self._find(call), read_page(call.exchange.query)
        if page.after is not None and await self._store.item(found.owner, found.id, page.after) is None:
            raise unknown_cursor(page.after)
        # As many items as a page may hold by their size, and one more, which only shows that there is another page.
        limit = await self._store.fitting(found.owner, found.id, page.order, page.after, page.limit)
        items = await self._store.page(found.owner, found.id, page.order, page.after, limit + 1)
        await call.exchange.respond(200, await run_in_thread(lambda: encode(list_page(items, limit))))

    async def show_item(self, call: AdmittedHttpRequest) -> None:
        """Return one item."""
        id, item = call.arguments
        found = await self._store.item(call.caller.name, id, item)
        if found is None:
            raise _unknown_item(item)
        await call.exchange.respond(200, await encode_json(found))

    async def delete_item(self, call: AdmittedHttpRequest) -> None:
        """Delete one item and return its conversation."""
        conversation, item = await self._find(call), call.arguments[1]
        if not await self._store.remove(conversation.owner, conversation.id, item):
            raise _unknown_item(item)
        await call.exchange.respond(200, encode(_to_json(conversation)))

    async def _find(self, call: AdmittedHttpRequest) -> StoredConversation:
        found = await self._store.load(call.caller.name, call.arguments[0])
        if found is None:
            raise unknown_conversation(call.arguments[0])
        return found

    async def _items(self, given: list[Any], owner: str) -> list[dict[str, Any]]:
        """Return the items with ids, references resolved, once the dialect could decode them."""
        items = await self._previous.resolve(given, owner)
        await run_in_thread(_check_items, items)
        return with_ids(items)  # after the check, which names an id that is too long; `with_ids` would replace it


def _check_items(items: list[dict[str, Any]]) -> None:
    """Raise if the dialect cannot decode an item, or the item cannot be stored by its id."""
    for number, item in enumerate(items):
        InputItemDecoder().decode(Fields(item, f"items[{number}]"))
        if type(id := item.get("id")) is str and len(id) > MAX_STORED:
            raise InvalidRequest(f"An id may have at most {MAX_STORED} characters.", param=f"items[{number}].id")


def _to_json(conversation: StoredConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created,
        "metadata": conversation.metadata,
    }


def _read_items(fields: Fields) -> list[Any]:
    """Return the items of a body that has no other fields left."""
    items = fields.items("items") or []
    fields.refuse_unknown()
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(
            f"items may hold at most {MAX_ITEMS} items, not {len(items)}.",
            param="items",
            code="array_above_max_length",
        )
    return items


def _unknown_item(id: str) -> NotFound:
    return NotFound(f"The item {id[:100]!r} was not found.", param="item_id", code="item_not_found")
