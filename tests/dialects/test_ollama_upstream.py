"""What Ollama upstreams and their clones send, and what they are sent."""

import json
from typing import Any

import pytest

from tests.dialects.ollama_cases import (
    CLOCK,
    DIALECT,
    DONE,
    REPLY,
    REQUEST,
    WEATHER,
    call,
    events,
    line,
    read,
    wire,
    written,
)
from tests.typed import all_of, of
from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer, UpstreamRejected, UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, PartStart, Usage
from toolgate.conversation.message import (
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import (
    ModelRequest,
    ReasoningSettings,
    RequestSettings,
    StructuredOutputFormat,
    ToolChoice,
    ToolDef,
)
from toolgate.dialects.dialect import Quirks
from toolgate.dialects.ollama.shared_codec import THINKING

PNG = "iVBORw0KGgoAAAANSUhEUg=="


def calls_of(response: ModelResponse) -> list[tuple[str, Any]]:
    return [(part.name, json.loads(part.arguments)) for part in response.parts if isinstance(part, ToolCall)]


def test_a_call_in_one_line_and_done_in_the_next() -> None:
    """quirk: o_call_then_done; field: F29"""
    response = read(wire(line(tool_calls=[call()]), DONE))
    assert calls_of(response) == [("get_weather", {"city": "Oslo"})]
    assert response.reason == "tool_calls"
    assert response.usage == Usage(5, 7)


def test_a_call_in_the_done_line() -> None:
    """quirk: o_call_in_done"""
    response = read(wire(line(tool_calls=[call()], done=True, done_reason="stop")))
    assert calls_of(response) == [("get_weather", {"city": "Oslo"})]
    assert response.reason == "tool_calls"


def test_arguments_as_a_json_string() -> None:
    """quirk: o_args_string"""
    response = read(wire(line(tool_calls=[call(arguments='{"city": "Oslo"}')]), DONE))
    assert calls_of(response) == [("get_weather", {"city": "Oslo"})]


@pytest.mark.parametrize("entry", [{"function": {"name": "clock", "arguments": None}}, {"function": {"name": "clock"}}])
def test_arguments_null_or_missing(entry: dict[str, Any]) -> None:
    """quirk: o_no_args; field: B11"""
    response = read(wire(line(tool_calls=[entry]), DONE))
    assert [part.arguments for part in all_of(ToolCall, response.parts)] == ["{}"]


@pytest.mark.parametrize("before", [(), (line("Hello"),), (line(tool_calls=[call()]),)])
def test_an_error_line_fails_the_answer_wherever_it_stands(before: tuple[dict[str, Any], ...]) -> None:
    """quirk: o_error_line"""
    with pytest.raises(UpstreamUnavailable, match="model runner has unexpectedly stopped"):
        read(wire(*before, {"error": "model runner has unexpectedly stopped"}))


def test_thinking_becomes_reasoning_and_finds_its_way_back() -> None:
    """quirk: o_thinking; field: C10"""
    response = read(wire(line(thinking="Let me "), line(thinking="see."), line("Yes."), DONE))
    assert response.parts == (Reasoning("Let me see.", THINKING), Text("Yes."))
    body, _ = written(ModelRequest("m", (Message("assistant", response.parts),)))
    assert body["messages"] == [{"role": "assistant", "content": "Yes.", "thinking": "Let me see."}]


def test_done_reason_length() -> None:
    """quirk: o_length; field: A26"""
    assert read(wire(line("Once upon"), line(done=True, done_reason="length"))).reason == "length"


@pytest.mark.parametrize("last", [{"done": True}, line(done=True), {"model": "m", "done": True, "message": None}])
def test_done_without_a_reason_or_counts(last: dict[str, Any]) -> None:
    """quirk: o_done_no_reason"""
    response = read(wire(line("Hi"), last))
    assert (response.parts, response.reason, response.usage) == ((Text("Hi"),), "stop", None)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 0])
def test_crlf_lines_in_pieces_of_any_size(size: int) -> None:
    """quirk: o_crlf_split; field: A31"""
    lines = [line("Grüße "), line("👩‍🚀"), line(tool_calls=[call(arguments={"city": "Tromsø"})]), DONE]
    data = b"".join([json.dumps(one, ensure_ascii=False).encode() + b"\r\n" for one in lines])
    response = read(data, size)
    assert response.parts[0] == Text("Grüße 👩‍🚀")
    assert calls_of(response) == [("get_weather", {"city": "Tromsø"})]


def test_the_last_line_without_a_newline() -> None:
    """quirk: o_no_final_newline"""
    assert read(wire(line("Hi"), DONE).rstrip()).parts == (Text("Hi"),)


