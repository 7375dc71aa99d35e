"""What a Responses client gets: every event and body is what OpenAI's types and the open specification say."""

import json
from typing import Any

import openai
import pytest

from tests.dialects.openai_responses_cases import (
    CITY,
    ID1,
    ID2,
    WEATHER,
    by_the_sdk,
    check_event,
    check_response,
    decode_events,
)
from toolgate.conversation.errors import InvalidRequest, RateLimited, UpstreamRejected, UpstreamUnavailable
from toolgate.conversation.events import (
    FinishReason,
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    RunEvent,
    StepEnd,
    StepStart,
    Usage,
)
from toolgate.conversation.fold import unfold_part
from toolgate.conversation.message import (
    Media,
    Opaque,
    Part,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.reasoning_envelope import unwrap_signature
from toolgate.dialects.dialect import AnswerMetadata
from toolgate.dialects.openai_responses import DIALECT
from toolgate.dialects.openai_responses.server import ResponsesStreamEncoder
from toolgate.dialects.openai_responses.shared_codec import NAME

REPLY = AnswerMetadata("resp_ours", 1_700_000_000, "public")
BODY: dict[str, Any] = {
    "model": "m",
    "input": "hi",
    "instructions": "Be brief.",
    "stream": True,
    "tools": [
        {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "patch", "format": {"type": "text"}},
        {
            "type": "namespace",
            "name": "web",
            "description": "The web.",
            "tools": [{"type": "function", "name": "open"}],
        },
        {"type": "web_search"},
    ],
    "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_weather"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"k": "v"},
    "parallel_tool_calls": False,
    "max_output_tokens": 100,
    "service_tier": "flex",
    "user": "u",
}
REQUEST = DIALECT.server.decode_request(BODY)
PLAIN = DIALECT.server.decode_request({"model": "m", "input": "hi"})
USAGE = Usage(10, 6, 4, 1, 3)

ANSWERS: dict[str, tuple[tuple[Part, ...], FinishReason]] = {
    "text": ((Text("Hello"),), "stop"),
    "nothing": ((), "stop"),
    "thoughts, text and calls": (
        (Reasoning("Hm."), Text("Look:"), WEATHER, ToolCall(ID2, "get_weather", "{}"), Text("So.")),
        "tool_calls",
    ),
    "a refusal": ((RefusalPart("No."),), "stop"),
    "a freeform call": ((ToolCall(ID1, "patch", "*** Begin", freeform=True),), "tool_calls"),
    "cut off in text": ((Text("Hel"),), "length"),
    "cut off in thought": ((Reasoning("Hm"),), "length"),
    "cut off in a call": ((Text("a"), ToolCall(ID1, "get_weather", '{"ci', complete=False)), "length"),
    "filtered": ((Text("Hel"),), "content_filter"),
    "a pause": ((Text("Hel"),), "pause"),
    "signed reasoning without text": (
        (Reasoning("", ReasoningSignature("elsewhere", {"signature": "x"})), Text("a")),
        "stop",
    ),
    "a picture": ((Media("image", "image/png", "QUJD"),), "stop"),
    "a picture elsewhere": ((Media("image", url="https://example.org/a.png"),), "stop"),
    "an item of its own kind": (
        (Opaque(NAME, {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}),),
        "stop",
    ),
    "a call that was run here": (
        (
            ToolCall(ID1, "get_weather", CITY, executor="gateway"),
            ToolResult(ID1, (Text("sunny"),)),
            ToolCall(ID2, "get_weather", CITY, executor="gateway"),
            ToolResult(ID2, (Text("no sky"),), is_error=True),
            Text("Sunny."),
        ),
        "stop",
    ),
}
answers = pytest.mark.parametrize(("parts", "reason"), list(ANSWERS.values()), ids=list(ANSWERS))


def run(parts: tuple[Part, ...], reason: FinishReason) -> list[RunEvent]:
    events: list[RunEvent] = [StepStart()]
    for part in parts:
        events += unfold_part(part)
    return [*events, StepEnd(reason, USAGE), RunEnd(reason, USAGE)]


def streamed(parts: tuple[Part, ...], reason: FinishReason = "stop", request: Any = REQUEST) -> bytes:
    encoder = ResponsesStreamEncoder(request, REPLY)
    return b"".join([encoder.encode(event) for event in run(parts, reason)])


