"""What Anthropic and those who imitate it send, and how it is understood."""

import json
from typing import Any

import pytest

from tests.dialects.anthropic_cases import (
    DIALECT,
    ID1,
    ID2,
    PING,
    REQUEST,
    STOP,
    USAGE,
    WEATHER,
    block,
    call_block,
    decode_request,
    delta,
    ending,
    events,
    read,
    start,
    stop,
    text_block,
    wire,
)
from tests.typed import all_of, of
from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError, UpstreamRejected, UpstreamUnavailable
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEnd, StepStart, Usage
from toolgate.conversation.message import Opaque, Reasoning, ReasoningSignature, Text, ToolCall

CITY = '{"city":"Paris"}'
TALK = (text_block(0), delta(0, text="Hel"), delta(0, text="lo"), stop(0))
CALL = (call_block(1), delta(1, partial_json='{"city":'), delta(1, partial_json='"Paris"}'), stop(1))
ENDED = (ending("tool_use"), STOP)


def test_text_and_a_call_are_emitted_as_they_arrive() -> None:
    emitted = events(wire(start(), *TALK, *CALL, *ENDED))
    call = ToolCall(ID1, "get_weather", CITY)
    assert emitted == [
        StepStart("msg_up", "up", Usage(5, 1)),
        PartStart(Text("")),
        PartDelta("Hel"),
        PartDelta("lo"),
        PartEnd(Text("Hello")),
        PartStart(ToolCall(ID1, "get_weather", "")),
        PartDelta('{"city":'),
        PartDelta('"Paris"}'),
        PartEnd(call),
        StepEnd("tool_calls", Usage(5, 7)),
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_the_split_of_the_bytes_changes_nothing(size: int) -> None:
    data = wire(start(), *TALK, *CALL, *ENDED).replace(b"Paris", "Münster \u2028 😀".encode())
    assert read(data, size) == read(data)
    assert read(data.replace(b"\n", b"\r\n"), size) == read(data)


def test_pings_may_come_anywhere() -> None:
    """quirk: a_ping"""
    plain = [start(), *TALK, *CALL, *ENDED]
    pinged = [event for pair in zip([PING] * len(plain), plain, strict=True) for event in pair]
    assert read(wire(*pinged)) == read(wire(*plain))


def test_a_second_message_start_is_ignored() -> None:
    """quirk: a_dup_message_start"""
    emitted = events(wire(start(), start(id="msg_other"), *TALK, ending(), STOP))
    assert [event for event in emitted if isinstance(event, StepStart)] == [StepStart("msg_up", "up", Usage(5, 1))]


def test_a_stream_may_end_after_the_stop_reason() -> None:
    """quirk: a_no_message_stop: the answer is complete once its stop reason is known"""
    assert read(wire(start(), *TALK, ending())) == read(wire(start(), *TALK, ending(), STOP))


@pytest.mark.parametrize("kept", range(1, 9))
def test_a_stream_cut_before_its_stop_reason_fails(kept: int) -> None:
    """quirk: a_eof_mid_tool; field: A27"""
    with pytest.raises(InvalidUpstreamAnswer, match="before the answer was complete"):
        read(wire(*[start(), *TALK, *CALL][:kept]))


def test_a_stream_cut_within_an_event_fails() -> None:
    data = wire(start(), *TALK, *CALL)
    with pytest.raises(InvalidUpstreamAnswer):
        read(data[:-20])


def test_a_stop_without_any_reason_is_an_ordinary_end() -> None:
    assert read(wire(start(), *TALK, STOP)).reason == "stop"
    assert read(wire(start(), *CALL, STOP)).reason == "tool_calls"


def test_an_error_body_with_status_200_fails() -> None:
    """quirk: a_error_200_json"""
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(UpstreamUnavailable, match="Overloaded"):
        DIALECT.upstream.decode_response(body, REQUEST)
    with pytest.raises(InvalidUpstreamAnswer):
        read(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, UpstreamUnavailable),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "Overloaded"}}, UpstreamRejected),
        ({"type": "error", "error": "Overloaded"}, UpstreamUnavailable),
        ({"type": "error", "message": "Overloaded"}, UpstreamUnavailable),
    ],
)
def test_an_error_in_the_middle_fails_the_answer(event: dict[str, Any], fault: type[Exception]) -> None:
    with pytest.raises(fault, match="Overloaded"):
        read(wire(start(), *TALK, event))


