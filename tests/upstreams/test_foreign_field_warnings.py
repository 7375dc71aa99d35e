"""Which messages of a translated request are searched for fields of the client's dialect."""

import pytest

from toolgate.conversation.message import (
    ApprovalRequestPart,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.upstreams.foreign_field_warnings import unusual_messages

EXTRA = {"anthropic": {"cache_control": {"type": "ephemeral"}}}
PLAIN: list[Part] = [
    Text("a"),
    Reasoning("a"),
    RefusalPart("a"),
    ToolCall("1", "f", "{}"),
    ToolResult("1", (Text("a"), Text("b"))),
]
UNUSUAL: list[Part] = [
    Text("a", EXTRA),
    Reasoning("a", extra=EXTRA),
    RefusalPart("a", EXTRA),
    ToolCall("1", "f", "{}", extra=EXTRA),
    ToolResult("1", (), extra=EXTRA),
    ToolResult("1", (Text("a"), Text("b", EXTRA))),
    ToolResult("1", (Media("image", file_id="f"),)),
    Media("image", file_id="f"),
    Opaque("anthropic", {}),
    ApprovalRequestPart("1", ToolCall("1", "f", "{}")),
]


@pytest.mark.parametrize("part", UNUSUAL, ids=repr)
def test_a_part_with_extra_fields_or_media_makes_its_message_unusual(part: Part) -> None:
    plain, unusual = Message("user", tuple(PLAIN)), Message("user", (*PLAIN, part, *PLAIN))
    assert unusual_messages([plain, unusual, plain]) == [unusual]


def test_extra_fields_of_a_message_make_it_unusual() -> None:
    message = Message("user", (), EXTRA)
    assert unusual_messages([message]) == [message]
