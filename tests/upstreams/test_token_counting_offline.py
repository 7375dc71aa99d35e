"""Tokens counted offline (spec: U9, T9)."""

import asyncio
import re
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, RequestSettings, StructuredOutputFormat, ToolDef
from toolgate.scheduling import CALLER
from toolgate.upstreams import token_counting_offline

QUESTION = Message("user", (Text("What time is it in Copenhagen?"),))
CALL = ToolCall("call_1", "get_time", '{"zone": "Europe/Copenhagen"}')


def ask(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest("m", messages, **fields)


def test_known_texts_have_their_known_counts() -> None:
    assert token_counting_offline.count("") == 0
    assert token_counting_offline.count("hello world") == 2
    assert token_counting_offline.count("antidisestablishmentarianism") == 6


def test_half_of_a_surrogate_pair_is_counted_not_choked_on() -> None:
    assert token_counting_offline.count("a \ud83d b") == token_counting_offline.count("a ? b")


@settings(max_examples=300, deadline=None)
@given(st.text("ab1  \n\t.,'éß漢😀/", max_size=200), st.integers(1, 9))
def test_counting_in_pieces_is_exact_unless_there_is_no_blank_to_cut_at(text: str, length: int) -> None:
    pieces = list(token_counting_offline._pieces(text, length))
    assert "".join(pieces) == text
    start, exact = 0, True
    for piece in pieces[:-1]:
        seam = re.search(r" \S", text[start + length :])
        start += len(piece)
        if seam:
            assert re.match(r" \S", text[start:])
        else:
            exact = False
    if exact:
        count = token_counting_offline._tokenizer()
        assert sum(map(count, pieces)) == count(text)


def test_a_long_text_is_counted_exactly_though_in_pieces() -> None:
    text = "The quick brown foxes, all 12 of them, jumped\n\n  over it. " * 2000
    assert len(list(token_counting_offline._pieces(text))) > 10
    assert token_counting_offline.count(text) == token_counting_offline._tokenizer()(text)


def test_a_text_beyond_the_limit_is_counted_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counting_offline, "EXACT", 1000)
    assert token_counting_offline.count("word " * 200) == token_counting_offline._tokenizer()("word " * 200)
    assert token_counting_offline.count("word " * 2000) == 10 * token_counting_offline.count("word " * 200)


def test_the_limit_holds_for_all_texts_of_a_request_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_counting_offline, "EXACT", 1000)
    seen: list[int] = []

    def counted(piece: str) -> int:
        seen.append(len(piece))
        return len(piece)

    monkeypatch.setattr(token_counting_offline, "_count_piece", counted)
    request = ask(*[Message("user", (Text("x" * 400),)) for _ in range(10)])
    assert token_counting_offline.count_request(request) == 4000 + 3 + 10 * 4
    assert sum(seen) == 1000


def test_a_request_counts_messages_tools_schema_and_what_stands_around_them() -> None:
    bare = token_counting_offline.count_request(ask(QUESTION))
    assert bare == token_counting_offline.count("What time is it in Copenhagen?") + 4 + 3
    tool = ToolDef("get_time", "The time in a zone.", {"type": "object", "properties": {"zone": {"type": "string"}}})
    assert token_counting_offline.count_request(ask(QUESTION, tools=(tool,))) > bare + 20
    shaped = RequestSettings(output=StructuredOutputFormat({"type": "object", "required": ["hour"]}))
    assert token_counting_offline.count_request(ask(QUESTION, settings=shaped)) > bare + 5


def test_calls_results_and_unknown_parts_count_too() -> None:
    result = Message("tool", (ToolResult("call_1", (Text("It is noon."),)),))
    history = ask(QUESTION, Message("assistant", (CALL,)), result)
    assert token_counting_offline.count_request(history) > token_counting_offline.count_request(
        ask(QUESTION)
    ) + token_counting_offline.count(CALL.arguments)
    unknown = Message("user", (Opaque("d", {"type": "odd", "said": "something or other"}),))
    assert token_counting_offline.count_request(ask(unknown)) > token_counting_offline.count("something or other")
    hosted = ToolDef("web_search", kind="hosted", extra={"d": {"type": "web_search", "depth": "the whole web"}})
    assert (
        token_counting_offline.count_request(ask(QUESTION, tools=(hosted,)))
        > token_counting_offline.count_request(ask(QUESTION)) + 10
    )


