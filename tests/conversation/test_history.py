"""Calls and results of a history fit together, whatever the client lost or repeated on the way."""

import pytest

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import LOST_RESULT, match_results
from toolgate.conversation.message import Message, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest

ASK = Message("user", (Text("go"),))
ON = Message("user", (Text("and now?"),))


def calls(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCall(id, f"tool_{id}", "{}") for id in ids))


def result(id: str, text: str = "ok") -> Message:
    return Message("tool", (ToolResult(id, (Text(text),)),))


def settled(*messages: Message, strict: bool = False, lenient: bool = False) -> ModelRequest:
    return match_results(ModelRequest("m", messages), strict, lenient)


def results(request: ModelRequest) -> list[tuple[str, str]]:
    parts = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    return [(part.call_id, plain_text(part.content)) for part in parts]


def test_results_stand_in_the_order_of_their_calls() -> None:
    """field: B4"""
    request = settled(ASK, calls("a", "b"), result("b", "B"), result("a", "A"))
    assert results(request) == [("a", "A"), ("b", "B")]


def test_a_result_for_no_call_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        settled(ASK, calls("a"), result("a"), result("x"))
    assert caught.value.param == "messages[3].tool_call_id"


def test_a_result_for_no_call_is_ignored_where_clients_replay_stale_ones() -> None:
    request = settled(ASK, calls("a"), result("a"), result("x"), lenient=True)
    assert results(request) == [("a", "ok")]
    assert "x" in request.warnings[0]


def test_a_lost_result_does_not_poison_the_conversation() -> None:
    """field: B37"""
    request = settled(ASK, calls("a", "b"), result("b"), ON)
    assert results(request) == [("a", LOST_RESULT), ("b", "ok")]
    assert request.messages[2].parts[0].is_error  # type: ignore[union-attr]
    assert request.warnings


def test_a_lost_result_is_refused_where_the_model_is_strict() -> None:
    with pytest.raises(InvalidRequest):
        settled(ASK, calls("a"), ON, strict=True)


def test_of_several_results_the_last_one_counts() -> None:
    request = settled(ASK, calls("a"), result("a", "old"), result("a", "new"))
    assert results(request) == [("a", "new")]
    assert request.warnings


def test_ids_that_come_back_every_round_belong_to_the_nearest_call() -> None:
    """field: B6"""
    request = settled(ASK, calls("a"), result("a", "1"), calls("a"), result("a", "2"))
    assert results(request) == [("a", "1"), ("a", "2")]
    assert not request.warnings


def test_a_result_is_moved_right_behind_its_call() -> None:
    request = settled(ASK, calls("a"), ON, result("a"))
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "user"]


def test_a_history_without_calls_is_left_alone() -> None:
    request = ModelRequest("m", (ASK,))
    assert match_results(request) is request


def test_a_turn_split_over_messages_is_joined_and_its_results_follow_it() -> None:
    text = Message("assistant", (Text("Working on it."),))
    request = settled(ASK, calls("a"), text, calls("b"), result("b", "B"), result("a", "A"), ON)
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert request.messages[1].parts == (*calls("a").parts, *text.parts, *calls("b").parts)
    assert results(request) == [("a", "A"), ("b", "B")]


def test_other_fields_of_each_message_of_a_split_turn_are_kept() -> None:
    one = Message("assistant", calls("a").parts, {"chat": {"x": 1}})
    two = Message("assistant", calls("b").parts, {"chat": {"y": 2}, "ollama": {"z": 3}})
    request = settled(ASK, one, two, result("a"), result("b"))
    assert request.messages[1].extra == {"chat": {"x": 1, "y": 2}, "ollama": {"z": 3}}


def test_a_complaint_names_the_message_by_its_number_in_the_request() -> None:
    with pytest.raises(InvalidRequest) as caught:
        settled(ASK, calls("a"), calls("b"), result("a"), result("x"))
    assert caught.value.param == "messages[4].tool_call_id"
