"""Serve stored chats at /v1/chats: their owner lists, reads and deletes them; for other keys they do not exist."""

from typing import Any

from toolgate.api.paging import PageQuery, list_page, read_page, unknown_cursor
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.errors import NotFound
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.storage.recorded_chats import ChatStore, PageRequest, StoredChat, StoredMessage
from toolgate.wire.jsontext import decode, encode

_OPTIONAL = ("content_json", "tool_calls", "tool_call_id", "name", "function_call", "model", "finish_reason", "usage")
_JSON_COLUMNS = ("content_json", "tool_calls", "function_call", "usage")


class RecordedChatEndpoints:
    """The endpoints below /v1/chats."""

    def __init__(self, store: ChatStore, writer: WriteQueue) -> None:
        self._store = store
        self._writer = writer

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/chats", self.list, errors),
            HttpRoute("GET", "/v1/chats/{}/messages", self.messages, errors),
            HttpRoute("GET", "/v1/chats/{}", self.show, errors),
            HttpRoute("DELETE", "/v1/chats/{}", self.delete, errors),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List the caller's chats, the newest first unless `order` is given."""
        page = read_page(call.exchange.query)
        await self._writer.flush()
        found = await self._store.chats(call.caller.name, list_cursor(page))
        if found is None:
            raise unknown_cursor(page.after or "")
        await call.exchange.respond(200, encode(list_page([chat_object(chat) for chat in found], page.limit)))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return one chat; its messages have a list of their own."""
        await call.exchange.respond(200, encode(chat_object(await self._find(call))))

    async def messages(self, call: AdmittedHttpRequest) -> None:
        """List the messages of a chat, the last first unless `order` is given."""
        chat, page = await self._find(call), read_page(call.exchange.query)
        newest = page.order == "desc"
        found, more = await self._store.messages(chat.id, read_place(chat.id, page), page.limit, newest_first=newest)

        def body() -> bytes:
            items = [{"id": f"{chat.id}-{one.place}", **message_object(one)} for one in found]
            return encode(list_page(items, page.limit, more=more))

        await call.exchange.respond(200, await run_in_thread(body))

    async def delete(self, call: AdmittedHttpRequest) -> None:
        """Delete a chat with its messages and completions."""
        chat = await self._find(call)
        await self._store.delete(call.caller.name, chat.id)
        await call.exchange.respond(200, encode({"id": chat.id, "object": "chat", "deleted": True}))

    async def _find(self, call: AdmittedHttpRequest) -> StoredChat:
        await self._writer.flush()  # chats are written after their responses: a client should find its last one
        chat = await self._store.chat(call.caller.name, call.arguments[0])
        if chat is None:
            raise NotFound(f"The chat {call.arguments[0][:100]!r} was not found.", code="chat_not_found")
        return chat


def list_cursor(page: PageQuery) -> PageRequest:
    """Return the cursor of a page for the store, with one item more, which shows whether there are more pages."""
    return PageRequest(page.after, page.limit + 1, page.order == "desc")


def read_place(list_id: str, page: PageQuery) -> int | None:
    """Return the place that the cursor of a list of messages names."""
    if page.after is None:
        return None
    place = page.after.removeprefix(f"{list_id}-")  # an id is that of the list, a hyphen and the place
    if not place.isdecimal() or len(place) > 9:  # a larger number does not fit into the column of 32 bits
        raise unknown_cursor(page.after)
    return int(place)


def chat_object(chat: StoredChat) -> dict[str, Any]:
    """Return a chat as it is listed and exported."""
    return {
        "object": "chat",
        "id": chat.id,
        "owner": chat.owner,
        "model": chat.model,
        "dialect": chat.dialect,
        "created_at": chat.created,
        "updated_at": chat.updated,
        "message_count": chat.messages,
    }


def message_object(message: StoredMessage) -> dict[str, Any]:
    """Return a message as it is listed and exported; fields that are not set are left out, except the content."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in _OPTIONAL:
        value = getattr(message, name)
        if value is not None:
            fields[name] = decode(value) if name in _JSON_COLUMNS else value
    return {**fields, "request_id": message.request, "created_at": message.created}
