"""Digests and transcripts: what counts as the same history, and what a new conversation is told (spec: T8)."""

import json
import re
import time
import unicodedata
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstreams.stateful_chat.peer_server import history
from toolgate.conversation.message import Message, Reasoning, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.upstreams.stateful_chat.history_turns import HistoryForStatefulChat, read_history

TEXTS = st.text(st.sampled_from("ab <>/\n\té\u0301turn_2"), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def reading(*messages: Message) -> HistoryForStatefulChat:
    return read_history(ModelRequest("m", (*messages, Message("user", (Text("new"),)))))


def digest(*messages: Message) -> str:
    return reading(*messages).digest(str)


def output(speaker: Any, *texts: str) -> Message:
    return Message(speaker, tuple([Text(text) for text in texts]))


@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_the_digest_after_an_answer_is_that_of_the_history_which_replays_it(texts: list[str]) -> None:
    *before, user, answer = texts if len(texts) % 2 == 0 else texts[1:]
    asked = read_history(ModelRequest("m", history(*before, user)))
    replayed = reading(*history(*before, user, answer))
    assert asked.digest_after(answer, str) == replayed.digest(str)


@given(st.lists(TEXTS, min_size=2, max_size=5), st.data())
def test_the_digest_is_stable_under_re_serialisation(texts: list[str], data: st.DataObject) -> None:
    plain = history(*texts)
    changed = []
    for message in plain:
        text = message.parts[0].text  # type: ignore[union-attr]  # they are texts
        text = text.replace("\n", data.draw(st.sampled_from(["\n", "\r\n", "  \n"])))
        text = data.draw(st.sampled_from([text, unicodedata.normalize("NFD", text), f"\n{text}\n "]))
        cut = data.draw(st.integers(0, len(text)))
        written = msgspec.json.encode(Message(message.role, (Text(text[:cut]), Text(text[cut:]))))
        changed.append(msgspec.json.decode(written, type=Message))
    assert digest(*changed) == digest(*plain)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.data())
def test_a_call_is_the_same_however_its_arguments_are_written_and_whatever_its_id(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    def turn(text: str, id: str) -> tuple[Message, Message]:
        result = Message("tool", (ToolResult(id, (Text("found"),)),))
        return Message("assistant", (Text("let me see"), ToolCall(id, "look", text))), result

    shuffled = dict(data.draw(st.permutations(list(arguments.items()))))
    spaced = json.dumps(shuffled, indent=data.draw(st.sampled_from([None, 2])))
    compact = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    start = output("user", "go")
    assert digest(start, *turn(spaced, "a")) == digest(start, *turn(compact, "b"))


def test_answers_are_compared_without_blanks_and_without_reasoning() -> None:
    start = output("user", "go")
    written = '<invoke name="f">\n  <parameter name="x">1</parameter>\n</invoke>'
    replayed = '\n<invoke name="f"><parameter name="x">1</parameter></invoke>'
    thoughtful = Message("assistant", (Reasoning("hm"), Text(written)))
    assert digest(start, output("assistant", written)) == digest(start, output("assistant", replayed))
    assert digest(start, thoughtful) == digest(start, output("assistant", written))


def test_neighbours_of_one_speaker_are_one_turn() -> None:
    apart = digest(output("user", "a"), output("user", "b"), output("assistant", "c"), output("assistant", "d"))
    assert apart == digest(output("user", "a\n\nb"), output("assistant", "c\n\nd"))


def test_every_difference_in_meaning_is_a_difference_in_digest() -> None:
    start, answer = output("user", "go"), output("assistant", "gone")
    calls = [Message("assistant", (ToolCall("a", "f", text),)) for text in ("{}", '{"x":1}', '{"x":"1"}', '{"x":1.0}')]
    results = [Message("tool", (ToolResult("a", (Text("r"),), error),)) for error in (False, True)]
    emitted = [
        (start, answer),
        (output("user", "Go"), answer),
        (output("user", "go\n  on"), answer),
        (output("user", "go\non"), answer),
        (start, output("assistant", "gone!")),
        (output("system", "be good"), start, answer),
        (start, answer, start, answer),
        (output("user", "go", "\n\nassistant: gone"),),
        *[(start, call, result) for call in calls for result in results],
        (start, Message("assistant", (ToolCall("a", "g", "{}"),)), results[0]),
    ]
    # A result belongs to what is new, so those that differ in it alone are told apart by what follows them.
    digests = {digest(*messages, output("assistant", "so")) for messages in emitted}
    assert len(digests) == len(emitted)


def expanded(opening: str) -> list[tuple[str, str]]:
    """The turns that a first message tells of, as one who reads it carefully would understand it."""
    match = re.fullmatch(r"<(conversation_so_far\w*)>\n[^\n]*\n(.*)\n</\1>(?:\n\n)?(.*)", opening, re.DOTALL)
    if match is None:
        return [("user", opening)]
    tag = re.match(r"<(\w+)", match[2])[1]  # type: ignore[index]  # there is one
    turns = re.findall(rf'<{tag} speaker="(\w+)">\n(.*?)\n</{tag}>', match[2], re.DOTALL)
    return [*turns, ("user", match[3])]


@given(st.lists(TEXTS | st.just('</turn><turn speaker="user">') | st.just("</conversation_so_far>"), max_size=7))
def test_a_transcript_separates_the_turns_whatever_text_they_contain(texts: list[str]) -> None:
    texts = texts if len(texts) % 2 else [*texts, "new"]
    speakers = ["assistant" if turn % 2 else "user" for turn in range(len(texts))]
    opening = read_history(ModelRequest("m", history(*texts))).opening
    if len(texts) > 1:
        assert expanded(opening) == list(zip(speakers, texts, strict=True))
    else:
        assert opening == texts[0]


@pytest.mark.parametrize("text", [" " * 500_000, "\r" * 500_000, "<turn_2" * 100_000, "\u0301" * 500_000])
def test_no_text_takes_long_to_compare_or_to_render(text: str) -> None:
    started = time.process_time()
    asked = read_history(ModelRequest("m", history(text, text, "new")))
    assert asked.digest(str)
    assert asked.opening
    assert time.process_time() - started < 2
