"""Stored chat completions, as OpenAI has them: what a client asked to `store` it may list, read, note on and delete."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.conversation.events import Usage
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_chat.words import write_usage
from toolgate.server.app import Call, Endpoint
from toolgate.server.records.chat_list import cursor_of, place_of
from toolgate.server.responses.paging import Page, listed, read_page, read_query, unknown_cursor
from toolgate.storage.chats import ChatStore, StoredCompletion, StoredMessage
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_AT_ONCE = 100
_MOST_NOTES = 16


class Completions:
    """The endpoints below /v1/chat/completions that ask no model."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        words = OPENAI_CHAT.server
        return [
            Endpoint("GET", "/v1/chat/completions", self.list, words),
            Endpoint("GET", "/v1/chat/completions/{}/messages", self.messages, words),
            Endpoint("GET", "/v1/chat/completions/{}", self.show, words),
            Endpoint("POST", "/v1/chat/completions/{}", self.update, words),
            Endpoint("DELETE", "/v1/chat/completions/{}", self.delete, words),
        ]

    async def list(self, call: Call) -> None:
        """List stored completions, oldest first unless `order` says otherwise; `model` and `metadata[…]` narrow it."""
        query = call.exchange.query
        page, said = _page(query), dict(parse_qsl(query))
        noted = {name[9:-1]: value for name, value in said.items() if name.startswith("metadata[")}
        found = await self._matching(call.caller.name, page, said.get("model"), noted)
        told = [await self._told(one) for one in found[: page.limit]]
        await call.exchange.respond(200, encode({**listed(told, page.limit), "has_more": len(found) > page.limit}))

    async def show(self, call: Call) -> None:
        """Tell a stored completion again."""
        await call.exchange.respond(200, encode(await self._told(await self._find(call))))

    async def messages(self, call: Call) -> None:
        """List the messages that a stored completion answered, the first of them first."""
        one, page = await self._find(call), _page(call.exchange.query)
        newest = page.order == "desc"
        place = place_of(one.id, page)
        found = await self._store.messages(one.chat, place, page.limit + 1, newest_first=newest, before=one.place)
        told = [{"id": f"{one.id}-{message.place}", **_message(message)} for message in found]
        await call.exchange.respond(200, encode(listed(told, page.limit)))

    async def update(self, call: Call) -> None:
        """Note other metadata on a stored completion."""
        one = await self._find(call)
        fields = Fields(await call.exchange.json())
        fields.require("metadata")
        metadata = _read_metadata(fields.raw("metadata"))
        fields.no_more()
        await self._store.note(call.caller.name, one.id, metadata)
        await call.exchange.respond(200, encode(await self._told(replace(one, metadata=metadata))))

    async def delete(self, call: Call) -> None:
        """Forget a stored completion, and what was kept for its sake."""
        one = await self._find(call)
        await self._store.delete_completion(call.caller.name, one.id)
        told = {"id": one.id, "object": "chat.completion.deleted", "deleted": True}
        await call.exchange.respond(200, encode(told))

    async def _find(self, call: Call) -> StoredCompletion:
        one = await self._store.completion(call.caller.name, call.arguments[0])
        if one is None:
            raise NotFound(
                f"The completion {call.arguments[0][:100]!r} was not found.",
                param="completion_id",
                code="completion_not_found",
            )
        return one

    async def _matching(
        self, owner: str, page: Page, model: str | None, noted: dict[str, str]
    ) -> Sequence[StoredCompletion]:
        """The page, and one more if there is one; what is noted is looked at here, row by row."""
        found: list[StoredCompletion] = []
        cursor = replace(cursor_of(page), limit=_AT_ONCE)
        while len(found) <= page.limit:
            rows = await self._store.completions(owner, cursor)
            if rows is None:
                raise unknown_cursor(page.after or "")
            found += [one for one in rows if model in (None, one.model) and noted.items() <= one.metadata.items()]
            if len(rows) < _AT_ONCE:
                break
            cursor = replace(cursor, after=rows[-1].id)
        return found

    async def _told(self, one: StoredCompletion) -> dict[str, Any]:
        message = await self._store.message(one.chat, one.place)
        if message is None:
            raise NotFound(f"The completion {one.id!r} was not found.", code="completion_not_found")
        usage = msgspec.json.decode(message.usage) if message.usage else {}
        counts = Usage(
            usage.get("input_tokens", 0),
            usage.get("output_tokens", 0),
            usage.get("cached_tokens", 0),
            reasoning=usage.get("reasoning_tokens", 0),
        )
        choice = {"index": 0, "message": _message(message), "logprobs": None, "finish_reason": _finish(message)}
        return {
            "id": one.id,
            "object": "chat.completion",
            "created": int(one.created),
            "model": one.model,
            "choices": [choice],
            "usage": write_usage(counts),
            "metadata": one.metadata,
            "request_id": message.request,
        }


def _page(query: str) -> Page:
    """The page that is asked for; what OpenAI lists here begins with the oldest."""
    page = read_page(query)
    return page if "order" in read_query(query) else replace(page, order="asc")


def _message(message: StoredMessage) -> dict[str, Any]:
    """A message in Chat's words."""
    told: dict[str, Any] = {"role": message.role, "content": message.content, "refusal": None}
    told |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    told |= {"tool_calls": msgspec.json.decode(message.tool_calls)} if message.tool_calls else {}
    told |= {"function_call": msgspec.json.decode(message.function_call)} if message.function_call else {}
    parts = msgspec.json.decode(message.content_json) if message.content_json else []
    refusal = "".join([part["text"] for part in parts if part["type"] == "refusal"])
    reasoning = "".join([part["text"] for part in parts if part["type"] == "reasoning"])
    shown = [shape for part in parts if (shape := _shown(part)) is not None]
    told |= {"refusal": refusal} if refusal else {}
    told |= {"reasoning_content": reasoning} if reasoning else {}
    return {**told, "content_parts": shown} if message.role == "user" and shown else told


def _shown(part: dict[str, Any]) -> dict[str, Any] | None:
    """A structured part as OpenAI lists it, which knows texts and pictures here."""
    match part:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "image", "url": url}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "data": data, **rest}:
            return {"type": "image_url", "image_url": {"url": f"data:{rest.get('mime', 'image/png')};base64,{data}"}}
        case _:
            return None


def _finish(message: StoredMessage) -> str:
    if message.function_call:
        return "function_call"
    return "stop" if message.finish_reason in (None, "pause") else message.finish_reason


def _read_metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if type(value) is not dict or not all(type(word) is str for word in value.values()) or len(value) > _MOST_NOTES:
        raise InvalidRequest(f"metadata must hold {_MOST_NOTES} words at most.", param="metadata", code="invalid_type")
    return value