def test_an_error_is_known_by_its_event_name_alone() -> None:
    with pytest.raises(UpstreamUnavailable, match="boom"):
        read(wire(start()) + b'event: error\ndata: {"message":"boom"}\n\n')


@pytest.mark.parametrize(
    "middle",
    [
        pytest.param([delta(0, partial_json="")], id="quirk: a_no_args"),
        pytest.param([], id="quirk: a_no_deltas"),
        pytest.param([delta(0, partial_json="{}")], id="braces"),
    ],
)
def test_a_call_without_arguments_has_an_empty_object(middle: list[Any]) -> None:
    """field: A1, B11, F20"""
    response = read(wire(start(), call_block(0, "clock"), *middle, stop(0), *ENDED))
    assert response.parts == (ToolCall(ID1, "clock", "{}"),)


def test_a_call_may_begin_without_an_input() -> None:
    """quirk: a_no_input_field"""
    opened = call_block(0)
    del opened["content_block"]["input"]
    response = read(wire(start(), opened, delta(0, partial_json=CITY), stop(0), *ENDED))
    assert response.parts == (ToolCall(ID1, "get_weather", CITY),)


def test_an_input_that_comes_whole_in_the_start_is_read() -> None:
    """quirk: a_no_deltas; field: A2"""
    response = read(wire(start(), call_block(0, input={"city": "Paris"}), stop(0), *ENDED))
    assert response.parts == (ToolCall(ID1, "get_weather", CITY),)


def test_a_stop_reason_that_forgets_the_calls_is_mended() -> None:
    """quirk: a_end_turn_with_tool; field: A4"""
    assert read(wire(start(), *CALL, ending("end_turn"), STOP)).reason == "tool_calls"
    assert read(wire(start(), *TALK, ending("tool_use"), STOP)).reason == "stop"


def test_a_block_that_stops_twice_is_one_call() -> None:
    """quirk: a_dup_block_stop"""
    response = read(wire(start(), *TALK, stop(0), *CALL, stop(1), stop(1), *ENDED))
    assert response.parts == (Text("Hello"), ToolCall(ID1, "get_weather", CITY))


def test_a_start_repeated_with_every_delta_is_one_call() -> None:
    """field: A14, D6"""
    again = [event for piece in ('{"city":', '"Paris"}') for event in (call_block(1), delta(1, partial_json=piece))]
    assert read(wire(start(), *again, stop(1), *ENDED)).parts == (ToolCall(ID1, "get_weather", CITY),)


def test_calls_that_all_claim_index_0_stay_apart() -> None:
    first = (call_block(0), delta(0, partial_json=CITY), stop(0))
    second = (call_block(0, "clock", ID2), delta(0, partial_json="{}"), stop(0))
    response = read(wire(start(), *first, *second, *ENDED))
    assert response.parts == (ToolCall(ID1, "get_weather", CITY), ToolCall(ID2, "clock", "{}"))


def test_an_empty_text_block_is_no_part() -> None:
    """quirk: a_empty_text_block; field: A4"""
    response = read(wire(start(), text_block(0), delta(0, text=""), stop(0), *CALL, *ENDED))
    assert response.parts == (ToolCall(ID1, "get_weather", CITY),)


def test_unknown_events_are_ignored_and_unknown_blocks_kept() -> None:
    """quirk: a_unknown_event"""
    search = block(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={})
    query = [search, delta(0, partial_json='{"query":'), delta(0, partial_json='"x"}'), stop(0)]
    found = block(1, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[{"url": "u"}])
    novel = [
        block(2, type="novel", text="a"),
        delta(2, type="novel_delta", text="b"),
        delta(2, type="novel_delta", n=1),
    ]
    data = wire(
        start(), {"type": "weather_report", "sky": 1}, *query, found, stop(1), *novel, stop(2), *TALK, ending(), STOP
    )
    assert read(data).parts == (
        Opaque("anthropic", {**search["content_block"], "input": {"query": "x"}}),
        Opaque("anthropic", found["content_block"]),
        Opaque("anthropic", {"type": "novel", "text": "ab", "n": 1}),
        Text("Hello"),
    )


