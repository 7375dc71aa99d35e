"""Two tellings of one history have one digest, and two histories have two (spec: D1)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation import history_digest
from toolgate.conversation.history_digest import HistoryDigest, normalize_text, remove_whitespace
from toolgate.conversation.message import Media, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

HI = Message("user", (Text("Hi"),))
CALL = ToolCall("call_1", "get_weather", '{"city": "Paris", "days": 1.0}')
OURS = ToolCall("call_2", "search", "{}", executor="gateway")


def digest(messages: Sequence[Message]) -> str:
    prefix = HistoryDigest()
    for message in messages:
        prefix.update(message)
    return prefix.digest()


def history(role: Role, *parts: Part) -> list[Message]:
    return [HI, Message(role, parts)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (history("assistant", Text("Well, \n yes.")), history("assistant", Text("Well, yes."))),
        (history("assistant", Text("Well, "), Text("yes.")), history("assistant", Text("Well, yes."))),
        ([HI, *history("assistant", Text("a"))[1:] * 2], history("assistant", Text("aa"))),
        (history("user", Text("a\r\nb ")), history("user", Text("a\nb"))),
        (history("assistant", CALL), history("assistant", ToolCall("x", "get_weather", '{"days":1.0,"city":"Paris"}'))),
        (history("assistant", Reasoning("Hm."), Text("Yes.")), history("assistant", Text("Yes."))),
        (
            history("assistant", OURS, ToolResult("call_2", (Text("found"),)), Text("A")),
            history("assistant", Text("A")),
        ),
        ([Message("system", (Text("It is 9:00."),)), HI], [HI]),
    ],
)
def test_the_same_meaning_has_the_same_digest(one: list[Message], other: list[Message]) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (history("user", Text("a b")), history("user", Text("ab"))),
        (history("user", Text("Yes.")), history("assistant", Text("Yes."))),
        (history("assistant", CALL), history("assistant", ToolCall("call_1", "get_weather", '{"city": "Rome"}'))),
        (history("user", Media("image", data="aGk=")), history("user", Media("image", data="aG8="))),
        (history("tool", ToolResult("call_1", (Text("22"),))), history("tool", ToolResult("call_1", (Text("23"),)))),
        ([HI], [HI, HI]),
    ],
)
def test_another_meaning_has_another_digest(one: list[Message], other: list[Message]) -> None:
    assert digest(one) != digest(other)


@given(st.text(st.sampled_from(" \t\n\r\x0b\u2028ae\u0301"), max_size=60))
def test_a_text_is_normalized_the_same_in_slices(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_digest, "_SLICE", 3)
        in_slices = normalize_text(text), remove_whitespace(text)
    assert in_slices == (normalize_text(text), remove_whitespace(text))
