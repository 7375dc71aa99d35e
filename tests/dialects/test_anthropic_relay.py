"""Messages to Messages: what came passes on, and what would break a client is repaired on the way."""

import json
from typing import Any

import pytest
from anthropic.types import Message as SdkMessage

from tests.dialects.anthropic_cases import (
    DIALECT,
    ID1,
    ID2,
    PING,
    REPLY,
    REQUEST,
    STOP,
    USAGE,
    block,
    blocks_of,
    call_block,
    check,
    collected,
    delta,
    ending,
    parsed,
    read,
    relayed,
    start,
    stop,
    text_block,
    wire,
)
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import Usage
from toolgate.conversation.message import Text, ToolCall
from toolgate.wire.received_stream_frames import ReceivedStreamFrame

CITY = '{"city":"Paris"}'
TALK = (text_block(0), delta(0, text="Hel"), delta(0, text="lo"), stop(0))
CALL = (call_block(1), delta(1, partial_json='{"city":'), delta(1, partial_json='"Paris"}'), stop(1))
SAID = {"type": "text", "text": "Hello"}
CALLED = {"type": "tool_use", "id": ID1, "name": "get_weather", "input": {"city": "Paris"}}


def test_a_well_made_stream_passes_as_it_came() -> None:
    """spec: U2"""
    full = {"input_tokens": 5, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 1}
    novel = {"type": "weather_report", "sky": "blue"}
    thought = [block(2, type="thinking", thinking="", signature=""), delta(2, thinking="Hm", estimated_tokens=3)]
    search = block(3, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}, novel=1)
    events = [
        start(full, novel=1),
        PING,
        *TALK,
        *CALL,
        *thought,
        delta(2, signature="sig"),
        stop(2),
        novel,
        search,
        delta(3, partial_json="{}"),
        stop(3),
        {**ending("tool_use", full, container={"id": "c"}), "context_management": {"applied_edits": []}},
        STOP,
    ]
    assert parsed(relayed(wire(*events))) == events


@pytest.mark.parametrize("ends", [b"\r\n", b"\r"])
def test_framing_is_our_own(ends: bytes) -> None:
    """quirk: crlf, multiline_data"""
    events = wire(start(), *TALK, ending(), STOP)
    assert relayed(b": hello\n\n" + events.replace(b"\n", ends)) == relayed(events)
    assert b"\r" not in relayed(events)
    data = json.dumps(start(), indent=1).replace("\n", "\ndata: ")
    assert parsed(relayed(f"data: {data}\n\n".encode() + wire(*TALK, ending(), STOP)))[0]["type"] == "message_start"