def test_thinking_keeps_its_signature_and_redacted_thinking_its_data() -> None:
    """quirk: a_thinking; field: C2, C7"""
    thought = [block(0, type="thinking", thinking="", signature=""), delta(0, thinking="Let "), delta(0, thinking="me")]
    sealed = [*thought, delta(0, signature="sig1"), stop(0)]
    hidden = [block(1, type="redacted_thinking", data="secret"), stop(1)]
    silent = [block(2, type="thinking", thinking="", signature=""), delta(2, signature="sig2"), stop(2)]
    response = read(wire(start(), *sealed, *hidden, *silent, *TALK, ending(), STOP))
    assert response.parts == (
        Reasoning("Let me", ReasoningSignature("anthropic", {"signature": "sig1"})),
        Reasoning("", ReasoningSignature("anthropic", {"data": "secret"})),
        Reasoning("", ReasoningSignature("anthropic", {"signature": "sig2"})),
        Text("Hello"),
    )


def test_thinking_and_signature_may_share_a_delta() -> None:
    """field: A10"""
    both = delta(0, thinking="Hm", signature="sig")
    response = read(wire(start(), block(0, type="thinking", thinking=""), both, stop(0), *TALK, ending(), STOP))
    assert response.parts == (Reasoning("Hm", ReasoningSignature("anthropic", {"signature": "sig"})), Text("Hello"))


def test_thinking_sent_into_a_block_of_text_is_still_thinking() -> None:
    """field: A6, A9"""
    response = read(
        wire(start(), text_block(0), delta(0, thinking="Hm"), delta(0, text="Yes"), stop(0), ending(), STOP)
    )
    assert response.parts == (Reasoning("Hm"), Text("Yes"))


def test_deltas_of_blocks_that_never_began() -> None:
    """field: A7"""
    assert read(wire(start(), delta(3, text="Hi"), stop(3), ending(), STOP)).parts == (Text("Hi"),)
    with pytest.raises(InvalidUpstreamAnswer, match="never began"):
        read(wire(start(), delta(3, partial_json="{"), stop(3), ending(), STOP))


def test_a_stream_may_begin_with_a_block() -> None:
    """field: A11"""
    emitted = events(wire(*CALL, *ENDED))
    assert emitted[0] == StepStart()
    assert PartEnd(ToolCall(ID1, "get_weather", CITY)) in emitted


def test_input_tokens_may_come_with_the_end() -> None:
    """quirk: a_input_tokens_in_delta; field: G10"""
    counts = {"input_tokens": 11, "cache_read_input_tokens": 3, "output_tokens": 2}
    response = read(wire(start({"input_tokens": 0, "output_tokens": 0}), *TALK, ending(usage=counts), STOP))
    assert response.usage == Usage(input=14, output=2, cache_read=3)


def test_cached_tokens_count_as_input() -> None:
    """field: G9; spec: U9"""
    counts = {"input_tokens": 4, "cache_read_input_tokens": 10, "cache_creation_input_tokens": 6, "output_tokens": 1}
    details = {"output_tokens": 9, "output_tokens_details": {"thinking_tokens": 5}}
    response = read(wire(start(counts), *TALK, ending(usage=details), STOP))
    assert response.usage == Usage(input=20, output=9, cache_read=10, cache_write=6, reasoning=5)


def test_usage_that_was_not_reported_is_none() -> None:
    events_ = wire(*TALK, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, STOP)
    assert read(events_).usage is None


@pytest.mark.parametrize(
    ("word", "reason", "extra"),
    [
        ("end_turn", "stop", {}),
        ("max_tokens", "length", {}),
        ("model_context_window_exceeded", "length", {"anthropic": {"stop_reason": "model_context_window_exceeded"}}),
        pytest.param("pause_turn", "pause", {}, id="quirk: a_pause_turn"),
        pytest.param("refusal", "content_filter", {}, id="quirk: a_refusal"),
        ("compaction", "pause", {"anthropic": {"stop_reason": "compaction"}}),
        ("length", "length", {}),
        ("STOP", "stop", {}),
        ("who_knows", "stop", {}),
    ],
)
def test_stop_reasons(word: str, reason: str, extra: dict[str, Any]) -> None:
    response = read(wire(start(), *TALK, ending(word), STOP))
    assert (response.reason, response.extra) == (reason, extra)


