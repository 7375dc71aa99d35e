"""Tokens counted offline (requirements U9, T9)."""

import asyncio
import re
import subprocess
import sys
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Media, Message, Opaque, Reasoning, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, OutputFormat, Settings, ToolDef
from toolgate.upstreams import tokens

QUESTION = Message("user", (Text("What time is it in Copenhagen?"),))
CALL = ToolCall("call_1", "get_time", '{"zone": "Europe/Copenhagen"}')


def ask(*messages, **fields):
    return ModelRequest("m", messages, **fields)


def test_known_texts_have_their_known_counts():
    assert tokens.count("") == 0
    assert tokens.count("hello world") == 2
    assert tokens.count("antidisestablishmentarianism") == 6


def test_half_of_a_surrogate_pair_is_counted_not_choked_on():
    assert tokens.count("a \ud83d b") == tokens.count("a ? b")


@settings(max_examples=300, deadline=None)
@given(st.text("ab1  \n\t.,'éß漢😀/", max_size=200), st.integers(1, 9))
def test_counting_in_pieces_is_exact_unless_there_is_no_blank_to_cut_at(text, length):
    pieces = list(tokens._pieces(text, length))
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
        count = tokens._tokenizer()
        assert sum(map(count, pieces)) == count(text)


def test_a_long_text_is_counted_exactly_though_in_pieces():
    text = "The quick brown foxes, all 12 of them, jumped\n\n  over it. " * 2000
    assert len(list(tokens._pieces(text))) > 10
    assert tokens.count(text) == tokens._tokenizer()(text)


def test_a_text_beyond_the_limit_is_counted_in_proportion(monkeypatch):
    monkeypatch.setattr(tokens, "EXACT", 1000)
    assert tokens.count("word " * 200) == tokens._tokenizer()("word " * 200)
    assert tokens.count("word " * 2000) == 10 * tokens.count("word " * 200)


def test_the_limit_holds_for_all_texts_of_a_request_together(monkeypatch):
    monkeypatch.setattr(tokens, "EXACT", 1000)
    seen = []
    monkeypatch.setattr(tokens, "_count_piece", lambda piece: seen.append(len(piece)) or len(piece))
    request = ask(*[Message("user", (Text("x" * 400),)) for _ in range(10)])
    assert tokens.count_request(request) == 4000 + 3 + 10 * 4
    assert sum(seen) == 1000


def test_a_request_counts_messages_tools_schema_and_what_stands_around_them():
    bare = tokens.count_request(ask(QUESTION))
    assert bare == tokens.count("What time is it in Copenhagen?") + 4 + 3
    tool = ToolDef("get_time", "The time in a zone.", {"type": "object", "properties": {"zone": {"type": "string"}}})
    assert tokens.count_request(ask(QUESTION, tools=(tool,))) > bare + 20
    shaped = Settings(output=OutputFormat({"type": "object", "required": ["hour"]}))
    assert tokens.count_request(ask(QUESTION, settings=shaped)) > bare + 5


def test_calls_results_and_unknown_parts_count_too():
    result = Message("tool", (ToolResult("call_1", (Text("It is noon."),)),))
    history = ask(QUESTION, Message("assistant", (CALL,)), result)
    assert tokens.count_request(history) > tokens.count_request(ask(QUESTION)) + tokens.count(CALL.arguments)
    unknown = Message("user", (Opaque("d", {"type": "odd", "said": "something or other"}),))
    assert tokens.count_request(ask(unknown)) > tokens.count("something or other")
    hosted = ToolDef("web_search", kind="hosted", extra={"d": {"type": "web_search", "depth": "the whole web"}})
    assert tokens.count_request(ask(QUESTION, tools=(hosted,))) > tokens.count_request(ask(QUESTION)) + 10


def test_pictures_sounds_and_files_count_by_rule_of_thumb_and_never_by_their_base64():
    def of(media):
        return tokens.count_request(ask(Message("user", (media,)))) - 4 - 3

    assert of(Media("image", "image/png", data="A" * 4_000_000)) == 765
    assert of(Media("image", url="https://example.org/a.png")) == 765
    assert of(Media("audio", "audio/wav", data="A" * 64_000)) == 48_000 // 1600 + 1
    assert of(Media("file", "application/pdf", data="A" * 64_000)) == 48_000 // 40 + 1
    assert of(Media("file", "text/plain", data="A" * 64_000)) == 48_000 // 4 + 1
    assert of(Media("file", file_id="f1")) == 765


async def test_an_answer_counts_its_reasoning_and_its_calls():
    usage = await tokens.estimate(ask(QUESTION), [Reasoning("Let me look."), Text("One moment."), CALL])
    parts = ("Let me look.", "One moment.", CALL.name, CALL.arguments)
    assert usage.output == sum(map(tokens.count, parts)) + 7


async def test_an_estimate_says_that_it_is_one_and_keeps_reasoning_apart():
    usage = await tokens.estimate(ask(QUESTION), [Reasoning("Let me look."), Text("It is noon.")])
    thought, said = tokens.count("Let me look."), tokens.count("It is noon.")
    assert usage == Usage(tokens.count_request(ask(QUESTION)), thought + said, reasoning=thought, estimated=True)


async def test_a_big_count_is_made_in_a_thread_of_its_own_and_a_small_one_is_not(monkeypatch):
    threads = []
    count_piece = tokens._count_piece
    monkeypatch.setattr(
        tokens, "_count_piece", lambda piece: threads.append(threading.current_thread()) or count_piece(piece)
    )
    small, big = ask(QUESTION), ask(Message("user", (Text("word " * 20_000),)))
    assert await tokens.count_request_aside(big) == tokens._total(tokens._request_bill(big))
    assert threads[0] is not threading.main_thread()
    threads.clear()
    assert await tokens.count_request_aside(small) > 0
    assert set(threads) == {threading.main_thread()}


async def test_the_loop_turns_while_a_big_text_is_counted():
    turns = 0

    async def turn():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    await tokens.count_request_aside(ask(Message("user", (Text("some words " * 100_000),))))
    turning.cancel()
    assert turns > 50


def test_the_vocabulary_is_loaded_by_the_first_count_and_shares_its_module_with_the_package():
    program = """
import sys
from toolgate.upstreams import tokens
assert not any(name.startswith("bpe_openai") for name in sys.modules)
assert tokens.count("hello world") == 2
assert "bpe_openai" not in sys.modules
from bpe_openai import _bindings
assert _bindings is tokens._bindings()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