def test_two_objects_on_one_line_are_two_lines() -> None:
    """quirk: o_glued (policy: they are cut apart, streamed and whole alike)"""
    data = (json.dumps(line("a}{b")) + json.dumps(line("c")) + json.dumps(DONE)).encode()
    assert read(data).parts == (Text("a}{bc"),)


def test_blank_lines_are_nothing() -> None:
    assert read(b"\n\r\n" + wire(line("Hi")) + b"\n" + wire(DONE) + b"\n").parts == (Text("Hi"),)


@pytest.mark.parametrize("lines", [(), (line("Hel"),), (line(tool_calls=[call()]),), (line(thinking="Hm"),)])
def test_a_stream_that_stops_before_done_is_garbled(lines: tuple[dict[str, Any], ...]) -> None:
    """field: A27"""
    with pytest.raises(InvalidUpstreamAnswer):
        read(wire(*lines))


def test_a_stream_cut_in_the_middle_of_a_line_is_malformed() -> None:
    with pytest.raises(InvalidUpstreamAnswer):
        read(wire(line("Hello"), DONE)[:-20])


@pytest.mark.parametrize("data", [b"<html>busy</html>\n", b'"text"\n', wire(line(tool_calls=["x"]), DONE)])
def test_a_line_that_is_not_ollamas_is_malformed(data: bytes) -> None:
    with pytest.raises(InvalidUpstreamAnswer):
        read(data)


def test_a_call_without_a_name_is_garbled() -> None:
    with pytest.raises(InvalidUpstreamAnswer, match="without a name"):
        read(wire(line(tool_calls=[{"function": {"arguments": {}}}]), DONE))


def test_what_follows_the_done_line_is_not_read() -> None:
    decoder = DIALECT.upstream.decoder(REQUEST)
    frames = DIALECT.frame_decoder().feed(wire(line("Hi"), DONE, {"error": "late"}))
    for frame in frames:
        decoder.feed(frame)
    assert decoder.done
    assert decoder.end() == []


def test_a_model_that_was_only_loaded_has_not_answered() -> None:
    with pytest.raises(UpstreamUnavailable, match="did not answer"):
        read(wire(line(done=True, done_reason="load")))


def test_parallel_calls_get_distinct_ids_and_keep_their_order() -> None:
    """field: A17"""
    entries = [
        call(arguments={"city": "A"}, id="call_0"),
        call(arguments={"city": "B"}, id="call_0"),
        call("clock", {}),
    ]
    response = read(wire(line(tool_calls=entries), DONE))
    assert [name for name, _ in calls_of(response)] == ["get_weather", "get_weather", "clock"]
    assert len({part.id for part in all_of(ToolCall, response.parts)}) == 3


def test_ids_of_newer_servers_come_back_to_them() -> None:
    response = read(wire(line(tool_calls=[call(id="call_ab12cd34")]), DONE))
    (made,) = response.parts
    history = (Message("assistant", (made,)), Message("tool", (ToolResult(of(ToolCall, made).id, (Text("4°"),)),)))
    body, _ = written(ModelRequest("m", history))
    assert body["messages"][0]["tool_calls"][0]["id"] == "call_ab12cd34"
    assert body["messages"][1] == {
        "role": "tool",
        "content": "4°",
        "tool_call_id": "call_ab12cd34",
        "tool_name": "get_weather",
    }


def test_numbers_in_arguments_are_not_rounded() -> None:
    """quirk: args_bignum; quirk: args_dup_keys"""
    text = '{"n": 12345678901234567890123, "x": 1e400, "y": 1.10, "y": 0.10000000000000000001}'
    data = wire(
        '{"message":{"content":"","tool_calls":[{"function":{"name":"clock","arguments":' + text + "}}]}}", DONE
    )
    (made,) = read(data).parts
    assert of(ToolCall, made).arguments == text
    assert text.encode() in DIALECT.server.encode_response(read(data), REQUEST, REPLY)


def test_a_whole_answer_means_the_same_as_a_streamed_one() -> None:
    """quirk: o_json_content_type (a body is read by what it holds, never by its content type)"""
    body = line("Yes.", thinking="Hm.", tool_calls=[call()], done=True, done_reason="stop", prompt_eval_count=1)
    whole, streamed = DIALECT.upstream.decode_response(body, REQUEST), read(wire(body))
    assert [type(part) for part in whole.parts] == [Reasoning, Text, ToolCall]
    assert calls_of(whole) == calls_of(streamed)
    assert (
        (whole.reason, whole.usage) == (streamed.reason, streamed.usage) == ("tool_calls", Usage(1, missing="output"))
    )