def test_further_fields_of_the_end_are_kept() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": None}
    end = {**ending("refusal", stop_details=details), "context_management": {"applied_edits": []}}
    response = read(wire(start(), *TALK, end, STOP))
    assert response.extra == {"anthropic": {"stop_details": details, "context_management": {"applied_edits": []}}}


def test_a_stop_sequence_is_named() -> None:
    end = {"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}, "usage": {}}
    response = read(wire(start(), *TALK, end, STOP))
    assert (response.reason, response.stop_sequence) == ("stop", "END")


@pytest.mark.parametrize("half", ["", '{"city":', '{"city":"Par'])
def test_an_incomplete_call_is_never_emitted_as_complete(half: str) -> None:
    """field: A26"""
    data = wire(start(), call_block(0), delta(0, partial_json=half), stop(0), ending("max_tokens"), STOP)
    response = read(data)
    assert response.reason == "length"
    assert [part.complete for part in all_of(ToolCall, response.parts)] == [False]


def test_a_whole_call_before_the_limit_is_whole() -> None:
    cut = (call_block(2, "clock", ID2), delta(2, partial_json='{"zone":'), stop(2))
    response = read(wire(start(), *CALL, *cut, ending("max_tokens"), STOP))
    assert [part.complete for part in all_of(ToolCall, response.parts)] == [True, False]


def test_a_call_without_arguments_before_the_limit_is_whole_when_more_followed() -> None:
    cut = (call_block(2, id=ID2), delta(2, partial_json='{"ci'), stop(2))
    response = read(wire(start(), call_block(1, "clock"), stop(1), *cut, ending("max_tokens"), STOP))
    assert [part.complete for part in all_of(ToolCall, response.parts)] == [True, False]


def test_an_empty_input_at_the_limit_is_whole_only_if_the_tool_demands_nothing() -> None:
    demanding = {**WEATHER, "input_schema": {"type": "object", "required": ["city"]}}
    content = [{"type": "tool_use", "id": ID1, "name": "get_weather", "input": {}}]
    body = {"content": content, "stop_reason": "max_tokens"}
    for tool, complete in ((demanding, False), (WEATHER, True)):
        (call,) = DIALECT.upstream.decode_response(body, decode_request(tools=[tool])).parts
        assert of(ToolCall, call).complete is complete


def test_citations_stay_with_their_text() -> None:
    cited = {"type": "char_location", "cited_text": "x"}
    response = read(
        wire(start(), text_block(0), delta(0, text="Hi"), delta(0, citation=cited), stop(0), ending(), STOP)
    )
    assert response.parts == (Text("Hi", {"anthropic": {"citations": [cited]}}),)


def test_text_blocks_stay_apart() -> None:
    """field: A25"""
    second = (text_block(1), delta(1, text="Two"), stop(1))
    assert read(wire(start(), *TALK, *second, ending(), STOP)).parts == (Text("Hello"), Text("Two"))


def test_ids_that_clients_refuse_are_carried_in_ones_they_take() -> None:
    """field: B10"""
    (call,) = read(wire(start(), call_block(0, "clock", "functions.clock:0"), stop(0), *ENDED)).parts
    assert isinstance(call, ToolCall)
    assert call.id.replace("_", "").replace("-", "").isalnum()


@pytest.mark.parametrize(
    "event",
    [
        b"data: nonsense\n\n",
        b"data: [1]\n\n",
        b'data: {"type":"content_block_start","index":0}\n\n',
        b'data: {"type":"content_block_delta","index":0}\n\n',
    ],
)
def test_what_makes_no_sense_fails(event: bytes) -> None:
    with pytest.raises(InvalidUpstreamAnswer):
        read(wire(start()) + event)


def test_a_call_without_a_name_fails() -> None:
    with pytest.raises(InvalidUpstreamAnswer, match="without a name"):
        read(wire(start(), block(0, type="tool_use", id=ID1, input={}), stop(0), *ENDED))


def test_event_names_may_be_missing_and_a_foreign_terminator_be_added() -> None:
    data = b"".join([f"data: {json.dumps(event)}\n\n".encode() for event in (start(), *TALK, ending())])
    assert read(data + b"data: [DONE]\n\n").parts == (Text("Hello"),)


def test_nothing_is_awaited_after_message_stop() -> None:
    decoder, framing = DIALECT.upstream.decoder(REQUEST), DIALECT.frame_decoder()
    for frame in framing.feed(wire(start(), *TALK, ending(), STOP)):
        decoder.feed(frame)
    assert decoder.done
    assert decoder.end() == []


def test_streamed_and_whole_answers_have_the_same_content() -> None:
    """field: A25"""
    content: list[dict[str, Any]] = [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "Hello", "citations": [{"type": "char_location"}]},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "tool_use",
            "id": ID1,
            "name": "get_weather",
            "input": {"city": "Paris"},
            "caller": {"type": "direct"},
        },
        {"type": "tool_use", "id": ID2, "name": "clock", "input": {}},
    ]
    body = {**start()["message"], "content": content, "stop_reason": "tool_use", "usage": {**USAGE, "output_tokens": 7}}
    parts = [
        [block(0, type="thinking", thinking=""), delta(0, thinking="Hm"), delta(0, signature="sig"), stop(0)],
        [block(1, **content[1]), stop(1)],
        [text_block(2), stop(2)],
        [text_block(3), delta(3, text="Hello"), delta(3, citation={"type": "char_location"}), stop(3)],
        [block(4, **{**content[4], "input": {}}), delta(4, partial_json='{"query":"x"}'), stop(4)],
        [call_block(5, caller={"type": "direct"}), delta(5, partial_json=CITY), stop(5)],
        [call_block(6, "clock", ID2), stop(6)],
    ]
    in_stream = read(wire(start(), *[event for part in parts for event in part], ending("tool_use"), STOP))
    in_one = DIALECT.upstream.decode_response(body, REQUEST)
    assert in_one == in_stream
    assert len(in_one.parts) == 6


