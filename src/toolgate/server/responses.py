"""What the Responses API remembers: answers by id, and the conversation that `previous_response_id` continues.

A request that continues another is completed before its dialect reads it: the items of the earlier turns are put in front
of its own, and an item that is only named is put in full. What is kept is the response as it was told, so that GET gives
what the stream gave, and it is kept before the client hears that it is complete: a fast next turn always finds it.
"""

from typing import Any

import msgspec

from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.dialects.dialect import Dialect
from toolgate.server.app import Call
from toolgate.server.endpoints import Conversations
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.wire.jsontext import encode

_TERMINAL = (b"event: response.completed\n", b"event: response.incomplete\n", b"event: response.failed\n")


class Responses:
    """The Responses endpoints."""

    def __init__(self, conversations: Conversations, store: ResponseStore, dialect: Dialect) -> None:
        self._conversations = conversations
        self._store = store
        self._dialect = dialect

    async def create(self, call: Call) -> None:
        """Answer a Responses request, whole or streamed."""
        body = await call.exchange.json()
        body, new_items = await self._continued(body, call.caller.name)
        question = await self._conversations.question(call, self._dialect, self._dialect.server, body)
        keeper = _Keeper(self._store, call.caller.name, body, new_items) if body.get("store") is not False else None
        await self._conversations.answer(question, keeper)

    async def retrieve(self, call: Call) -> None:
        """Tell a kept response again."""
        kept = await self._find(call)
        await call.exchange.respond(200, encode(kept.body))

    async def delete(self, call: Call) -> None:
        """Forget a kept response."""
        if not await self._store.delete(call.caller.name, call.arguments[0]):
            raise _unknown(call.arguments[0])
        await call.exchange.respond(200, encode({"id": call.arguments[0], "object": "response", "deleted": True}))

    async def cancel(self, call: Call) -> None:
        """Cancel a response that runs in the background."""
        await self._find(call)
        raise InvalidRequest("Only a background response can be cancelled, and this one is complete.")

    async def input_items(self, call: Call) -> None:
        """List the items that a kept response answered, newest first."""
        kept = await self._find(call)
        chain = await self._store.chain(call.caller.name, kept.id)
        items = [
            item
            for turn in chain
            for item in (turn.input if turn.id == kept.id else [*turn.input, *turn.body["output"]])
        ]
        listed = [{"id": f"item_{kept.id[5:]}_{number}", **item} for number, item in enumerate(items)][::-1]
        ends = (
            {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]}
            if listed
            else {"first_id": None, "last_id": None}
        )
        await call.exchange.respond(200, encode({"object": "list", "data": listed, **ends, "has_more": False}))

    async def _find(self, call: Call) -> StoredResponse:
        kept = await self._store.load(call.caller.name, call.arguments[0])
        if kept is None:
            raise _unknown(call.arguments[0])
        return kept

    async def _continued(self, body: Any, owner: str) -> tuple[dict[str, Any], list[Any]]:
        """The body with the earlier turns in front of its input, and the items that are new in it."""
        if type(body) is not dict:
            raise InvalidRequest("The body must be an object.")
        if body.get("background") is True:
            raise InvalidRequest("background responses are not offered by this server.", param="background")
        if body.get("conversation") is not None:
            raise InvalidRequest("conversation objects are not offered by this server.", param="conversation")
        new_items = _items(body.get("input"))
        if any(_is_reference(item) for item in new_items):
            new_items = [await self._meant(item, owner) for item in new_items]
            body = {**body, "input": new_items}
        previous = body.get("previous_response_id")
        if previous is None:
            return body, new_items
        chain = await self._store.chain(owner, previous) if type(previous) is str else []
        if not chain:
            raise InvalidRequest(
                f"The response {str(previous)[:100]!r} was not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        earlier = [item for turn in chain for item in (*turn.input, *turn.body["output"])]
        return {**body, "input": [*earlier, *new_items]}, new_items

    async def _meant(self, item: Any, owner: str) -> Any:
        """The kept item that a reference names; one that names nothing is left for the dialect to refuse."""
        return (await self._store.item(owner, item["id"]) or item) if _is_reference(item) else item


def _is_reference(item: Any) -> bool:
    match item:
        case {"id": str(), "type": "item_reference"}:
            return True
        case {"id": str()}:
            return "type" not in item and "role" not in item
        case _:
            return False


def _items(value: Any) -> list[Any]:
    """The input as a list of items; what is neither text nor list is left for the dialect to refuse."""
    if type(value) is str:
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    return value if type(value) is list else []


def _unknown(id: str) -> NotFound:
    return NotFound(f"The response {id[:100]!r} was not found.", param="response_id", code="response_not_found")


class _Keeper:
    """Keeps one response when it is complete."""

    def __init__(self, store: ResponseStore, owner: str, body: dict[str, Any], new_items: list[Any]) -> None:
        self._store = store
        self._owner = owner
        self._previous = body.get("previous_response_id")
        self._items = new_items

    async def before_chunk(self, chunk: bytes) -> None:
        """Called before frames go out; those that complete the response are looked into."""
        if not any(name in chunk for name in _TERMINAL):
            return
        for frame in chunk.split(b"\n\n"):
            if frame.startswith(_TERMINAL):
                event = msgspec.json.decode(frame.partition(b"\ndata: ")[2])
                await self._keep(event["response"])

    async def before_whole(self, body: bytes) -> None:
        """Called before a whole response goes out."""
        await self._keep(msgspec.json.decode(body))

    async def _keep(self, response: dict[str, Any]) -> None:
        created = int(response["created_at"])
        await self._store.save(
            StoredResponse(response["id"], self._owner, self._previous, created, self._items, response)
        )
