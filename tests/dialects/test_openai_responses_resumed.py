"""A stream that goes on after its teller was lost: what holds is not told twice, what does not is withdrawn."""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolgate.conversation.events import Finish, PartEnd, PartStart, RunEvent, StepEnd, StepStart, Usage
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Message, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Reply
from toolgate.dialects.openai_responses.items import InputReader
from toolgate.dialects.openai_responses.resumed import emptied, is_withdrawn, read_told
from toolgate.dialects.openai_responses.server import ResponsesEncoder
from toolgate.wire.fields import Fields

REQUEST = ModelRequest("m", (Message("user", (Text("Go."),)),), dialect="openai_responses")
REPLY = Reply("resp_1", 1, "m")
CALL = ToolCall("call_0123456789abcdef", "book", '{"a":1}', "gateway")
RESULT = ToolResult(CALL.id, (Text("booked"),), False, "book")
SAID = Message("assistant", (Text("Let me."), CALL))


def frames(encoder: ResponsesEncoder, events: Sequence[RunEvent]) -> list[bytes]:
    """The frames that tell these events."""
    told = b"".join([encoder.encode(event) for event in events])
    return [frame + b"\n\n" for frame in told.split(b"\n\n") if frame and not frame.startswith(b"data: [DONE]")]


def told(*parts: Part) -> list[bytes]:
    """The frames of a stream that was cut off behind these parts."""
    events: list[RunEvent] = [StepStart(), *[event for part in parts for event in unfold_part(part)]]
    return frames(ResponsesEncoder(REQUEST, REPLY), events)


def going_on(before: Sequence[bytes], cut: int, kept: Sequence[Message], *parts: Part) -> list[dict[str, Any]]:
    """All events of a stream that went on with these parts, to its end."""
    encoder = ResponsesEncoder(REQUEST, REPLY)
    withdrawn = encoder.resume(read_told(before, cut, kept)).split(b"\n\n")[:-1]
    events: list[RunEvent] = [event for part in parts for event in unfold_part(part)]
    rest = frames(encoder, [StepStart(), *events, StepEnd("stop"), Finish("stop", Usage(1, 1))])
    return [msgspec.json.decode(frame.partition(b"data: ")[2]) for frame in (*before, *withdrawn, *rest)]


def test_numbers_go_on_and_the_stream_begins_once() -> None:
    events = going_on(told(Text("Hel")), 0, (), Text("Hello."))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1


def test_what_a_cut_answer_told_is_ended_empty_and_stays_empty_in_the_response() -> None:
    """fault: K-E"""
    before = told(Text("Hel"))[:4]  # in the middle of the text
    events = going_on(before, 0, (), Text("Hello."))
    ends = [
        (event["output_index"], event["item"]["status"])
        for event in events
        if "item" in event and "done" in event["type"]
    ]
    assert ends == [(0, "incomplete"), (1, "completed")]
    output = events[-1]["response"]["output"]
    assert output[0]["content"] == []
    assert output[1]["content"][0]["text"] == "Hello."


def test_an_item_of_a_cut_answer_that_had_ended_is_ended_again_as_empty() -> None:
    before = told(Text("Wait."), ToolCall("call_of_the_client_0", "edit", "{}"))
    events = going_on(before, 0, (), Text("Other."))
    ends = [event for event in events if event["type"] == "response.output_item.done" and event["output_index"] == 0]
    assert [len(event["item"]["content"]) for event in ends] == [1, 0]
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete", "incomplete", "completed"]


def test_a_call_that_was_running_ends_in_its_place_and_text_that_was_told_is_closed_as_it_was() -> None:
    """requirement D3"""
    before = told(Text("Let me."), CALL)
    events = going_on(before, len(before), [SAID], RESULT, Text("Done."))
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "mcp_call", "message"]
    assert (output[0]["status"], output[0]["content"][0]["text"]) == ("completed", "Let me.")
    assert (output[1]["status"], output[1]["output"]) == ("completed", "booked")
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2]


def test_text_that_was_told_but_not_closed_is_closed_with_the_next_part() -> None:
    before = told(Text("Let me."))
    events = going_on(before, len(before), [SAID], CALL, RESULT)
    ends = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in ends] == [("message", "completed"), ("mcp_call", "completed")]
    assert ends[0]["content"][0]["text"] == "Let me."


def test_a_call_that_comes_again_under_its_id_takes_its_old_place() -> None:
    before = told(Text("Let me."), CALL)
    events = going_on(before, 0, (), Text("Again."), CALL, RESULT)
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2]
    output = events[-1]["response"]["output"]
    assert [(item["type"], item["status"]) for item in output] == [
        ("message", "incomplete"),
        ("mcp_call", "completed"),
        ("message", "completed"),
    ]
    assert output[1]["output"] == "booked"


def test_what_was_heard_of_calls_is_known_by_their_items() -> None:
    begun = read_told(told(CALL), 99, [SAID])
    assert (begun.begun, begun.ended) == (frozenset({CALL.id}), frozenset())
    ended = read_told(told(CALL, RESULT), 99, [SAID])
    assert (ended.begun, ended.ended) == (frozenset({CALL.id}), frozenset({CALL.id}))


def test_a_withdrawn_item_says_nothing_to_the_next_model() -> None:
    items: list[dict[str, Any]] = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hel"}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "edit",
            "arguments": '{"a"',
            "status": "completed",
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "x",
        },
    ]
    reader = InputReader()
    for item in map(emptied, items):
        assert is_withdrawn(item)
        reader.read(Fields(item, "input"))
    assert reader.messages() == ()


def test_what_is_told_from_the_beginning_is_not_changed_by_any_of_this() -> None:
    encoder = ResponsesEncoder(REQUEST, REPLY)
    assert encoder.resume(read_told([], 0, ())) == b""
    assert frames(encoder, [StepStart(), PartStart(Text("")), PartEnd(Text("Hi."))])[0].startswith(
        b"event: response.created"
    )