@pytest.mark.parametrize("body", [[], {}, {"content": "text"}, "text", None, {"type": "message"}])
def test_a_whole_answer_without_content_fails(body: dict[str, Any] | str | list[Any] | None) -> None:
    with pytest.raises(InvalidUpstreamAnswer, match="holds no content"):
        DIALECT.upstream.decode_response(body, REQUEST)


def test_enormous_numbers_survive_a_whole_answer() -> None:
    """quirk: args_bignum"""
    content = [{"type": "tool_use", "id": ID1, "name": "get_weather", "input": {"n": 12345678901234567890123}}]
    (call,) = DIALECT.upstream.decode_response({"content": content, "stop_reason": "tool_use"}, REQUEST).parts
    assert call == ToolCall(ID1, "get_weather", '{"n":12345678901234567890123}')


def test_errors_with_a_status() -> None:
    def fault(status: int, kind: str) -> ToolgateError:
        body = json.dumps({"type": "error", "error": {"type": kind, "message": "No."}}).encode()
        return DIALECT.upstream.decode_error(status, {"retry-after": "3"}, body)

    busy = fault(529, "overloaded_error")
    assert (type(busy), busy.status, busy.message, busy.retry_after) == (UpstreamUnavailable, 503, "No.", 3.0)
    assert isinstance(fault(400, "invalid_request_error"), UpstreamRejected)
    assert fault(429, "rate_limit_error").status == 429


@pytest.mark.parametrize(
    "date", ["01 Jan 99999999999999999999 00:00:00 GMT", "01 Jan 2027 00:00:00 +99999999999999999999"]
)
def test_a_retry_after_with_a_date_of_many_digits_counts_as_absent(date: str) -> None:
    """It was an error 500."""
    fault = DIALECT.upstream.decode_error(429, {"retry-after": f"Mon, {date}"}, b"{}")
    assert (fault.status, fault.retry_after) == (429, None)


def test_many_tiny_deltas_cost_the_same_each() -> None:
    """quirk: many_tiny"""
    text = json.dumps({"text": "x" * 4000})
    pieces = [delta(0, partial_json=letter) for letter in text]
    (call,) = read(wire(start(), call_block(0), *pieces, stop(0), *ENDED)).parts
    assert call == ToolCall(ID1, "get_weather", text)
