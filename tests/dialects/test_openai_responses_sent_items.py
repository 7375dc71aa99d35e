"""A stream continued by another process: stored items are not sent twice, others are withdrawn."""

from collections.abc import Sequence
from typing import Any

import msgspec

from toolgate.conversation.events import PartEnd, PartStart, RunEnd, RunEvent, StepEnd, StepStart, Usage
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import Message, Part, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.openai_responses.input_items import InputItemDecoder
from toolgate.dialects.openai_responses.items_sent_before_crash import is_withdrawn, read_sent_items, withdraw_item
from toolgate.dialects.openai_responses.server import ResponsesStreamEncoder
from toolgate.wire.fields import Fields

REQUEST = ModelRequest("m", (Message("user", (Text("Go."),)),), dialect="openai_responses")
REPLY = AnswerMetadata("resp_1", 1, "m")
CALL = ToolCall("call_0123456789abcdef", "book", '{"a":1}', "gateway")
RESULT = ToolResult(CALL.id, (Text("booked"),), False, "book")
SAID = Message("assistant", (Text("Let me."), CALL))


def frames(encoder: ResponsesStreamEncoder, events: Sequence[RunEvent]) -> list[bytes]:
    """The frames that tell these events."""
    encode_frames = b"".join([encoder.encode(event) for event in events])
    return [
        frame + b"\n\n" for frame in encode_frames.split(b"\n\n") if frame and not frame.startswith(b"data: [DONE]")
    ]


def encode_frames(*parts: Part) -> list[bytes]:
    """The frames of a stream that was cut off behind these parts."""
    events: list[RunEvent] = [StepStart(), *[event for part in parts for event in unfold_part(part)]]
    return frames(ResponsesStreamEncoder(REQUEST, REPLY), events)


def going_on(before: Sequence[bytes], cut: int, kept: Sequence[Message], *parts: Part) -> list[dict[str, Any]]:
    """All events of a stream that went on with these parts, to its end."""
    encoder = ResponsesStreamEncoder(REQUEST, REPLY)
    withdrawn = encoder.resume(read_sent_items(before, cut, kept)).split(b"\n\n")[:-1]
    events: list[RunEvent] = [event for part in parts for event in unfold_part(part)]
    rest = frames(encoder, [StepStart(), *events, StepEnd("stop"), RunEnd("stop", Usage(1, 1))])
    return [msgspec.json.decode(frame.partition(b"data: ")[2]) for frame in (*before, *withdrawn, *rest)]


def test_numbers_go_on_and_the_stream_begins_once() -> None:
    events = going_on(encode_frames(Text("Hel")), 0, (), Text("Hello."))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events].count("response.created") == 1


def test_items_of_a_cut_answer_end_empty_and_stay_empty_in_the_response() -> None:
    """fault: K-E"""
    before = encode_frames(Text("Hel"))[:4]  # in the middle of the text
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
    before = encode_frames(Text("Wait."), ToolCall("call_of_the_client_0", "edit", "{}"))
    events = going_on(before, 0, (), Text("Other."))
    ends = [event for event in events if event["type"] == "response.output_item.done" and event["output_index"] == 0]
    assert [len(event["item"]["content"]) for event in ends] == [1, 0]
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["incomplete", "incomplete", "completed"]


def test_a_running_call_ends_at_its_index_and_sent_text_is_closed_as_it_was() -> None:
    """spec: D3"""
    before = encode_frames(Text("Let me."), CALL)
    events = going_on(before, len(before), [SAID], RESULT, Text("Done."))
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "mcp_call", "message"]
    assert (output[0]["status"], output[0]["content"][0]["text"]) == ("completed", "Let me.")
    assert (output[1]["status"], output[1]["output"]) == ("completed", "booked")
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2]


def test_text_that_was_sent_but_not_closed_is_closed_with_the_next_part() -> None:
    before = encode_frames(Text("Let me."))
    events = going_on(before, len(before), [SAID], CALL, RESULT)
    ends = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["type"], item["status"]) for item in ends] == [("message", "completed"), ("mcp_call", "completed")]
    assert ends[0]["content"][0]["text"] == "Let me."


def test_a_call_that_comes_again_under_its_id_takes_its_old_place() -> None:
    before = encode_frames(Text("Let me."), CALL)
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


def test_the_calls_that_a_client_received_are_known_by_their_items() -> None:
    begun = read_sent_items(encode_frames(CALL), 99, [SAID])
    assert (begun.begun, begun.ended) == (frozenset({CALL.id}), frozenset())
    ended = read_sent_items(encode_frames(CALL, RESULT), 99, [SAID])
    assert (ended.begun, ended.ended) == (frozenset({CALL.id}), frozenset({CALL.id}))


def test_a_withdrawn_item_is_not_sent_to_the_next_model() -> None:
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
    reader = InputItemDecoder()
    for item in map(withdraw_item, items):
        assert is_withdrawn(item)
        reader.decode(Fields(item, "input"))
    assert reader.messages() == ()


def test_a_stream_that_is_not_resumed_is_unchanged() -> None:
    encoder = ResponsesStreamEncoder(REQUEST, REPLY)
    assert encoder.resume(read_sent_items([], 0, ())) == b""
    assert frames(encoder, [StepStart(), PartStart(Text("")), PartEnd(Text("Hi."))])[0].startswith(
        b"event: response.created"
    )
