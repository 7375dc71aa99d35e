"""Where an answer stops, which forms it is held to, and who comes next in line."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.errors import GatewayOverloaded
from toolgate.upstreams.local import grammar, stage_prompts
from toolgate.upstreams.local.queue import EngineTurnQueue
from toolgate.upstreams.local.stop_texts import StopTextFilter


def fed(endings: tuple[str, ...], pieces: list[str]) -> tuple[str, str | None]:
    stops = StopTextFilter(endings)
    text = "".join([stops.feed(piece) for piece in pieces])
    return text + (stops.end() if stops.found is None else ""), stops.found


@given(st.lists(st.text("abc", max_size=4)), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_where_the_text_is_split_does_not_change_where_it_stops(pieces: list[str], endings: list[str]) -> None:
    text, found = fed(tuple(endings), pieces)
    whole = "".join(pieces)
    if found is None:
        assert text == whole
        assert not any(ending in whole for ending in endings)
    else:
        assert whole.startswith(text + found)
        assert not any(ending in text for ending in endings)


def test_what_may_become_an_ending_is_held_back_and_reported_when_it_does_not() -> None:
    stops = StopTextFilter(("STOP",))
    assert [stops.feed("a ST"), stops.feed("ART "), stops.end()] == ["a ", "START ", ""]


def form(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.partition("%json ")[2])
    return found


def test_arguments_have_no_room_for_fields_that_the_schema_does_not_name() -> None:
    first = form(next(grammar.arguments({"type": "object", "properties": {"a": {"type": "string"}}})))
    assert first["additionalProperties"] is False
    assert first["x-guidance"]["whitespace_flexible"] is False


def test_a_schema_that_allows_any_field_stays_open() -> None:
    assert "additionalProperties" not in form(next(grammar.arguments({"type": "object"})))


@pytest.mark.parametrize(
    "field",
    [{"$ref": "https://example.org/x"}, {"$ref": "#/$defs/missing"}, {"type": "string", "pattern": "(?=x)y"}],
    ids=["elsewhere", "nowhere", "look-around"],
)
def test_schema_keywords_without_a_grammar_are_removed_and_reported(field: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": field}}
    assert grammar.has_unsupported(schema)
    kept = form(next(grammar.arguments(schema)))["properties"]["a"]
    assert not {"$ref", "pattern"} & set(kept)


def test_a_reference_within_the_schema_is_kept() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    assert not grammar.has_unsupported(schema)
    assert form(next(grammar.arguments(schema)))["properties"]["a"] == {"$ref": "#/$defs/A"}


def test_long_texts_keep_their_beginning_and_their_end() -> None:
    text = stage_prompts.clipped("a" * 50 + "b" * 50, 30)
    assert text == "a" * 20 + " … " + "b" * 10


async def test_one_is_answered_at_a_time_in_the_order_in_which_they_came() -> None:
    line, order = EngineTurnQueue(5, 10), []
    first = await line.acquire()

    async def come(name: str) -> None:
        turn = await line.acquire()
        order.append(name)
        turn.release()

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(come(name))
        await asyncio.sleep(0)
        first.release()
        first.release()
    assert order == ["a", "b", "c"]
    (await line.acquire()).release()


async def test_a_full_queue_refuses_requests_with_its_length() -> None:
    line = EngineTurnQueue(1, 10)
    turn = await line.acquire()
    waiting = asyncio.create_task(line.acquire())
    await asyncio.sleep(0)
    with pytest.raises(GatewayOverloaded, match="1 requests wait already"):
        await line.acquire()
    turn.release()
    (await waiting).release()


async def test_a_caller_with_many_requests_leaves_room_for_another() -> None:
    """Sixteen requests of one key filled the queue, and all others got a 503."""
    line, order = EngineTurnQueue(4, 10), []
    first = await line.acquire("ann")

    async def come(caller: str) -> None:
        turn = await line.acquire(caller)
        order.append(caller)
        turn.release()

    waiting = [asyncio.create_task(come("ann")) for _ in range(4)]
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(come("bob"))]
    await asyncio.sleep(0)
    first.release()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(one, GatewayOverloaded) for one in outcomes] == [False, False, False, True, False]
    assert order == ["ann", "bob", "ann", "ann"]


async def test_a_request_that_waits_too_long_is_refused_with_its_position() -> None:
    line = EngineTurnQueue(5, 0.01)
    turn = await line.acquire()
    with pytest.raises(GatewayOverloaded, match="1 more requests were running or waiting") as sent_away:
        await line.acquire()
    assert (sent_away.value.status, line.waiting) == (503, 0)
    turn.release()


async def test_a_request_cancelled_at_its_turn_lets_the_next_one_in() -> None:
    line = EngineTurnQueue(5, 10)
    turn = await line.acquire()
    leaving, staying = asyncio.create_task(line.acquire()), asyncio.create_task(line.acquire())
    await asyncio.sleep(0)
    turn.release()
    leaving.cancel()
    (await staying).release()
    with pytest.raises(asyncio.CancelledError):
        await leaving