@pytest.mark.parametrize(
    ("events", "content"),
    [
        pytest.param([start(), start(id="x"), *TALK, ending(), STOP], [SAID], id="quirk: a_dup_message_start"),
        pytest.param([start(), *TALK, ending()], [SAID], id="quirk: a_no_message_stop"),
        pytest.param([*CALL, ending("tool_use"), STOP], [CALLED], id="field: A11"),
        pytest.param(
            [start(), *CALL, stop(1), stop(1), ending("tool_use"), STOP], [CALLED], id="quirk: a_dup_block_stop"
        ),
        pytest.param(
            [start(), text_block(0), delta(0, text=""), stop(0), *CALL, ending("tool_use"), STOP],
            [CALLED],
            id="quirk: a_empty_text_block",
        ),
        pytest.param([start(), *TALK[:-1], *CALL[:-1], ending("tool_use"), STOP], [SAID, CALLED], id="no stops"),
        pytest.param(
            [start(), call_block(1), CALL[1], call_block(1), *CALL[2:], ending("tool_use"), STOP],
            [CALLED],
            id="field: A14",
        ),
        pytest.param(
            [start(), call_block(0, input={"city": "Paris"}), stop(0), ending("tool_use"), STOP],
            [CALLED],
            id="quirk: a_no_deltas",
        ),
        pytest.param(
            [start(), call_block(0, "clock"), delta(0, partial_json=""), stop(0), ending("tool_use"), STOP],
            [{**CALLED, "name": "clock", "input": {}}],
            id="quirk: a_no_args",
        ),
        pytest.param(
            [start(), block(0, type="tool_use", id=ID1, name="clock"), stop(0), ending("tool_use"), STOP],
            [{**CALLED, "name": "clock", "input": {}}],
            id="quirk: a_no_input_field",
        ),
        pytest.param([start(), *CALL, ending("end_turn"), STOP], [CALLED], id="quirk: a_end_turn_with_tool"),
        pytest.param(
            [start(), text_block(0), delta(0, thinking="Hm"), delta(0, text="Hello"), stop(0), ending(), STOP],
            [{"type": "thinking", "thinking": "Hm", "signature": ""}, SAID],
            id="field: A6",
        ),
        pytest.param([start(), delta(4, text="Hello"), stop(4), ending(), STOP], [SAID], id="field: A7"),
        pytest.param([start(), PING, *TALK, PING, STOP], [SAID], id="quirk: a_ping"),
        pytest.param(
            [start(), *CALL, call_block(1, id=ID2), *CALL[1:], ending("tool_use"), STOP],
            [CALLED, {**CALLED, "id": ID2}],
            id="one index for all",
        ),
    ],
)
@pytest.mark.parametrize("beta", [True, False])
def test_what_would_break_clients_is_mended(events: list[Any], content: list[Any], beta: bool) -> None:
    passed = relayed(wire(*events))
    kinds = [event["type"] for event in parsed(passed)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    numbers = [event["index"] for event in parsed(passed) if event["type"] == "content_block_start"]
    assert numbers == list(range(len(content)))
    message = collected(passed, beta)
    assert [block.model_dump(exclude_none=True) for block in message.content] == content
    assert message.stop_reason == ("tool_use" if content[-1]["type"] == "tool_use" else "end_turn")
    assert read(passed).parts == read(wire(*events)).parts


def test_the_counts_that_sdks_demand_are_always_there() -> None:
    for counts in ({}, {"input_tokens": None}, None):
        first = {"type": "message_start", "message": {"id": "msg_up", "usage": counts}}
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts}
        message = collected(relayed(wire(first, *TALK, end, STOP)))
        assert (message.usage.input_tokens, message.usage.output_tokens) == (0, 0)
        assert (message.id, message.model, message.role) == ("msg_up", REPLY.model, "assistant")


def test_a_count_that_comes_in_an_event_of_its_own_loses_no_stop_reason() -> None:
    late = {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 7}}
    message = collected(relayed(wire(start({"input_tokens": 5}), *TALK, ending("max_tokens", usage={}), late, STOP)))
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("max_tokens", 5, 7)


@pytest.mark.parametrize(
    ("word", "passed"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("tool_use", "end_turn"), ("novel", "end_turn")]
    + [(word, word) for word in ("pause_turn", "refusal", "model_context_window_exceeded", "compaction", "max_tokens")],
)
def test_stop_reasons(word: str, passed: str) -> None:
    assert collected(relayed(wire(start(), *TALK, ending(word), STOP))).stop_reason == passed


def test_ids_that_clients_refuse_are_replaced() -> None:
    """quirk: kimi_ids, ids_duplicate, id_missing; field: B10"""
    calls = [
        event
        for number, id in enumerate(["functions.a:0", ID1, ID1, None, ""])
        for event in (call_block(number, "clock", id), stop(number))
    ]
    passed = blocks_of(relayed(wire(start(), *calls, ending("tool_use"), STOP)))
    ids = [call["id"] for call in passed]
    assert len(set(ids)) == 5
    assert ids[1] == ID1
    assert all(id.replace("_", "").replace("-", "").isalnum() for id in ids)


def test_a_relay_keeps_the_books() -> None:
    relay, framing = DIALECT.upstream.relay(REQUEST, REPLY), DIALECT.frame_decoder()
    assert (relay.done, relay.reason, relay.usage, relay.calls) == (False, None, None, 0)
    for frame in framing.feed(wire(start(), *CALL, call_block(2, "clock", ID2), stop(2), ending("end_turn"))):
        relay.feed(frame)
    assert (relay.done, relay.reason, relay.usage, relay.calls) == (False, "tool_calls", Usage(5, 7), 2)
    relay.feed(ReceivedStreamFrame("message_stop", json.dumps(STOP).encode()))
    assert relay.done
    assert relay.end() == relay.feed(ReceivedStreamFrame("ping", b"{}")) == b""