def test_a_whole_answer_without_done_is_whole_but_one_that_denies_it_is_not() -> None:
    body = line("Hi")
    with pytest.raises(InvalidUpstreamAnswer):
        DIALECT.upstream.decode_response(body, REQUEST)
    del body["done"]
    assert DIALECT.upstream.decode_response(body, REQUEST).parts == (Text("Hi"),)


@pytest.mark.parametrize(
    ("body", "fault"),
    [({"error": "no memory"}, UpstreamUnavailable), ({}, InvalidUpstreamAnswer), ([], InvalidUpstreamAnswer)],
)
def test_a_whole_answer_that_is_none(body: dict[str, Any] | list[Any], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        DIALECT.upstream.decode_response(body, REQUEST)


def test_a_refusal_keeps_its_status_and_text() -> None:
    fault = DIALECT.upstream.decode_error(404, {}, b'{"error":"model \'x\' not found"}')
    assert isinstance(fault, UpstreamRejected)
    assert (fault.status, fault.message) == (404, "model 'x' not found")


def test_text_is_emitted_as_it_arrives() -> None:
    seen = events(wire(line("Hel"), line("lo"), DONE))
    assert [event.text for event in seen if isinstance(event, PartDelta)] == ["Hel", "lo"]
    assert sum(isinstance(event, PartStart) for event in seen) == 1


def test_a_call_is_emitted_complete_as_soon_as_it_is_read() -> None:
    decoder = DIALECT.upstream.decoder(REQUEST)
    (frame,) = DIALECT.frame_decoder().feed(wire(line(tool_calls=[call()])))
    assert isinstance(decoder.feed(frame)[-1], PartEnd)


def test_an_answer_with_pictures_holds_them() -> None:
    assert Media("image", "image/png", PNG) in read(wire(line("Look:", images=[PNG]), DONE)).parts


def test_a_whole_history_is_written_in_ollamas_shapes() -> None:
    """field: A5"""
    messages = (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("Look"), Text("here."), Media("image", "image/png", PNG))),
        Message("assistant", (Text("I see."), ToolCall("call_1", "get_weather", '{"city": "Oslo"}'))),
        Message("tool", (ToolResult("call_1", (Text("4°"),), name="get_weather"),)),
        Message("system", (Text("Hurry."),)),
    )
    body, dropped = written(ModelRequest("m", messages, (WEATHER, CLOCK), stream=True))
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look\nhere.", "images": [PNG]},
        {
            "role": "assistant",
            "content": "I see.",
            "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Oslo"}}}
            ],
        },
        {"role": "tool", "content": "4°", "tool_call_id": "call_1", "tool_name": "get_weather"},
        {"role": "system", "content": "Hurry."},
    ]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather", "clock"]
    assert body["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert body["stream"] is True
    assert dropped == ()


def test_streaming_is_always_requested_explicitly() -> None:
    assert written(ModelRequest("m", REQUEST.messages, stream=False))[0]["stream"] is False


def test_settings_become_options() -> None:
    settings = RequestSettings(
        10, 0.5, 0.9, 40, ("END",), 7, 0.1, 0.2, StructuredOutputFormat(), ReasoningSettings(effort="high")
    )
    body, _ = written(ModelRequest("m", REQUEST.messages, settings=settings))
    assert body["options"] == {
        "num_predict": 10,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["END"],
        "seed": 7,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
    }
    assert (body["format"], body["think"]) == ("json", "high")


@pytest.mark.parametrize(
    ("thinking", "think"),
    [
        (ReasoningSettings(), True),
        (ReasoningSettings(False), False),
        (ReasoningSettings(effort="minimal"), "low"),
        (ReasoningSettings(effort="xhigh"), "max"),
        (ReasoningSettings(effort="none"), False),
        (ReasoningSettings(effort="adaptive"), True),
        (ReasoningSettings(budget=1024), "low"),
        (ReasoningSettings(budget=8000), "medium"),
        (ReasoningSettings(budget=32000), "high"),
    ],
)
def test_thinking_is_encoded_in_ollamas_values(thinking: ReasoningSettings, think: bool | str) -> None:
    body, _ = written(ModelRequest("m", REQUEST.messages, settings=RequestSettings(thinking=thinking)))
    assert body["think"] == think


def test_a_schema_is_the_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = ModelRequest("m", REQUEST.messages, settings=RequestSettings(output=StructuredOutputFormat(schema)))
    assert written(request)[0]["format"] == schema
    assert written(request, Quirks(output_format="json"))[0]["format"] == "json"
    assert "format" not in written(request, Quirks(output_format="none"))[0]


@pytest.mark.parametrize(
    ("choice", "names", "notes"),
    [
        (None, ["get_weather", "clock"], 0),
        (ToolChoice("auto"), ["get_weather", "clock"], 0),
        (ToolChoice("none"), None, 0),
        (ToolChoice("required"), ["get_weather", "clock"], 1),
        (ToolChoice("required", ("clock",)), ["clock"], 1),
        (ToolChoice("auto", ("clock",)), ["clock"], 0),
        (ToolChoice(parallel=False), ["get_weather", "clock"], 1),
        (ToolChoice(parallel=True), ["get_weather", "clock"], 0),
    ],
)
def test_a_choice_is_made_by_what_is_left_out(choice: ToolChoice | None, names: list[Any] | None, notes: int) -> None:
    """field: B17, B20"""
    body, dropped = written(ModelRequest("m", REQUEST.messages, (WEATHER, CLOCK), choice))
    assert ([tool["function"]["name"] for tool in body["tools"]] if "tools" in body else None) == names
    assert len(dropped) == notes


@pytest.mark.parametrize(
    ("part", "note"),
    [
        (Media("image", url="https://example.org/a.png"), "image by url"),
        (Media("audio", "audio/wav", "AAAA"), "audio by value"),
        (Media("file", file_id="f1"), "file by file id"),
        (Opaque("anthropic", {"type": "search_result"}), "known to anthropic only"),
    ],
)
def test_what_has_no_place_is_named(part: Part, note: str) -> None:
    body, dropped = written(ModelRequest("m", (Message("user", (Text("Look"), part)),)))
    assert body["messages"] == [{"role": "user", "content": "Look"}]
    assert note in dropped[0]


def test_tools_and_settings_that_have_no_place_are_named() -> None:
    tools = (ToolDef("web", kind="hosted"), ToolDef("patch", kind="freeform"), ToolDef("f", strict=True))
    body, dropped = written(ModelRequest("m", REQUEST.messages, tools, settings=RequestSettings(user="me")))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]
    assert len(dropped) == 4


