"""Kept chats at /v1/chats: their owner may list, read and delete them; to anybody else they do not exist."""

from typing import Any

import msgspec

from toolgate.conversation.errors import NotFound
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.server.app import Call, Endpoint
from toolgate.server.records.writer import Writer
from toolgate.server.responses.paging import Page, listed, read_page, unknown_cursor
from toolgate.storage.chats import ChatStore, Cursor, StoredChat, StoredMessage
from toolgate.wire.jsontext import encode

_STRUCTURED = ("content_json", "tool_calls", "function_call", "usage")


class ChatList:
    """The endpoints below /v1/chats."""

    def __init__(self, store: ChatStore, writer: Writer) -> None:
        self._store = store
        self._writer = writer

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        words = OPENAI_CHAT.server
        return [
            Endpoint("GET", "/v1/chats", self.list, words),
            Endpoint("GET", "/v1/chats/{}/messages", self.messages, words),
            Endpoint("GET", "/v1/chats/{}", self.show, words),
            Endpoint("DELETE", "/v1/chats/{}", self.delete, words),
        ]

    async def list(self, call: Call) -> None:
        """List the caller's chats, those that began last first unless `order` says otherwise."""
        page = read_page(call.exchange.query)
        await self._writer.flush()
        found = await self._store.chats(call.caller.name, cursor_of(page))
        if found is None:
            raise unknown_cursor(page.after or "")
        await call.exchange.respond(200, encode(listed([told_chat(chat) for chat in found], page.limit)))

    async def show(self, call: Call) -> None:
        """Tell of one chat; its messages have a list of their own."""
        await call.exchange.respond(200, encode(told_chat(await self._find(call))))

    async def messages(self, call: Call) -> None:
        """List the messages of a chat, the last first unless `order` says otherwise."""
        chat, page = await self._find(call), read_page(call.exchange.query)
        newest = page.order == "desc"
        found = await self._store.messages(chat.id, place_of(chat.id, page), page.limit + 1, newest_first=newest)
        told = [{"id": f"{chat.id}-{one.place}", **told_message(one)} for one in found]
        await call.exchange.respond(200, encode(listed(told, page.limit)))

    async def delete(self, call: Call) -> None:
        """Forget a chat, with its messages and completions."""
        chat = await self._find(call)
        await self._store.delete(call.caller.name, chat.id)
        await call.exchange.respond(200, encode({"id": chat.id, "object": "chat", "deleted": True}))

    async def _find(self, call: Call) -> StoredChat:
        await self._writer.flush()
        chat = await self._store.chat(call.caller.name, call.arguments[0])
        if chat is None:
            raise NotFound(f"The chat {call.arguments[0][:100]!r} was not found.", code="chat_not_found")
        return chat


def cursor_of(page: Page) -> Cursor:
    """The same page as the store takes it, and one item more, to know whether there are more."""
    return Cursor(page.after, page.limit + 1, page.order == "desc")


def place_of(list_id: str, page: Page) -> int | None:
    """The place that the cursor of a list of messages names."""
    if page.after is None:
        return None
    place = page.after.removeprefix(f"{list_id}-")
    if not place.isdecimal() or len(place) > 9:
        raise unknown_cursor(page.after)
    return int(place)


def told_chat(chat: StoredChat) -> dict[str, Any]:
    """A chat as it is told and exported."""
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


def told_message(message: StoredMessage) -> dict[str, Any]:
    """A message as it is told and exported; what was not said is left out, but for the content."""
    told: dict[str, Any] = {"role": message.role, "content": message.content}
    for name in (
        "content_json",
        "tool_calls",
        "tool_call_id",
        "name",
        "function_call",
        "model",
        "finish_reason",
        "usage",
    ):
        value = getattr(message, name)
        if value is not None:
            told[name] = msgspec.json.decode(value) if name in _STRUCTURED else value
    return {**told, "request_id": message.request, "created_at": message.created}
