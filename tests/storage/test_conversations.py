"""Conversations and streams on disk: in order, whole, and invisible to others."""

import pytest

from toolgate.storage.conversations import ConversationStore, Order, StoredConversation
from toolgate.storage.database import Database
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.streams import StreamStore

ANN = StoredConversation("conv_1", "ann", 7, {"topic": "tea"})


def items(*ids: str) -> list[dict[str, str]]:
    return [{"id": id, "type": "message"} for id in ids]


def frames(first: int, last: int) -> list[bytes]:
    return [b"event: e\ndata: %d\n\n" % number for number in range(first, last + 1)]


@pytest.mark.parametrize(("order", "seen"), [("asc", "abcde"), ("desc", "edcba")])
async def test_items_keep_their_order_and_are_paged_in_both_directions(
    storage_url: str, order: Order, seen: str
) -> None:
    store = ConversationStore(database := Database(storage_url))
    await store.create(ANN, items(*"ab"))
    assert await store.append("ann", "conv_1", items(*"cde"))
    emitted: list[str] = []
    while page := await store.page("ann", "conv_1", order, emitted[-1] if emitted else None, 2):
        emitted += [item["id"] for item in page]
    assert "".join(emitted) == seen
    await database.aclose()


async def test_an_item_sent_again_stays_in_its_place(storage_url: str) -> None:
    store = ConversationStore(database := Database(storage_url))
    await store.create(ANN, items(*"abc"))
    await store.append("ann", "conv_1", [{"id": "b", "type": "other"}, *items("d")])
    kept = await store.items("ann", "conv_1")
    assert [item["id"] for item in kept] == ["a", "b", "c", "d"]
    assert kept[1]["type"] == "other"
    await database.aclose()


async def test_another_owner_sees_and_changes_nothing(storage_url: str) -> None:
    """fault: Z2"""
    store = ConversationStore(database := Database(storage_url))
    await store.create(ANN, items("a"))
    assert await store.load("bob", "conv_1") is None
    assert await store.items("bob", "conv_1") == []
    assert await store.item("bob", "conv_1", "a") is None
    assert await store.named("bob", ["a"]) == {}
    assert not await store.append("bob", "conv_1", items("b"))
    assert not await store.update("bob", "conv_1", {})
    assert not await store.remove("bob", "conv_1", "a")
    assert not await store.delete("bob", "conv_1")
    assert await store.load("ann", "conv_1") == ANN
    assert await store.items("ann", "conv_1") == items("a")
    await database.aclose()


async def test_a_response_and_its_conversation_are_written_together_or_not_at_all(storage_url: str) -> None:
    responses = ResponseStore(database := Database(storage_url))
    store = ConversationStore(database)
    await store.create(ANN, [])
    response = StoredResponse("resp_1", "ann", None, 1, [], {"output": []})
    broken = [{"id": "a"}, {"type": "nameless"}]
    with pytest.raises(KeyError):
        await responses.save(response, store.appending("ann", "conv_1", broken))
    assert await responses.load("ann", "resp_1") is None
    assert await store.items("ann", "conv_1") == []
    await responses.save(response, store.appending("ann", "conv_1", items("a", "b")))
    assert await store.items("ann", "conv_1") == items("a", "b")
    await database.aclose()


async def test_events_are_found_after_any_number_whatever_the_batches(storage_url: str) -> None:
    """field: D14"""
    responses = ResponseStore(database := Database(storage_url))
    streams = StreamStore(database)
    response = StoredResponse("resp_1", "ann", None, 1, [], {"output": []})
    await responses.save(response, streams.opening("resp_1", kept=True))
    await streams.append("resp_1", 0, frames(0, 3))
    await streams.append("resp_1", 4, frames(4, 4))
    await streams.append("resp_1", 4, frames(4, 6))  # given up halfway, written again
    await responses.save(response, streams.ending("resp_1", 7, frames(7, 8), whole=True))
    for number in range(-1, 9):
        assert await streams.after("resp_1", number) == frames(number + 1, 8)
    stream = await streams.load("resp_1")
    assert stream is not None
    assert (stream.whole, stream.ended is not None) == (True, True)
    await database.aclose()


async def test_events_are_forgotten_a_while_after_the_end(storage_url: str) -> None:
    """field: D16"""
    now = [1000.0]
    responses = ResponseStore(database := Database(storage_url))
    streams = StreamStore(database, keep_seconds=60, clock=lambda: now[0], steady=lambda: now[0])
    for id in ("resp_1", "resp_2"):
        response = StoredResponse(id, "ann", None, 1, [], {"output": []})
        await responses.save(response, streams.opening(id, kept=True))
        await responses.save(response, streams.ending(id, 0, frames(0, 2), whole=True))
        now[0] += 61
    assert await streams.after("resp_1", -1) == []
    assert (stream := await streams.load("resp_1")) is not None
    assert not stream.kept
    assert len(await streams.after("resp_2", -1)) == 3
    await database.aclose()
