"""Serve stored chat completions as OpenAI does: clients list, read, annotate and delete what they asked to `store`."""

from typing import Any
from urllib.parse import parse_qsl

from msgspec.structs import replace

from toolgate.api.encode_json import encode_json
from toolgate.api.metadata import read_metadata
from toolgate.api.paging import PageQuery, list_page, read_page, read_query, unknown_cursor
from toolgate.api.records.chats import list_cursor, read_place
from toolgate.conversation.errors import NotFound
from toolgate.conversation.events import Usage
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_chat.shared_codec import write_usage
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.storage.recorded_chats import ChatStore, CompletionPlaceInChat, StoredMessage
from toolgate.storage.sql_engine import PAGE_BYTES
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import decode, encode

_BATCH = 100


class StoredCompletionEndpoints:
    """The endpoints below /v1/chat/completions that need no model."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/chat/completions", self.list, errors),
            HttpRoute("GET", "/v1/chat/completions/{}/messages", self.messages, errors),
            HttpRoute("GET", "/v1/chat/completions/{}", self.show, errors),
            HttpRoute("POST", "/v1/chat/completions/{}", self.update, errors),
            HttpRoute("DELETE", "/v1/chat/completions/{}", self.delete, errors),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List stored completions, oldest first unless `order` is given; `model` and `metadata[…]` narrow it."""
        query = call.exchange.query
        page, filters = _page(query), dict(parse_qsl(query))
        # The official clients send a mapping as `metadata[topic]=demo`.
        metadata = {name[9:-1]: value for name, value in filters.items() if name.startswith("metadata[")}
        model = filters.get("model")
        # Metadata is stored as JSON and compared here: batches are read until the page is full.
        found: list[CompletionPlaceInChat] = []
        cursor = replace(list_cursor(page), limit=_BATCH)
        while len(found) <= page.limit:
            rows = await self._store.completions(call.caller.name, cursor)
            if rows is None:
                raise unknown_cursor(page.after or "")
            found += [one for one in rows if model in (None, one.model) and metadata.items() <= one.metadata.items()]
            if len(rows) < _BATCH:
                break
            cursor = replace(cursor, after=rows[-1].id)
        items: list[dict[str, Any]] = []
        left = PAGE_BYTES  # answers are read one by one: a page of large ones would not fit into memory
        for one in found[: page.limit]:
            message = await self._answer(one)
            left -= message.size
            if items and left < 0:
                break
            items.append(_completion_object(one, message))
        more = len(found) > len(items)
        await call.exchange.respond(200, await run_in_thread(lambda: encode(list_page(items, page.limit, more=more))))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return a stored completion."""
        one = await self._find(call)
        await call.exchange.respond(200, await encode_json(_completion_object(one, await self._answer(one))))

    async def messages(self, call: AdmittedHttpRequest) -> None:
        """List the messages that a stored completion answered, the first of them first."""
        one, page = await self._find(call), _page(call.exchange.query)
        newest = page.order == "desc"
        place = read_place(one.id, page)
        found, more = await self._store.messages(one.chat, place, page.limit, newest_first=newest, before=one.place)

        def body() -> bytes:
            items = [{"id": f"{one.id}-{message.place}", **_message_object(message)} for message in found]
            return encode(list_page(items, page.limit, more=more))

        await call.exchange.respond(200, await run_in_thread(body))

    async def update(self, call: AdmittedHttpRequest) -> None:
        """Replace the metadata of a stored completion."""
        one = await self._find(call)
        fields = Fields(await call.exchange.json())
        fields.require("metadata")
        metadata = read_metadata(fields)  # null removes all of it
        fields.refuse_unknown()
        await self._store.note(call.caller.name, one.id, metadata)
        changed = _completion_object(replace(one, metadata=metadata), await self._answer(one))
        await call.exchange.respond(200, await encode_json(changed))

    async def delete(self, call: AdmittedHttpRequest) -> None:
        """Delete a stored completion, and the messages that were stored for it alone."""
        one = await self._find(call)
        await self._store.delete_completion(call.caller.name, one.id)
        body = {"id": one.id, "object": "chat.completion.deleted", "deleted": True}
        await call.exchange.respond(200, encode(body))

    async def _find(self, call: AdmittedHttpRequest) -> CompletionPlaceInChat:
        one = await self._store.completion(call.caller.name, call.arguments[0])
        if one is None:
            raise NotFound(
                f"The completion {call.arguments[0][:100]!r} was not found.",
                param="completion_id",
                code="completion_not_found",
            )
        return one

    async def _answer(self, one: CompletionPlaceInChat) -> StoredMessage:
        message = await self._store.message(one.chat, one.place)
        if message is None:
            raise NotFound(f"The completion {one.id!r} was not found.", code="completion_not_found")
        return message


def _completion_object(one: CompletionPlaceInChat, message: StoredMessage) -> dict[str, Any]:
    usage = decode(message.usage) if message.usage else {}
    counts = Usage(
        usage.get("input_tokens", 0),
        usage.get("output_tokens", 0),
        usage.get("cached_tokens", 0),
        reasoning=usage.get("reasoning_tokens", 0),
    )
    finish_reason = "stop" if message.finish_reason in (None, "pause") else message.finish_reason
    choice = {
        "index": 0,
        "message": _message_object(message),
        "logprobs": None,
        "finish_reason": "function_call" if message.function_call else finish_reason,
    }
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


def _page(query: str) -> PageQuery:
    """Read the page from the query; by default this list starts with the oldest item, as OpenAI's does."""
    page = read_page(query)
    return page if "order" in read_query(query) else replace(page, order="asc")


def _message_object(message: StoredMessage) -> dict[str, Any]:
    """Return a message in the form of Chat Completions."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content, "refusal": None}
    fields |= {"tool_call_id": message.tool_call_id} if message.tool_call_id else {}
    fields |= {"tool_calls": decode(message.tool_calls)} if message.tool_calls else {}
    fields |= {"function_call": decode(message.function_call)} if message.function_call else {}
    parts = decode(message.content_json) if message.content_json else []
    refusal = "".join([part["text"] for part in parts if part["type"] == "refusal"])
    reasoning = "".join([part["text"] for part in parts if part["type"] == "reasoning"])
    content = [one for part in parts if (one := _content_part(part)) is not None]
    fields |= {"refusal": refusal} if refusal else {}
    fields |= {"reasoning_content": reasoning} if reasoning else {}
    return {**fields, "content_parts": content} if message.role == "user" and content else fields


def _content_part(part: dict[str, Any]) -> dict[str, Any] | None:
    """Return a structured part in OpenAI's form, which has texts and images here; None for the others."""
    match part:
        case {"type": "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "image", "url": url}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "data": data, **rest}:
            return {"type": "image_url", "image_url": {"url": f"data:{rest.get('mime', 'image/png')};base64,{data}"}}
        case _:
            return None
