"""What Chat clients get: chunks and bodies that the published types accept strictly, in the order that helpers expect."""

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import chat
from pydantic import BaseModel

from tests.dialects.chat_quirks import CITY, ID1, ROLE, START1, WEATHER, calls, chunk, entry, sse
from tests.dialects.test_openai_chat_quirks import REQUEST, decode_stream, relayed
from toolgate.conversation.errors import InvalidRequest, RateLimited, UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, RunEnd, RunEvent, Usage
from toolgate.conversation.fold import unfold
from toolgate.conversation.message import (
    Message,
    Part,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import AnswerMetadata, Quirks
from toolgate.dialects.openai_chat import DIALECT

REPLY = AnswerMetadata("chatcmpl-" + "x" * 29, 1_700_000_000, "public-name")
CALL = ToolCall(ID1, WEATHER, CITY)
OURS = {"reasoning_content", "reasoning_details", "images"}
ANSWERS: dict[str, tuple[Part, ...]] = {
    "text": (Text("Hello"),),
    "call": (CALL,),
    "text and calls": (Text("Let me see."), CALL, ToolCall("call_" + "b" * 24, "get_time", "{}")),
    "reasoning": (Reasoning("Hm."), Text("Yes")),
    "signed reasoning": (Reasoning("Hm.", ReasoningSignature("anthropic", {"signature": "s"})), CALL),
    "refusal": (RefusalPart("No."),),
    "freeform call": (ToolCall(ID1, "shell", "ls -l", freeform=True),),
    "nothing": (),
}
every_answer = pytest.mark.parametrize("parts", ANSWERS.values(), ids=ANSWERS)


def events(parts: tuple[Part, ...]) -> list[RunEvent]:
    reason = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
    response = ModelResponse(parts, reason, Usage(3, 4))  # type: ignore[arg-type]
    return [*unfold(response), RunEnd(response.reason, Usage(3, 4, cache_read=1, reasoning=2))]


def streamed(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    encoder = DIALECT.server.encoder(REQUEST, REPLY)
    text = b"".join(encoder.encode(event) for event in events(parts)).decode()
    *lines, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def unknown_fields(model: BaseModel) -> set[str]:
    """Fields that the published types do not know, anywhere in the value."""
    found = set(model.model_extra or {})
    for name in type(model).model_fields:
        value = getattr(model, name)
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                found |= unknown_fields(inner)
    return found


@every_answer
def test_a_whole_answer_conforms_strictly_to_the_types(parts: tuple[Part, ...]) -> None:
    reason = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
    body = DIALECT.server.encode_response(ModelResponse(parts, reason, Usage(3, 4)), REQUEST, REPLY)  # type: ignore[arg-type]
    parsed = chat.ChatCompletion.model_validate_json(body, strict=True)
    assert unknown_fields(parsed) <= OURS


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "freeform call"])
def test_every_chunk_conforms_strictly_to_the_types(name: str) -> None:
    """A freeform call has no published form in chunks; there it mirrors the whole answer's."""
    for body in streamed(ANSWERS[name]):
        parsed = chat.ChatCompletionChunk.model_validate_json(json.dumps(body), strict=True)
        assert unknown_fields(parsed) <= OURS


@every_answer
def test_the_role_comes_first_and_one_identity_stands_on_every_chunk(parts: tuple[Part, ...]) -> None:
    """field: A21, A22"""
    chunks = streamed(parts)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert {(c["id"], c["created"], c["model"]) for c in chunks} == {(REPLY.id, REPLY.created, REPLY.model)}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 7
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]].count(None) == len(chunks) - 2


def test_a_call_starts_with_everything_and_goes_on_with_index_and_arguments_alone() -> None:
    """field: A15, A16, B26"""
    deltas = [c["choices"][0]["delta"]["tool_calls"][0] for c in streamed(ANSWERS["text and calls"])[2:-2]]
    assert deltas[0] == {"index": 0, "id": ID1, "type": "function", "function": {"name": WEATHER, "arguments": ""}}
    assert deltas[1] == {"index": 0, "function": {"arguments": CITY}}
    assert [delta["index"] for delta in deltas] == [0, 0, 1, 1]


def test_content_is_null_and_calls_are_left_out_when_there_are_none() -> None:
    """field: A24"""
    called = json.loads(DIALECT.server.encode_response(ModelResponse((CALL,), "tool_calls"), REQUEST, REPLY))
    assert called["choices"][0]["message"]["content"] is None
    body = json.loads(DIALECT.server.encode_response(ModelResponse((Text("x"),), "stop"), REQUEST, REPLY))
    assert "tool_calls" not in body["choices"][0]["message"]


def test_usage_is_sent_only_to_clients_that_request_it() -> None:
    quiet = DIALECT.server.decode_request(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    )
    encoder = DIALECT.server.encoder(quiet, REPLY)
    assert b"usage" not in b"".join(encoder.encode(event) for event in events((Text("x"),)))


def test_an_error_in_the_stream_is_followed_by_the_terminator() -> None:
    text = DIALECT.server.encoder(REQUEST, REPLY).error(UpstreamUnavailable("boom")).decode()
    error, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "boom"


def test_errors_have_the_types_that_clients_know() -> None:
    body = json.loads(DIALECT.server.encode_error(RateLimited("slow down")))
    assert body == {
        "error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"}
    }


