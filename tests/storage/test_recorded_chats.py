"""Chats on the disk: continued where they were left, by one of many, and invisible to others (spec: D1)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolgate.api.records.decode_sent import record_history
from toolgate.api.records.message_rows import StoredMessageMetadata, message_rows
from toolgate.conversation.message import Message, Text
from toolgate.storage.database import Database
from toolgate.storage.recorded_chats import ChatStore, PageRequest, StoredChatExchange

EVERYTHING = PageRequest(limit=100, newest_first=False)


@pytest.fixture
async def store(storage_url: str) -> AsyncIterator[ChatStore]:
    yield ChatStore(database := Database(storage_url))
    await database.aclose()


def output(*texts: str, owner: str = "ann", now: float = 1.0, **more: Any) -> StoredChatExchange:
    """A request with these words, in turn of the user and of the model, the last of which is its answer."""
    roles = ("user", "assistant")
    messages = [Message(roles[number % 2], (Text(text),)) for number, text in enumerate(texts)]  # type: ignore[arg-type]
    about = StoredMessageMetadata("r1", now)
    past = record_history(messages[:-1], messages[-1], about)
    values = {"chat": f"chat_{now}_{owner}_{len(texts)}", "lasting": True, **more}
    return StoredChatExchange(
        owner=owner,
        model="m",
        dialect="openai_chat",
        created=now,
        heads=past.heads,
        messages=past.rows,
        answer=message_rows(messages[-1:], about)[0],
        digest=past.digest,
        system_digest=past.system_digest,
        **values,
    )


async def words(store: ChatStore, owner: str = "ann") -> list[list[str | None]]:
    found = await store.chats(owner, EVERYTHING)
    assert found is not None
    return [[one.content for one in (await store.messages(chat.id, None, 100))[0]] for chat in found]


async def test_a_history_that_goes_on_is_one_chat(store: ChatStore) -> None:
    await store.keep(output("Hi", "Hello", now=1.0))
    await store.keep(output("Hi", "Hello ", "How are you?\r\n", "Fine", now=2.0))
    await store.keep(output("Hi", " Hel lo", "How are you?", "Fine", "And now?", "Still fine", now=3.0))
    assert await words(store) == [["Hi", "Hello", "How are you?\r\n", "Fine", "And now?", "Still fine"]]
    [chat] = await store.chats("ann", EVERYTHING) or []
    assert (chat.created, chat.updated, chat.messages) == (1.0, 3.0, 6)


async def test_an_answer_that_was_not_kept_is_kept_with_the_next(store: ChatStore) -> None:
    await store.keep(output("Hi", "Hello", now=1.0))
    await store.keep(output("Hi", "Hello", "A", "not kept", "B", "Bye", now=2.0))
    assert await words(store) == [["Hi", "Hello", "A", "not kept", "B", "Bye"]]


async def test_of_many_concurrent_continuations_one_continues_and_the_others_begin_new_chats(storage_url: str) -> None:
    """Each message stands once in each chat, however many nodes write."""
    databases = [Database(storage_url) for _ in range(3)]
    stores = [ChatStore(database) for database in databases]
    await stores[0].keep(output("Hi", "Hello"))
    going = [output("Hi", "Hello", "Go on", f"Answer {number}", now=2.0 + number) for number in range(9)]
    await asyncio.gather(*[stores[number % 3].keep(one) for number, one in enumerate(going)])
    kept = await words(stores[0])
    assert sorted([chat[-1] or "" for chat in kept]) == [f"Answer {number}" for number in range(9)]
    assert all(chat[:-1] == ["Hi", "Hello", "Go on"] for chat in kept)
    for database in databases:
        await database.aclose()


async def test_a_chat_is_found_and_continued_by_its_owner_alone(store: ChatStore) -> None:
    """fault: Z2"""
    await store.keep(output("Hi", "Hello", completion="c1"))
    await store.keep(output("Hi", "Hello", "More", "Yes", owner="bob", completion="c1"))
    assert await words(store) == [["Hi", "Hello"]]
    assert await words(store, "bob") == [["Hi", "Hello", "More", "Yes"]]
    [chat] = await store.chats("ann", EVERYTHING) or []
    assert await store.chat("bob", chat.id) is None
    assert not await store.delete("bob", chat.id)
    assert await store.delete_completion("bob", "c1")
    assert await store.completion("ann", "c1") is not None
    assert not await store.note("eve", "c1", {})


async def test_an_id_that_comes_again_names_the_last_that_had_it(store: ChatStore) -> None:
    """Some upstreams give every answer the same id."""
    await store.keep(output("Hi", "Hello", completion="chatcmpl-1", metadata={"n": "1"}))
    await store.keep(output("Ho", "Hey", now=2.0, completion="chatcmpl-1", metadata={"n": "2"}))
    one = await store.completion("ann", "chatcmpl-1")
    assert one is not None
    assert one.metadata == {"n": "2"}
    message = await store.message(one.chat, one.place)
    assert message is not None
    assert message.content == "Hey"


async def test_what_was_stored_for_an_id_alone_goes_when_the_id_comes_again(store: ChatStore) -> None:
    await store.keep(output("One", "1", now=1.0, completion="c", lasting=False))
    await store.keep(output("Two", "2", now=2.0, completion="other", lasting=False))
    await store.keep(output("Two", "2", "Three", "3", now=3.0, completion="c", lasting=False))
    assert await words(store) == [["Two", "2", "Three", "3"]]
    await store.keep(output("Four", "4", now=4.0, completion="c", lasting=False))
    assert await words(store) == [["Two", "2"], ["Four", "4"]]
    await store.delete_completion("ann", "c")
    await store.delete_completion("ann", "other")
    assert await words(store) == []


async def test_messages_may_hold_anything(store: ChatStore) -> None:
    """fault: Z1"""
    odd = "'; DROP TABLE chats; --\0\u2028\U0001f600 {}%s ?"
    await store.keep(output(odd, odd))
    await store.keep(output(odd, odd, "Go on", "Yes", now=2.0))
    assert await words(store) == [[odd, odd, "Go on", "Yes"]]
