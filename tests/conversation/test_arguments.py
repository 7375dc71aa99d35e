"""Argument text: lone surrogates, and text that is no object."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolgate.conversation.arguments import (
    ArgumentTextNormalizer,
    arguments_object_text,
    arguments_text,
    is_object,
    normalize_arguments,
)
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import PartDelta, PartEnd
from toolgate.conversation.message import ToolCall
from toolgate.conversation.surrogates import JsonSurrogateRepair, repair_json_surrogates

PIECES = ["\\", "\\\\", "u", "\\ud83d", "\\ude00", "\ud83d", "\ude00", "d83", "\\n", "é", "a"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r'{"a":"\ud83d"}', "\ufffd"),
        (r'{"a":"\ud83d\ude00"}', "😀"),
        (r'{"a":"\\ud83d"}', "\\ud83d"),
        (r'{"a":"\ude00\ud83d"}', "\ufffd\ufffd"),
        ('{"a":"\ud83d"}', "\ufffd"),
        ('{"a":"\ud83d\ude00"}', "😀"),
    ],
)
def test_halves_of_surrogate_pairs_in_streamed_arguments_become_replacement_characters(text: str, read: str) -> None:
    for pieces in ([text], list(text)):
        assembler = EventAssembler(["look"])
        for piece in pieces:
            assembler.call(0, name="look", arguments=piece)
        assembler.end("tool_calls")
        (call,) = [event.part for event in assembler.events if isinstance(event, PartEnd)]
        assert isinstance(call, ToolCall)
        assert json.loads(call.arguments) == {"a": read}
        assert is_object(call.arguments)
        assert "".join([event.text for event in assembler.events if isinstance(event, PartDelta)]) == call.arguments


@given(st.lists(st.sampled_from(PIECES)))
def test_where_the_text_is_split_changes_nothing(pieces: list[str]) -> None:
    text, pairing = "".join(pieces), JsonSurrogateRepair()
    result = "".join([pairing.feed(piece) for piece in pieces]) + pairing.end()
    assert result == repair_json_surrogates(text)
    assert result == result.encode().decode()


def test_an_object_with_half_a_character_can_be_written() -> None:
    assert json.loads(arguments_text({"a": ["\ud83d"]})) == {"a": ["\ufffd"]}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("[1]", '{"INVALID_JSON":"[1]"}'),
        ('{"a": ', '{"INVALID_JSON":"{\\"a\\": "}'),
        ("\ud83d", '{"INVALID_JSON":"\ufffd"}'),
        (r'{"a":"\ud83d"}', r'{"a":"\ufffd"}'),
    ],
)
def test_arguments_of_a_history_are_sent_as_an_object(text: str, sent: str) -> None:
    assert arguments_object_text(text) == sent


ARGUMENT_PIECES = st.lists(
    st.sampled_from(["{", "}", "{}", ' {"a"', ": 1}", "\n ", '"{\\"a\\":1}"', r'"\ud83d', r"\ude00", '"', "x"]),
    max_size=6,
)


@given(ARGUMENT_PIECES)
def test_arguments_in_pieces_come_to_what_they_are_whole(pieces: list[str]) -> None:
    whole = "".join(pieces)
    begun = "".join(pieces[:1]).lstrip()
    assume(begun.startswith("{}") or not whole.lstrip().startswith("{}"))  # a prefix `{}` comes in one piece
    stream = ArgumentTextNormalizer()
    result = "".join([stream.feed(piece) for piece in pieces]) + stream.end()
    assert result.strip() == normalize_arguments(whole).strip() or not is_object(normalize_arguments(whole))
    assert stream.end() == ""