def whole(parts: tuple[Part, ...], reason: FinishReason = "stop", request: Any = REQUEST) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        DIALECT.server.encode_response(ModelResponse(parts, reason, USAGE), request, REPLY)
    )
    return body


def without_ids(value: Any) -> Any:
    if type(value) is list:
        return [without_ids(inner) for inner in value]
    return {name: inner for name, inner in value.items() if name != "id"} if type(value) is dict else value


@answers
@pytest.mark.parametrize("request_", [REQUEST, PLAIN], ids=["elaborate", "plain"])
def test_every_event_conforms_to_the_published_types(parts: Any, reason: Any, request_: Any) -> None:
    for event in decode_events(streamed(parts, reason, request_)):
        check_event(event)


@answers
def test_a_whole_answer_conforms_to_the_published_types_and_equals_the_end_of_a_stream(parts: Any, reason: Any) -> None:
    body = whole(parts, reason)
    check_response(body)
    last = decode_events(streamed(parts, reason))[-1]["response"]
    assert {**body, "output": without_ids(body["output"])} == {**last, "output": without_ids(last["output"])}


@answers
def test_the_sdk_reads_the_stream(parts: Any, reason: Any) -> None:
    if reason in ("length", "content_filter"):
        return  # the SDK's helper waits for `response.completed` and has no word for these
    final = by_the_sdk(streamed(parts, reason))
    assert final.id == "resp_ours"
    assert final.output_text == "".join([part.text for part in parts if isinstance(part, Text)]) or "https" in str(
        parts
    )
    calls = [part for part in parts if isinstance(part, ToolCall) and part.executor == "client"]
    found = [item for item in final.output if item.type in ("function_call", "custom_tool_call")]
    assert [(item.call_id, item.name) for item in found] == [(call.id, call.name) for call in calls]
    assert final.usage is not None
    assert final.usage.input_tokens_details.cached_tokens == 4


@answers
def test_items_are_announced_sent_and_closed_under_one_id(parts: Any, reason: Any) -> None:
    events = decode_events(streamed(parts, reason))
    opened: dict[int, Any] = {}
    closed: dict[int, Any] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(opened)
                opened[event["output_index"]] = event["item"]
            case "response.output_item.done":
                closed[event["output_index"]] = event["item"]
            case _ if "item_id" in event:
                assert opened[event["output_index"]]["id"] == event["item_id"]
    assert {index: item["id"] for index, item in opened.items()} == {
        index: item["id"] for index, item in closed.items()
    }
    assert events[-1]["response"]["output"] == [closed[index] for index in sorted(closed)]


def test_the_stream_of_a_text_has_exactly_these_events() -> None:
    kinds = [event["type"].removeprefix("response.") for event in decode_events(streamed((Text("Hello"),)))]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_the_stream_of_thought_and_a_call_has_exactly_these_events() -> None:
    """field: A2, A20, B26"""
    events = decode_events(streamed((Reasoning("Hm."), WEATHER), "tool_calls"))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    call = events[8]["item"]
    assert (call["arguments"], call["name"], call["call_id"], call["status"]) == ("", "get_weather", ID1, "in_progress")
    assert events[9]["delta"] == events[10]["arguments"] == events[11]["item"]["arguments"] == CITY


def test_every_event_leaves_in_one_piece_when_it_is_known() -> None:
    encoder = ResponsesStreamEncoder(REQUEST, REPLY)
    assert encoder.encode(StepStart()).count(b"\n\n") == 2
    encoder.encode(PartStart(Text("")))
    delta = encoder.encode(PartDelta("Hel"))
    assert delta.startswith(b"event: response.output_text.delta\ndata: {")
    assert delta.endswith(b"}\n\n")


def test_a_part_without_deltas_is_sent_in_one() -> None:
    encoder = ResponsesStreamEncoder(REQUEST, REPLY)
    events: list[RunEvent] = [StepStart(), PartStart(Text("")), PartEnd(Text("Hello")), RunEnd("stop", USAGE)]
    stream = b"".join([encoder.encode(event) for event in events])
    assert [event["delta"] for event in decode_events(stream) if "delta" in event] == ["Hello"]


