"""Two tellings of one history have one digest, and two histories have two (D1)."""

from collections.abc import Sequence

import pytest

from toolgate.conversation.likeness import Prefix
from toolgate.conversation.message import Media, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult

HI = Message("user", (Text("Hi"),))
CALL = ToolCall("call_1", "get_weather", '{"city": "Paris", "days": 1.0}')
OURS = ToolCall("call_2", "search", "{}", executor="gateway")


def digest(messages: Sequence[Message]) -> str:
    prefix = Prefix()
    for message in messages:
        prefix.hear(message)
    return prefix.digest()


def said(role: Role, *parts: Part) -> list[Message]:
    return [HI, Message(role, parts)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("assistant", Text("Well, \n yes.")), said("assistant", Text("Well, yes."))),
        (said("assistant", Text("Well, "), Text("yes.")), said("assistant", Text("Well, yes."))),
        ([HI, *said("assistant", Text("a"))[1:] * 2], said("assistant", Text("aa"))),
        (said("user", Text("a\r\nb ")), said("user", Text("a\nb"))),
        (said("assistant", CALL), said("assistant", ToolCall("x", "get_weather", '{"days":1.0,"city":"Paris"}'))),
        (said("assistant", Reasoning("Hm."), Text("Yes.")), said("assistant", Text("Yes."))),
        (said("assistant", OURS, ToolResult("call_2", (Text("found"),)), Text("A")), said("assistant", Text("A"))),
        ([Message("system", (Text("It is 9:00."),)), HI], [HI]),
    ],
)
def test_the_same_meaning_has_the_same_digest(one: list[Message], other: list[Message]) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (said("user", Text("a b")), said("user", Text("ab"))),
        (said("user", Text("Yes.")), said("assistant", Text("Yes."))),
        (said("assistant", CALL), said("assistant", ToolCall("call_1", "get_weather", '{"city": "Rome"}'))),
        (said("user", Media("image", data="aGk=")), said("user", Media("image", data="aG8="))),
        (said("tool", ToolResult("call_1", (Text("22"),))), said("tool", ToolResult("call_1", (Text("23"),)))),
        ([HI], [HI, HI]),
    ],
)
def test_another_meaning_has_another_digest(one: list[Message], other: list[Message]) -> None:
    assert digest(one) != digest(other)
