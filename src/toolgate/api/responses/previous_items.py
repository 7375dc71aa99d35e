"""Load the items that a request continues: earlier responses, its conversation, and items that it refers to by id."""

from typing import Any

from toolgate.api.responses.background import is_running
from toolgate.api.responses.compaction import is_compaction, with_summaries
from toolgate.api.responses.conversations_and_background import ConversationsAndBackground
from toolgate.api.responses.item_normalization import text_message
from toolgate.api.responses.save import ContinuedRequest
from toolgate.api.responses.unstored import WebSocketUnstoredResponses
from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.storage.responses import HistoryLimits, ResponseStore, StoredResponse

# A reference has a few bytes and may stand for megabytes: a small request must not make the server read without end.
MAX_REFERENCES = 1000


class PreviousItemLoader:
    """Loads the items before a request; without `state` there are no conversations."""

    def __init__(self, store: ResponseStore, state: ConversationsAndBackground | None) -> None:
        self._store = store
        self._state = state
        self._limits = state.past_limits if state is not None else HistoryLimits()

    async def turn(
        self, body: dict[str, Any], owner: str, memory: WebSocketUnstoredResponses | None = None
    ) -> ContinuedRequest:
        """Return the request with the items that it continues; those of an unstored response are in the socket's memory."""
        given = _items(body.get("input"))
        new_items = await self.resolve(given, owner)
        if new_items is not given:
            body = {**body, "input": new_items}
        conversation = conversation_of(body)
        unstored = await memory.recall(body.get("previous_response_id")) if memory else None
        if conversation is not None:
            if self._state is None:
                raise InvalidRequest("conversation objects are not offered by this server.", param="conversation")
            if await self._state.conversations.load(owner, conversation) is None:
                raise unknown_conversation(conversation)
            earlier = await self._state.conversations.items(owner, conversation, self._limits)
        elif unstored is not None:  # before the database, which does not have it
            earlier = unstored
        elif body.get("previous_response_id") is not None:
            earlier = await self._chain(owner, body["previous_response_id"])
        elif not any(is_compaction(item) for item in new_items):
            # It continues nothing: the body stays as the client sent it.
            return ContinuedRequest(owner, body, new_items)
        else:
            earlier = []
        self._limits.check(0, len(earlier), "What this request continues", "previous_response_id")
        body = {**body, "input": with_summaries([*earlier, *new_items])}
        return ContinuedRequest(owner, body, new_items, conversation, earlier, unsaved=unstored is not None)

    async def items(self, body: dict[str, Any], owner: str) -> list[Any]:
        """Return all items of a request and of what it continues, as they are stored."""
        new_items = await self.resolve(_items(body.get("input")), owner)
        if body.get("previous_response_id") is None:
            return new_items
        return [*await self._chain(owner, body["previous_response_id"]), *new_items]

    async def before(self, response: StoredResponse) -> list[Any]:
        """Return the items of all turns that a response continues; none if they were deleted meanwhile."""
        if response.previous is None:
            return []
        chain = await self._store.chain(response.owner, response.previous, self._limits)
        return [item for turn in chain for item in (*turn.input, *turn.body["output"])]

    async def before_in_conversation(self, response: StoredResponse) -> list[Any]:
        """Return the items of a response's conversation before it; all of them if the conversation does not hold it."""
        conversation = conversation_id(response.body)
        if conversation is None or self._state is None:
            return []
        items = await self._state.conversations.items(response.owner, conversation, self._limits)
        # The response's input stands right before its output: both were appended together.
        ids = {item.get("id") for item in response.body["output"]}
        places = [place for place, item in enumerate(items) if item["id"] in ids]
        return items[: max(0, places[0] - len(response.input))] if places else items

    async def resolve(self, items: list[Any], owner: str) -> list[Any]:
        """Return the items with the stored ones in place of references; an unknown one is left for the dialect to refuse.

        References are counted before they are read, and read together.
        """
        named = [item["id"] for item in items if is_reference(item)]
        if not named:
            return items
        if len(named) > MAX_REFERENCES:
            raise InvalidRequest(
                f"input may hold at most {MAX_REFERENCES} item references, not {len(named)}.",
                param="input",
                code="array_above_max_length",
            )
        ids = list(dict.fromkeys(named))
        found = await self._store.items(owner, ids, self._limits)
        missing = [id for id in ids if id not in found]
        if missing and self._state is not None:
            found |= await self._state.conversations.named(owner, missing, self._limits)
        # An item that is named twice is sent to the model twice, and counts twice.
        size = sum(found[id][1] for id in named if id in found)
        self._limits.check(size, 0, "What the item references name", "input")
        return [found[item["id"]][0] if is_reference(item) and item["id"] in found else item for item in items]

    async def _chain(self, owner: str, previous: Any) -> list[Any]:
        chain = await self._store.chain(owner, previous, self._limits) if type(previous) is str else []
        if not chain:
            # A chain is empty if any of it is missing: the client should know whether this response is, or an earlier one.
            there = type(previous) is str and await self._store.load(owner, previous) is not None
            raise InvalidRequest(
                f"The response {str(previous)[:100]!r} "
                + ("cannot be continued: one that it continues was deleted." if there else "was not found."),
                param="previous_response_id",
                code="previous_response_not_found",
            )
        # A background response may have ended since the chain was read, or may run on another node.
        if is_running(chain[-1]) and self._state is not None:
            chain[-1] = await self._state.background.current(chain[-1])
        if is_running(chain[-1]):
            raise InvalidRequest(
                f"The response {previous!r} has not ended yet, so that it cannot be continued.",
                param="previous_response_id",
                code="previous_response_not_completed",
            )
        first, *later = chain
        return [
            *await self._start_of_chain(first),
            *[item for turn in later for item in (*turn.input, *turn.body["output"])],
        ]

    async def _start_of_chain(self, turn: StoredResponse) -> list[Any]:
        """Return the items of the first response of a chain, after those of its conversation by then, if it has one."""
        own = [*turn.input, *turn.body["output"]]
        conversation = conversation_id(turn.body)
        if conversation is None or self._state is None:
            return own
        # The items before it are stored in the conversation alone; those that were added later do not belong to it.
        items = await self._state.conversations.items(turn.owner, conversation, self._limits)
        ids = {item.get("id") for item in turn.body["output"]}
        places = [place for place, item in enumerate(items) if item["id"] in ids]
        if not places:
            raise InvalidRequest(
                f"The response {turn.id!r} was made in the conversation {conversation!r}, where it is no more.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return items[: places[-1] + 1]


def conversation_of(body: dict[str, Any]) -> str | None:
    """Return the id of the conversation that a request names."""
    if body.get("conversation") is None:
        return None
    if body.get("previous_response_id") is not None:
        raise InvalidRequest(
            "conversation and previous_response_id cannot be used together.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    id = conversation_id(body)
    if id is None:
        raise InvalidRequest(
            "conversation must be an id or an object with an id.", param="conversation", code="invalid_type"
        )
    return id


def conversation_id(body: dict[str, Any]) -> str | None:
    """Return the id of the conversation that a request or a response is part of."""
    match body.get("conversation"):
        case str(id) | {"id": str(id)} if id:
            return id
        case _:
            return None


def unknown_conversation(id: str) -> NotFound:
    """Return the same error for a conversation that does not exist and for one of another caller."""
    return NotFound(
        f"The conversation {id[:100]!r} was not found.", param="conversation", code="conversation_not_found"
    )


def is_reference(item: Any) -> bool:
    """Return whether an item of a request names a stored one."""
    match item:
        case {"id": str(), "type": "item_reference"}:
            return True
        case {"id": str()}:  # the API lets clients leave out the type of a reference; a message has a role
            return "type" not in item and "role" not in item
        case _:
            return False


def _items(value: Any) -> list[Any]:
    """Return the input as a list of items; what is neither text nor list is left for the dialect to refuse."""
    if type(value) is str:
        return [text_message(value)]
    return value if type(value) is list else []