def test_the_response_repeats_the_request() -> None:
    body = whole((Text("a"),))
    assert body["instructions"] == "Be brief."
    assert body["tools"][0]["strict"] is None
    assert body["tools"][2]["tools"][0]["name"] == "open"
    assert body["tools"][3] == {"type": "web_search"}
    assert body["tool_choice"] == {"mode": "auto", **BODY["tool_choice"]}
    assert body["text"]["verbosity"] == "low"
    assert body["text"]["format"]["schema"] == {"type": "object"}
    assert body["text"]["format"]["strict"] is False
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert body["metadata"] == {"k": "v"}
    assert (body["parallel_tool_calls"], body["max_output_tokens"], body["service_tier"]) == (False, 100, "flex")
    assert (body["model"], body["created_at"]) == ("public", 1_700_000_000)


def test_a_response_of_a_conversation_names_it() -> None:
    request = DIALECT.server.decode_request({"model": "m", "input": "hi", "conversation": "conv_1"})
    assert whole((), request=request)["conversation"] == {"id": "conv_1"}


def test_a_complete_answer_has_completed_at_and_a_cut_one_has_none() -> None:
    timed = AnswerMetadata(REPLY.id, REPLY.created, REPLY.model, times=lambda: (1.0, 2.5))
    cases: list[tuple[FinishReason, float | None]] = [("stop", REPLY.created + 2), ("length", None)]
    for reason, second in cases:
        encoder = ResponsesStreamEncoder(REQUEST, timed)
        events = decode_events(b"".join([encoder.encode(event) for event in run((Text("Hi"),), reason)]))
        assert events[-1]["response"]["completed_at"] == second
        whole = DIALECT.server.encode_response(ModelResponse((Text("Hi"),), reason, USAGE), REQUEST, timed)
        assert json.loads(whole)["completed_at"] == second


def test_an_answer_that_was_cut_off_is_incomplete_and_so_is_its_last_item() -> None:
    """field: A26"""
    events = decode_events(streamed((Text("a"), Text("Hel")), "length"))
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in events[-1]["response"]["output"]] == ["completed", "incomplete"]


def test_a_half_call_does_not_look_complete() -> None:
    events = decode_events(streamed((ToolCall(ID1, "get_weather", '{"ci', complete=False),), "length"))
    assert "response.function_call_arguments.done" not in [event["type"] for event in events]
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_whole_call_before_the_cut_stays_whole() -> None:
    output = decode_events(streamed((WEATHER,), "length"))[-1]["response"]["output"]
    assert output[0]["status"] == "completed"


def test_a_failure_amid_the_stream_is_raised_by_the_sdk_with_its_message() -> None:
    """field: A27, A29, D5"""
    encoder = ResponsesStreamEncoder(REQUEST, REPLY)
    begun = b"".join([encoder.encode(event) for event in run((Text("a"), Text("b")), "stop")[:-2]])
    stream = begun + encoder.error(UpstreamUnavailable("The upstream is gone.", code="upstream_error"))
    with pytest.raises(openai.APIError, match=r"The upstream is gone\.") as raised:
        by_the_sdk(stream)
    assert raised.value.code == "upstream_error"
    events = decode_events(stream)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["message"] == events[-2]["error"]["message"] == "The upstream is gone."
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert [item["content"][0]["text"] for item in failed["output"]] == ["a", "b"]
    for event in events:
        check_event(event)


def test_a_stream_may_fail_before_it_begins() -> None:
    events = decode_events(ResponsesStreamEncoder(REQUEST, REPLY).error(RateLimited("Slow down.")))
    assert [event["type"] for event in events] == ["error", "response.failed"]
    assert events[1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UpstreamRejected("too long", code="context_length_exceeded"), "context_length_exceeded"),
        (InvalidRequest("no"), "invalid_prompt"),
        (UpstreamUnavailable("gone"), "server_error"),
    ],
)
def test_codes_that_clients_act_on_are_kept(error: Any, code: str) -> None:
    assert decode_events(ResponsesStreamEncoder(REQUEST, REPLY).error(error))[1]["response"]["error"]["code"] == code


