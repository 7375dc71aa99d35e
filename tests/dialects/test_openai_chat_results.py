"""How results and marked texts of other dialects are written for a Chat upstream."""

from typing import Any

from toolgate.conversation.message import Media, Message, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Quirks
from toolgate.dialects.openai_chat import DIALECT

MARKED = {"anthropic": {"cache_control": {"type": "ephemeral"}}}
OWN: dict[str, dict[str, Any]] = {"openai_chat": {"annotations": []}}
CALLS = Message(
    "assistant", (ToolCall("call_aaaaaaaaaaaaaaaa", "shot", "{}"), ToolCall("call_bbbbbbbbbbbbbbbb", "f", "{}"))
)


def written(*messages: Message) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    body, dropped = DIALECT.upstream.encode_request(ModelRequest("m", messages), Quirks())
    return body["messages"], dropped


def test_pictures_out_of_results_follow_all_results_of_the_turn() -> None:
    """field: B1; a result that does not follow its calls at once is refused"""
    picture = Media("image", "image/png", "AAAA")
    first = Message("tool", (ToolResult("call_aaaaaaaaaaaaaaaa", (picture, Media("file", file_id="f"))),))
    second = Message("tool", (ToolResult("call_bbbbbbbbbbbbbbbb", (Text("done"), Media("video", url="x"))),))
    messages, dropped = written(CALLS, first, second, Message("user", (Text("Well?"),)))
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "user"]
    assert [part["type"] for part in messages[3]["content"]] == ["text", "image_url", "file"]
    assert len(dropped) == 1
    assert [message["role"] for message in written(CALLS, first, second)[0]] == ["assistant", "tool", "tool", "user"]


def test_marks_of_another_dialect_do_not_turn_a_text_into_a_list() -> None:
    """field: B9; many upstreams take nothing but a string"""
    messages, _ = written(
        Message("user", (Text("Hi", MARKED),)),
        Message("assistant", (Text("A", MARKED), Text("B"))),
        Message("tool", (ToolResult("call_aaaaaaaaaaaaaaaa", (Text("done", MARKED),)),)),
    )
    assert [message["content"] for message in messages] == ["Hi", "AB", "done"]
    (own,), _ = written(Message("user", (Text("Hi", OWN),)))
    assert own["content"] == [{"type": "text", "text": "Hi", "annotations": []}]