@pytest.mark.parametrize(
    "data",
    [
        wire(start(), *TALK),
        wire(start(), call_block(0), delta(0, partial_json='{"ci')),
        wire(start()) + b"data: nonsense\n\n",
        wire(start()) + b'data: {"type":"content_block_start","index":0}\n\n',
        wire(start()) + b'data: {"type":"content_block_delta","index":0}\n\n',
        wire(start(), delta(3, partial_json="{"), ending(), STOP),
        wire(start(), block(0, type="tool_use", id=ID1, input={}), stop(0), ending("tool_use"), STOP),
        wire(start(), {"type": "error", "error": {"type": "overloaded_error", "message": "Full"}}),
        b'event: error\ndata: {"message":"Full"}\n\n',
        b"",
    ],
)
def test_a_relay_fails_exactly_where_the_decoder_does(data: bytes) -> None:
    """field: A27, A29"""
    with pytest.raises((InvalidUpstreamAnswer, UpstreamUnavailable)) as read_fault:
        read(data)
    with pytest.raises(type(read_fault.value)) as passed_fault:
        relayed(data)
    assert passed_fault.value.message == read_fault.value.message


def test_a_whole_answer_passes_as_it_came() -> None:
    """spec: U2"""
    body = {
        **start()["message"],
        "content": [{"type": "thinking", "thinking": "Hm", "signature": "s"}, SAID, {**CALLED, "novel": 1}],
        "stop_reason": "tool_use",
        "container": None,
        "novel": {"a": None},
        "usage": {**USAGE, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0, "service_tier": "standard"},
    }
    response = DIALECT.upstream.decode_response(body, REQUEST)
    passed = DIALECT.upstream.relay_response(body, response, REQUEST, REPLY)
    assert passed == body
    assert response.parts[1:] == (Text("Hello"), ToolCall(ID1, "get_weather", CITY, extra={"anthropic": {"novel": 1}}))
    assert response.usage == Usage(input=8, output=1, cache_read=3)


def test_a_whole_answer_is_mended() -> None:
    calls = [
        {"type": "tool_use", "id": "a:0", "name": "clock"},
        {"type": "tool_use", "name": "clock", "input": '{"x":1}'},
    ]
    body = {"content": [{"type": "text", "text": ""}, *calls], "stop_reason": "end_turn"}
    response = DIALECT.upstream.decode_response(body, REQUEST)
    passed = DIALECT.upstream.relay_response(body, response, REQUEST, REPLY)
    sent = json.loads(json.dumps(passed, default=lambda raw: json.loads(bytes(raw))))
    check(SdkMessage, sent)
    assert [call["input"] for call in sent["content"]] == [{}, {"x": 1}]
    assert (sent["id"], sent["model"], sent["stop_reason"]) == (REPLY.id, REPLY.model, "tool_use")
    assert response.reason == "tool_calls"


def test_a_whole_answer_that_is_an_error_fails() -> None:
    """quirk: a_error_200_json"""
    with pytest.raises(UpstreamUnavailable, match="Full"):
        DIALECT.upstream.decode_response({"type": "error", "error": {"message": "Full"}}, REQUEST)


@pytest.mark.parametrize("pieces", [('{"city": ,}',), ('["Par', 'is"]'), ('{"city":"Par',)])
def test_arguments_that_are_no_object_end_the_stream_with_an_error(pieces: tuple[str, ...]) -> None:
    calling = [start(), call_block(0), *[delta(0, partial_json=piece) for piece in pieces], stop(0)]
    with pytest.raises(InvalidUpstreamAnswer, match="not a JSON object"):
        relayed(wire(*calling, ending("tool_use"), STOP))
    assert parsed(relayed(wire(*calling, ending("max_tokens"), STOP)))[-1]["type"] == "message_stop"
