"""Ollama to Ollama: everything stays but what breaks clients."""

import json

import pytest
from ollama import ChatResponse, GenerateResponse

from tests.dialects.ollama_cases import DATE, DIALECT, DONE, GENERATE, REPLY, REQUEST, call, line, read, relayed, wire
from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import Usage
from toolgate.wire.received_stream_frames import ReceivedStreamFrame


def test_lines_pass_as_they_came_with_unknown_fields() -> None:
    """spec: U2"""
    lines = [
        line("Hi", logprobs=[{"token": "Hi", "logprob": -0.25}], remote_host="https://example.org"),
        line(tool_calls=[call(id="call_1", tint="red")]),
        {**DONE, "total_duration": 123456789, "future": {"a": [1]}},
    ]
    assert relayed(wire(*lines)) == lines


def test_only_what_breaks_clients_is_mended() -> None:
    passed = relayed(
        wire(
            {"message": {"content": None, "tool_calls": []}},
            {"message": {"tool_calls": [call(arguments='{"city":"Oslo"}'), {"function": {"name": "clock"}}]}},
            {"done": True},
        )
    )
    assert [one["model"] for one in passed] == ["public-name"] * 3
    assert [one["created_at"] for one in passed] == [DATE] * 3
    assert passed[0]["message"] == {"role": "assistant", "content": ""}
    assert [entry["function"]["arguments"] for entry in passed[1]["message"]["tool_calls"]] == [{"city": "Oslo"}, {}]
    assert (passed[0]["done"], passed[2]["done"], passed[2]["done_reason"]) == (False, True, "stop")
    for one in passed[:2]:
        ChatResponse.model_validate(one, strict=True)


def test_arguments_keep_their_spelling() -> None:
    """quirk: args_bignum"""
    data = wire('{"message":{"content":"","tool_calls":[{"function":{"name":"f","arguments":{"n": 1e400}}}]}}', DONE)
    relay = DIALECT.upstream.relay(REQUEST, REPLY)
    assert b'"arguments":{"n": 1e400}' in relay.feed(DIALECT.frame_decoder().feed(data)[0])


def test_answers_to_a_prompt_pass_too() -> None:
    lines = [
        {"model": "m", "created_at": "x", "response": "Hi", "thinking": "Hm", "done": False},
        {"model": "m", "created_at": "x", "response": "", "done": True, "done_reason": "stop", "context": [1, 2]},
    ]
    lines[1] |= {"prompt_eval_count": 3, "eval_count": 2}
    assert relayed(wire(*lines), GENERATE) == lines
    for one in relayed(wire({"model": "m"}, {"done": True}), GENERATE):
        assert GenerateResponse.model_validate(one, strict=True).response == ""


def test_the_relay_records_reason_usage_and_calls() -> None:
    relay = DIALECT.upstream.relay(REQUEST, REPLY)
    frames = DIALECT.frame_decoder().feed(wire(line(tool_calls=[call(), call()]), DONE, {"error": "late"}))
    passed = [relay.feed(frame) for frame in frames]
    assert (relay.done, relay.reason, relay.usage, relay.calls) == (True, "tool_calls", Usage(5, 7), 2)
    assert passed[2] == relay.end() == b""


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (wire(line("Hi"), {"error": "boom"}), UpstreamUnavailable),
        (wire(line("Hi")), InvalidUpstreamAnswer),
        (wire(line(tool_calls=[{"function": {"arguments": {}}}]), DONE), InvalidUpstreamAnswer),
        (wire(line(done=True, done_reason="load")), UpstreamUnavailable),
        (b"<html>\n", InvalidUpstreamAnswer),
        (b"", InvalidUpstreamAnswer),
    ],
)
def test_a_relay_fails_where_a_decoder_fails(data: bytes, fault: type[Exception]) -> None:
    for way in (read, relayed):
        with pytest.raises(fault):
            way(data)


def test_a_blank_frame_passes_as_nothing() -> None:
    assert DIALECT.upstream.relay(REQUEST, REPLY).feed(ReceivedStreamFrame(None, b" ")) == b""


def test_a_whole_answer_is_mended_without_touching_what_came() -> None:
    body = {
        "message": {"role": "assistant", "content": None, "tool_calls": [call(arguments="{}")], "mood": 1},
        "done": True,
        "x": 1,
    }
    before = json.dumps(body)
    response = DIALECT.upstream.decode_response(body, REQUEST)
    repaired = DIALECT.upstream.relay_response(body, response, REQUEST, REPLY)
    assert json.dumps(body) == before
    assert (repaired["x"], repaired["message"]["mood"], repaired["message"]["content"]) == (1, 1, "")
    assert bytes(repaired["message"]["tool_calls"][0]["function"]["arguments"]) == b"{}"
    assert (repaired["model"], repaired["created_at"], repaired["done_reason"]) == ("public-name", DATE, "stop")
    assert response.reason == "tool_calls"