def test_legacy_functions_are_answered_in_kind() -> None:
    ask: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "functions": [{"name": WEATHER}],
    }
    request = DIALECT.server.decode_request(ask)
    assert request.tools[0].name == WEATHER
    assert not request.relay
    body = json.loads(DIALECT.server.encode_response(ModelResponse((CALL,), "tool_calls"), request, REPLY))
    assert body["choices"][0]["message"]["function_call"] == {"name": WEATHER, "arguments": CITY}
    assert body["choices"][0]["finish_reason"] == "function_call"
    ask["messages"] += [
        {"role": "assistant", "content": None, "function_call": {"name": WEATHER, "arguments": CITY}},
        {"role": "function", "name": WEATHER, "content": "22"},
    ]
    sent, _ = DIALECT.upstream.encode_request(DIALECT.server.decode_request(ask), Quirks())
    call, result = sent["messages"][1]["tool_calls"][0], sent["messages"][2]
    assert (result["role"], result["tool_call_id"]) == ("tool", call["id"])


def test_usage_on_every_chunk_closes_nothing_early() -> None:
    """field: A12, D7"""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    stream = sse(
        {**ROLE, "usage": usage},
        {**calls(START1), "usage": usage},
        *[{**calls(entry(0, arguments=piece)), "usage": usage} for piece in ('{"city":', '"Paris"}')],
        {**chunk({}, "tool_calls"), "usage": usage},
    )
    assert [part.arguments for part in decode_stream(stream, 9).parts if isinstance(part, ToolCall)] == [CITY]


def test_a_finish_for_calls_that_never_came_is_a_plain_stop() -> None:
    """field: A19"""
    stream = sse(ROLE, chunk({"content": "Hi"}), chunk({}, "tool_calls"))
    assert decode_stream(stream, 1000).reason == "stop"
    assert b'"finish_reason":"stop"' in relayed(stream)


def test_unknown_fields_pass_through_a_relay() -> None:
    """spec: U2"""
    odd = chunk({"content": "x", "vendor": {"a": [1]}}, service_tier="flex", system_fingerprint="fp", citations=["u"])
    odd["choices"][0]["logprobs"] = {"content": [{"token": "x"}]}
    passed = json.loads(relayed(sse(ROLE, odd, chunk({}, "stop"))).decode().split("\n\n")[1].removeprefix("data: "))
    assert passed == odd


def test_a_second_choice_passes_through_a_relay() -> None:
    """quirk: two_choices"""
    second = {"index": 1, "delta": {"content": "B"}, "finish_reason": None}
    ends = {"index": 1, "delta": {}, "finish_reason": "stop"}
    stream = sse(ROLE, chunk({"content": "A"}), chunk(choices=[second]), chunk({}, "stop"), chunk(choices=[ends]))
    state = ChatCompletionStreamState()
    for line in relayed(stream).decode().split("\n\n")[:-2]:
        state.handle_chunk(chat.ChatCompletionChunk.model_validate_json(line.removeprefix("data: ")))
    assert [choice.message.content for choice in state.current_completion_snapshot.choices] == ["A", "B"]


def test_a_thought_signature_returns_on_its_call_also_from_another_dialect() -> None:
    """field: C9; quirk: thought_signature"""
    signed = {"google": {"thought_signature": "sig"}}
    stream = sse(ROLE, calls(entry(0, ID1, WEATHER, CITY, extra_content=signed)), chunk({}, "tool_calls"))
    signature, call = decode_stream(stream, 1000).parts
    assert isinstance(signature, Reasoning)
    assert isinstance(call, ToolCall)
    kept_apart = Message("assistant", (signature, ToolCall(call.id, call.name, call.arguments)))
    history = (Message("user", (Text("x"),)), kept_apart, Message("tool", (ToolResult(call.id, (Text("22"),)),)))
    sent, _ = DIALECT.upstream.encode_request(ModelRequest("m", history), Quirks())
    assert sent["messages"][1]["tool_calls"][0]["extra_content"] == signed
    assert json.dumps(sent).count("thought_signature") == 1


SCHEMA = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}, "free": {"type": "object"}, "list": {"type": "array", "items": {}}},
    "$defs": {"A": {"type": "integer"}},
    "additionalProperties": False,
    "allOf": [{"if": {"required": ["a"]}, "then": {"required": ["free"]}}],
}


def test_schemas_are_passed_on_whole() -> None:
    """field: B24"""
    tool = {"type": "function", "function": {"name": "t", "description": "d", "parameters": SCHEMA, "strict": False}}
    request = DIALECT.server.decode_request(
        {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    )
    sent, _ = DIALECT.upstream.encode_request(request, Quirks())
    assert sent["tools"] == [tool]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "magic"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "t", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": []}, "messages"),
        ({"n": 10**6}, "n"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"max_tokens": "1e999"}, "max_tokens"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_bad_request_is_refused_at_the_field(change: dict[str, Any], param: str) -> None:
    """fault: L1"""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **change}
    with pytest.raises(InvalidRequest) as caught:
        DIALECT.server.decode_request(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [{}, {"stream": True}, {"stream": False, "max_tokens": 5}, {"stream": None}, {"max_tokens": None}],
    ids=str,
)
def test_a_plain_request_means_what_it_means_field_by_field(fields: dict[str, Any]) -> None:
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "")]
    body = {"model": "m", "messages": [{"role": role, "content": text} for role, text in turns], **fields}
    not_quite_plain = {**body, "user": None}
    assert DIALECT.server.decode_request(body) == DIALECT.server.decode_request(not_quite_plain)


def test_a_plain_tool_means_what_it_means_field_by_field() -> None:
    function = {"name": "f", "description": "Does.", "parameters": {"type": "object"}}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    plain, full = (
        {**body, "tools": [{"type": "function", "function": one}]} for one in (function, {**function, "strict": None})
    )
    assert DIALECT.server.decode_request(plain) == DIALECT.server.decode_request(full)
