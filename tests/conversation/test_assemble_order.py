"""Parts that are over while an earlier one is still being written."""

import pytest

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.event_assembler import EventAssembler
from toolgate.conversation.events import PartDelta, PartEnd, PartStart
from toolgate.conversation.message import Reasoning, ReasoningSignature, Text, ToolCall

FIRST, SECOND = "call_" + "a" * 24, "call_" + "b" * 24


def ends(parts: EventAssembler) -> list[object]:
    return [event.part for event in parts.take() if isinstance(event, PartEnd)]


def test_a_call_that_was_over_while_it_waited_is_closed_with_the_one_before_it() -> None:
    parts = EventAssembler({"look"})
    parts.call(0, id=FIRST, name="look", arguments='{"a":')
    parts.call(1, id=SECOND, name="look", arguments="{}")
    parts.end_call(1)
    assert ends(parts) == []
    parts.call(0, arguments="1}")
    parts.end_call(0)
    assert ends(parts) == [ToolCall(FIRST, "look", '{"a":1}'), ToolCall(SECOND, "look", "{}")]


def test_a_freeform_call_that_is_over_does_not_hold_up_what_follows() -> None:
    parts = EventAssembler({"patch"})
    parts.call(0, id=FIRST, name="patch", arguments="*** Begin", freeform=True)
    parts.end_call(0)
    parts.text("done")
    assert [event for event in parts.take() if isinstance(event, PartDelta)][-1] == PartDelta("done")


def test_two_texts_that_wait_for_a_call_stay_two() -> None:
    parts = EventAssembler({"look"})
    parts.call(0, id=FIRST, name="look", arguments="{")
    parts.text("one")
    parts.end_part()
    parts.text("two")
    parts.call(0, arguments="}")
    parts.flush()
    assert ends(parts) == [ToolCall(FIRST, "look", "{}"), Text("one"), Text("two")]


def test_a_seal_that_comes_before_the_reasoning_is_known_when_it_starts() -> None:
    parts, signature = EventAssembler(), ReasoningSignature("somewhere", {"id": "rs_1"})
    parts.sign(signature)
    parts.reasoning("hm")
    parts.end_part()
    assert PartStart(Reasoning("", signature)) in parts.events
    assert ends(parts) == [Reasoning("hm", signature)]


def test_a_call_that_was_cut_off_before_its_arguments_began_is_not_a_whole_one_without_any() -> None:
    for blank in ("", "  \n"):
        parts = EventAssembler({"look"})
        parts.call(0, id=FIRST, name="look", arguments=blank)
        parts.end("length")
        (call,) = ends(parts)
        assert isinstance(call, ToolCall)
        assert not call.complete


@pytest.mark.parametrize("sent", ["a text", "a call", "many texts"])
def test_an_answer_that_grows_without_end_is_refused(sent: str) -> None:
    """Clients of the Responses API get it again and again at the end: 60 MB of text took 600 MB and stopped the loop."""
    parts, piece = EventAssembler({"look"}), "x" * 65_536

    def add() -> None:
        if sent == "a call":
            parts.call(0, id=FIRST, name="look", arguments=piece)
        else:
            parts.text(piece)
            if sent == "many texts":
                parts.end_part()

    for _ in range(96):
        add()
    with pytest.raises(InvalidUpstreamAnswer, match="more than 6291456 characters"):
        add()