def test_several_answers_are_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        written(ModelRequest("m", REQUEST.messages, settings=RequestSettings(choices=2)))
    assert refused.value.param == "n"


def test_pictures_out_of_results_follow_all_results_of_the_turn() -> None:
    """field: B1"""
    messages = (
        Message("assistant", (ToolCall("call_a", "shot", "{}"), ToolCall("call_b", "clock", "{}"))),
        Message("tool", (ToolResult("call_a", (Media("image", "image/png", PNG),)),)),
        Message("tool", (ToolResult("call_b", (Text("noon"),)),)),
        Message("user", (Text("Well?"),)),
    )
    body, dropped = written(ModelRequest("m", messages))
    assert [message["role"] for message in body["messages"]] == ["assistant", "tool", "tool", "user", "user"]
    assert body["messages"][3]["images"] == [PNG]
    assert body["messages"][1]["tool_name"] == "shot"
    assert dropped == ()
    kept, _ = written(ModelRequest("m", messages[:3]), Quirks(images_in_tool_results=True))
    assert kept["messages"][1]["images"] == [PNG]


def test_reasoning_that_another_dialect_sealed_stays_out() -> None:
    """law 8"""
    thoughts = (
        Reasoning("a", ReasoningSignature("anthropic", {"signature": "x"})),
        Reasoning("b"),
        Reasoning("c", THINKING),
    )
    body, _ = written(ModelRequest("m", (Message("assistant", (*thoughts, Text("d"))),)))
    assert body["messages"] == [{"role": "assistant", "content": "d", "thinking": "b\nc"}]


def test_broken_arguments_in_a_history_are_neither_lost_nor_taken_for_none() -> None:
    """field: B12"""
    body, _ = written(ModelRequest("m", (Message("assistant", (ToolCall("call_1", "f", '{"a": '),)),)))
    assert body["messages"][0]["tool_calls"][0]["function"]["arguments"] == {"INVALID_JSON": '{"a": '}


def test_refusals_are_text() -> None:
    body, _ = written(ModelRequest("m", (Message("assistant", (RefusalPart("No."),)),)))
    assert body["messages"] == [{"role": "assistant", "content": "No."}]


def test_unsupported_fields_are_left_out_and_named() -> None:
    request = ModelRequest("m", REQUEST.messages, settings=RequestSettings(seed=1, thinking=ReasoningSettings()))
    body, dropped = written(request, Quirks(unsupported=("think", "seed", "format")))
    assert "think" not in body
    assert body["options"] == {}
    assert len(dropped) == 2


def test_a_key_is_sent_as_a_bearer_token() -> None:
    assert DIALECT.upstream.headers("k") == {"authorization": "Bearer k"}
    assert DIALECT.upstream.headers(None) == {}
    assert DIALECT.upstream.path(REQUEST) == "/api/chat"