def test_pictures_sounds_and_files_count_by_rule_of_thumb_and_never_by_their_base64() -> None:
    def of(media: Media) -> int:
        return token_counting_offline.count_request(ask(Message("user", (media,)))) - 4 - 3

    assert of(Media("image", "image/png", data="A" * 4_000_000)) == 765
    assert of(Media("image", url="https://example.org/a.png")) == 765
    assert of(Media("audio", "audio/wav", data="A" * 64_000)) == 48_000 // 1600 + 1
    assert of(Media("file", "application/pdf", data="A" * 64_000)) == 48_000 // 40 + 1
    assert of(Media("file", "text/plain", data="A" * 64_000)) == 48_000 // 4 + 1
    assert of(Media("file", file_id="f1")) == 765


async def test_an_answer_counts_its_reasoning_and_its_calls() -> None:
    usage = await token_counting_offline.estimate(ask(QUESTION), [Reasoning("Let me look."), Text("One moment."), CALL])
    parts = ("Let me look.", "One moment.", CALL.name, CALL.arguments)
    assert usage.output == sum(map(token_counting_offline.count, parts)) + 7


async def test_an_estimate_is_marked_and_counts_reasoning_separately() -> None:
    usage = await token_counting_offline.estimate(ask(QUESTION), [Reasoning("Let me look."), Text("It is noon.")])
    thought, stated = token_counting_offline.count("Let me look."), token_counting_offline.count("It is noon.")
    assert usage == Usage(
        token_counting_offline.count_request(ask(QUESTION)), thought + stated, reasoning=thought, estimated=True
    )


async def test_a_big_count_is_made_in_a_thread_of_its_own_and_a_small_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []
    count_piece = token_counting_offline._count_piece

    def counted(piece: str) -> int:
        threads.append(threading.current_thread())
        return count_piece(piece)

    monkeypatch.setattr(token_counting_offline, "_count_piece", counted)
    small, big = ask(QUESTION), ask(Message("user", (Text("word " * 20_000),)))
    assert await token_counting_offline.count_request_aside(big) == token_counting_offline._total(
        token_counting_offline._request_texts(big)
    )
    assert threads[0] is not threading.main_thread()
    threads.clear()
    assert await token_counting_offline.count_request_aside(small) > 0
    assert set(threads) == {threading.main_thread()}


async def test_the_loop_turns_while_a_big_text_is_counted() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    await token_counting_offline.count_request_aside(ask(Message("user", (Text("some words " * 100_000),))))
    turning.cancel()
    assert turns > 50


def test_the_vocabulary_is_loaded_by_the_first_count_and_shares_its_module_with_the_package() -> None:
    program = """
import sys
from toolgate.upstreams import token_counting_offline
assert not any(name.startswith("bpe_openai") for name in sys.modules)
assert token_counting_offline.count("hello world") == 2
assert "bpe_openai" not in sys.modules
loaded = sys.modules["bpe_openai._bindings"]
from bpe_openai import _bindings
assert _bindings is loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_caller_that_lets_much_wait_gets_estimates_and_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that send long requests and leave: what was to be counted for them filled memory, first come first served."""
    counted, go = list[int](), threading.Event()
    token_counting_offline.count("The vocabulary is loaded.")

    def count(text: str) -> int:
        go.wait(30)
        counted.append(len(text))
        return 1

    monkeypatch.setattr(token_counting_offline, "_pieces", lambda text: iter([text]))
    monkeypatch.setattr(token_counting_offline, "_count_piece", count)

    async def usage(caller: str, size: int) -> Usage:
        CALLER.set(caller)
        return await token_counting_offline.estimate(ask(Message("user", (Text("x" * size),))), ())

    most = token_counting_offline.EXACT
    flood = [asyncio.create_task(usage("flood", most + number)) for number in range(20)]
    estimates = await asyncio.wait_for(asyncio.gather(*flood[4:]), 30)  # at once, by their length
    other = asyncio.create_task(usage("other", 50_000))
    await asyncio.sleep(0)
    go.set()
    assert (await other).input < 10
    assert all(one.input > most // 4 for one in estimates)
    await asyncio.gather(*flood)
    assert counted.index(50_000) <= 2