def test_an_error_response_has_openais_form() -> None:
    body = json.loads(DIALECT.server.encode_error(InvalidRequest("Bad.", param="input[0]", code="invalid_type")))
    assert body == {
        "error": {"message": "Bad.", "type": "invalid_request_error", "param": "input[0]", "code": "invalid_type"}
    }


def test_a_call_gets_the_namespace_of_its_tool_back() -> None:
    """field: B32"""
    item = whole((ToolCall(ID1, "open", "{}"),), "tool_calls")["output"][0]
    assert (item["name"], item["namespace"]) == ("open", "web")


def test_a_name_that_two_namespaces_share_keeps_the_one_it_came_with() -> None:
    spaces = [{"type": "namespace", "name": name, "tools": [{"type": "function", "name": "f"}]} for name in ("a", "b")]
    request = DIALECT.server.decode_request({**BODY, "tools": spaces, "tool_choice": "auto"})
    calls = (ToolCall(ID1, "f", "{}", extra={NAME: {"namespace": "b"}}), ToolCall(ID2, "f", "{}"))
    first, second = whole(calls, "tool_calls", request)["output"]
    assert first["namespace"] == "b"
    assert "namespace" not in second


def test_a_foreign_seal_travels_in_an_envelope() -> None:
    """field: C5, C7"""
    signature = ReasoningSignature("anthropic", {"signature": "secret-of-another"})
    item = whole((Reasoning("Hm.", signature),))["output"][0]
    assert unwrap_signature(item["encrypted_content"]) == signature
    again = DIALECT.server.decode_request({"model": "m", "input": [item, {"role": "user", "content": "go on"}]})
    assert again.messages[0].parts == (Reasoning("Hm.", signature),)


def test_an_own_seal_is_shown_as_it_came() -> None:
    item = whole((Reasoning("Hm.", ReasoningSignature(NAME, {"encrypted_content": "gAAA", "summary": []})),))["output"][
        0
    ]
    assert item["encrypted_content"] == "gAAA"


def test_thoughts_without_proof_keep_their_own_form_in_an_envelope() -> None:
    signature = ReasoningSignature(NAME, {"summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]})
    item = whole((Reasoning("raw", signature),))["output"][0]
    assert unwrap_signature(item["encrypted_content"]) == signature


def test_the_envelope_of_another_gateway_is_wrapped_not_opened() -> None:
    inner = whole((Reasoning("Hm.", ReasoningSignature("anthropic", {"signature": "s"})),))["output"][0][
        "encrypted_content"
    ]
    signature = ReasoningSignature(NAME, {"encrypted_content": inner, "summary": []})
    outer = whole((Reasoning("Hm.", signature),))["output"][0]["encrypted_content"]
    assert unwrap_signature(outer) == signature


def test_parts_of_other_dialects_are_not_shown() -> None:
    stream = streamed((Opaque("anthropic", {"type": "server_tool_use", "secret": "x"}), Text("a")))
    assert b"server_tool_use" not in stream
    assert [item["type"] for item in decode_events(stream)[-1]["response"]["output"]] == ["message"]


def test_a_call_run_here_is_an_mcp_call_with_its_result() -> None:
    output = whole(*ANSWERS["a call that was run here"])["output"]
    assert [(item["type"], item.get("status"), item.get("output")) for item in output] == [
        ("mcp_call", "completed", "sunny"),
        ("mcp_call", "failed", None),
        ("message", "completed", None),
    ]


def test_half_a_surrogate_pair_does_no_harm() -> None:
    """quirk: surrogate_halves"""
    assert b"\xef\xbf\xbd" in streamed((Text("a\ud83d"),))


def test_letters_beyond_ascii_are_not_escaped() -> None:
    """field: B30"""
    assert "größer 👩‍🚀".encode() in streamed((Text("größer 👩‍🚀"),))


def test_a_delta_costs_the_same_however_much_was_sent() -> None:
    encoder = ResponsesStreamEncoder(REQUEST, REPLY)
    encoder.encode(StepStart())
    encoder.encode(PartStart(Text("")))
    first = encoder.encode(PartDelta("x"))
    for _ in range(2000):
        last = encoder.encode(PartDelta("x"))
    assert len(last) - len(first) <= 4  # the number grows, nothing else
