"""Responses streams as upstreams really send them, and the checks that every answer of ours must pass.

Names are those of the project's list of wire quirks and of field cases, so that a test's id says which one broke.
"""

import json
import typing
from typing import Any

import httpx2
from msgspec import Struct
from openai import OpenAI
from openai._models import BaseModel
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.parsed_response import ParsedResponse

from toolgate.conversation.errors import InvalidUpstreamAnswer, ToolgateError, UpstreamRejected, UpstreamUnavailable
from toolgate.conversation.events import FinishReason, Usage
from toolgate.conversation.message import Opaque, Part, Reasoning, ReasoningSignature, RefusalPart, Text, ToolCall
from toolgate.dialects.openai_responses.shared_codec import NAME
from toolgate.wire.sse_decoder import SseDecoder

ID1, ID2 = "call_" + "a" * 24, "call_" + "b" * 24
CITY = '{"city":"Paris"}'
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 14,
}
COUNTED = Usage(9, 5, 4, 0, 2)

_EVENTS: dict[str, Any] = {
    typing.get_args(model.model_fields["type"].annotation)[0]: model
    for model in typing.get_args(typing.get_args(ResponseStreamEvent)[0])
}
_OPEN_RESPONSES = {
    "Response": {"presence_penalty", "frequency_penalty", "store"},
    "ResponseErrorEvent": {"error"},
    "ResponseCustomToolCall": {"status"},
}
"""What we say beyond OpenAI's published types: the open specification asks for it, or OpenAI itself says it."""

REQUIRED: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, type(None)),
    "status": (str,),
    "incomplete_details": (dict, type(None)),
    "model": (str,),
    "previous_response_id": (str, type(None)),
    "instructions": (str, type(None)),
    "output": (list,),
    "error": (dict, type(None)),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "top_logprobs": (int,),
    "temperature": (int, float),
    "reasoning": (dict, type(None)),
    "user": (str, type(None)),
    "usage": (dict, type(None)),
    "max_output_tokens": (int, type(None)),
    "max_tool_calls": (int, type(None)),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "metadata": (dict,),
    "safety_identifier": (str, type(None)),
    "prompt_cache_key": (str, type(None)),
}
"""The fields that the Open Responses specification demands of every Response, and what they may be."""


class Quirk(Struct, frozen=True):
    """One stream and what it means."""

    name: str
    stream: bytes
    parts: tuple[Part, ...] = ()
    reason: FinishReason = "stop"
    usage: Usage | None = None
    fails: type[ToolgateError] | None = None
    mentions: str = ""


def event(kind: str, named: bool = True, **fields: Any) -> bytes:
    """One event of a stream."""
    head = f"event: {kind}\n" if named else ""
    return f"{head}data: {json.dumps({'type': kind, **fields})}\n\n".encode()


def created(**fields: Any) -> bytes:
    return event("response.created", response={"id": "resp_up", "model": "up", "status": "in_progress"}, **fields)


def completed(*output: dict[str, Any], status: str = "completed", **fields: Any) -> bytes:
    body = {"id": "resp_up", "model": "up", "status": status, "output": list(output), "usage": USAGE, **fields}
    return event(f"response.{status}", response=body)


def message(text: str, id: str = "msg_1", **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": content, **fields}


def call(arguments: Any = CITY, id: str = "fc_1", call_id: str = ID1, name: Any = "get_weather", **fields: Any) -> Any:
    return {
        "id": id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
        **fields,
    }


def added(item: dict[str, Any], index: int = 0, **fields: Any) -> bytes:
    return event("response.output_item.added", output_index=index, item=item, **fields)


def done(item: dict[str, Any], index: int = 0, **fields: Any) -> bytes:
    return event("response.output_item.done", output_index=index, item=item, **fields)


def text_delta(text: str, index: int = 0, item: str = "msg_1") -> bytes:
    return event("response.output_text.delta", item_id=item, output_index=index, content_index=0, delta=text)


def argument_delta(text: str, index: int = 0, item: str = "fc_1") -> bytes:
    return event("response.function_call_arguments.delta", item_id=item, output_index=index, delta=text)


def arguments_done(text: str, index: int = 0, item: str = "fc_1") -> bytes:
    return event("response.function_call_arguments.done", item_id=item, output_index=index, arguments=text)


EMPTY_MESSAGE = {**message(""), "content": [], "status": "in_progress"}
EMPTY_CALL = call("", status="in_progress")
WEATHER = ToolCall(ID1, "get_weather", CITY)
CLOCK = ToolCall(ID2, "get_time", "{}")
SEALED = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "final"}

QUIRKS = [
    Quirk(
        "plain",
        created() + added(EMPTY_MESSAGE) + text_delta("Hel") + text_delta("lo") + done(message("Hello")) + completed(),
        (Text("Hello"),),
        usage=COUNTED,
    ),
    Quirk(
        "r_id_rotation",
        created()
        + added({**EMPTY_CALL, "id": "x1"})
        + argument_delta('{"city":', item="x2")
        + argument_delta('"Paris"}', item="x3")
        + arguments_done(CITY, item="x4")
        + done(call(id="x5"))
        + completed(call(id="x6")),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "r_no_sequence",
        created() + added(EMPTY_MESSAGE) + text_delta("a") + done(message("a")) + completed(message("a")),
        (Text("a"),),
    ),
    Quirk(
        "r_no_event_names",
        event("response.created", named=False, response={"id": "resp_up", "model": "up"})
        + event("response.output_text.delta", named=False, output_index=0, delta="a")
        + event("response.completed", named=False, response={"status": "completed", "output": [message("a")]}),
        (Text("a"),),
    ),
    Quirk(
        "r_text_done_only",
        created()
        + added(EMPTY_MESSAGE)
        + event("response.output_text.done", item_id="msg_1", output_index=0, content_index=0, text="a")
        + completed(),
        (Text("a"),),
    ),
    Quirk(
        "r_item_done_only",
        created() + done(message("a")) + done(call(), 1) + completed(message("a"), call()),
        (Text("a"), WEATHER),
        "tool_calls",
    ),
    Quirk(
        "r_only_completed",
        completed(message("a"), call(), call("{}", "fc_2", ID2, "get_time")),
        (Text("a"), WEATHER, CLOCK),
        "tool_calls",
        COUNTED,
    ),
    Quirk(
        "r_completed_empty_output",
        created() + added(EMPTY_CALL) + argument_delta(CITY) + arguments_done(CITY) + done(call()) + completed(),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "r_failed",
        created()
        + event("response.failed", response={"status": "failed", "error": {"code": "server_error", "message": "boom"}}),
        fails=UpstreamUnavailable,
        mentions="boom",
    ),
    Quirk(
        "r_error_nested",
        created() + event("error", error={"type": "server_error", "code": "server_error", "message": "boom"}),
        fails=UpstreamUnavailable,
        mentions="boom",
    ),
    Quirk(
        "r_error_flat",
        created() + event("error", code="context_length_exceeded", message="boom", param=None, sequence_number=1),
        fails=UpstreamRejected,
        mentions="boom",
    ),
    Quirk(
        "error_without_a_type",
        created() + b'data: {"error":{"message":"boom","type":"overloaded_error"}}\n\n',
        fails=UpstreamUnavailable,
        mentions="boom",
    ),
    Quirk(
        "r_incomplete_call",
        created()
        + added(EMPTY_CALL)
        + argument_delta('{"city":"Par')
        + done(call('{"city":"Par', status="incomplete"))
        + completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        (ToolCall(ID1, "get_weather", '{"city":"Par', complete=False),),
        "length",
    ),
    Quirk(
        "incomplete_without_done",
        created()
        + added(EMPTY_CALL)
        + argument_delta('{"city":"Par')
        + completed(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        (ToolCall(ID1, "get_weather", '{"city":"Par', complete=False),),
        "length",
    ),
    Quirk(
        "content_filter",
        created()
        + added(EMPTY_MESSAGE)
        + text_delta("Well")
        + done(message("Well", status="incomplete"))
        + completed(status="incomplete", incomplete_details={"reason": "content_filter"}),
        (Text("Well"),),
        "content_filter",
    ),
    Quirk("r_eof", created() + added(EMPTY_MESSAGE) + text_delta("Hel"), fails=InvalidUpstreamAnswer),
    Quirk("eof_amid_a_call", created() + added(EMPTY_CALL) + argument_delta('{"ci'), fails=InvalidUpstreamAnswer),
    Quirk("done_without_completed", created() + text_delta("Hel") + b"data: [DONE]\n\n", fails=InvalidUpstreamAnswer),
    Quirk(
        "r_output_index_collide",
        created()
        + added(EMPTY_MESSAGE)
        + text_delta("a")
        + done(message("a"))
        + added(EMPTY_CALL)
        + argument_delta(CITY)
        + done(call())
        + completed(message("a"), call()),
        (Text("a"), WEATHER),
        "tool_calls",
    ),
    Quirk(
        "calls_all_at_index_0",
        created()
        + added(EMPTY_CALL)
        + argument_delta(CITY)
        + done(call())
        + added(call("", "fc_2", ID2, "get_time"))
        + argument_delta("{}", item="fc_2")
        + done(call("{}", "fc_2", ID2, "get_time"))
        + completed(),
        (WEATHER, CLOCK),
        "tool_calls",
    ),
    Quirk(
        "r_reasoning",
        created()
        + added({**SEALED, "encrypted_content": "early"})
        + done(SEALED)
        + added(EMPTY_MESSAGE, 1)
        + text_delta("a", 1)
        + done(message("a"), 1)
        + completed(SEALED, message("a")),
        (Reasoning("", ReasoningSignature(NAME, {"summary": [], "encrypted_content": "final"})), Text("a")),
    ),
    Quirk(
        "reasoning_summaries",
        created()
        + added({**SEALED, "encrypted_content": None})
        + event("response.reasoning_summary_part.added", output_index=0, summary_index=0, part={})
        + event("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="one")
        + event("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=1, delta="two")
        + done({"id": "rs_1", "type": "reasoning", "summary": [{"text": "one"}, {"text": "two"}]})
        + completed(),
        (Reasoning("one\n\ntwo"),),
    ),
    Quirk(
        "reasoning_text",
        created()
        + event("response.reasoning_text.delta", item_id="rs_1", output_index=0, content_index=0, delta="raw")
        + event("response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="short")
        + done(
            {"id": "rs_1", "type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]}
        )
        + completed(),
        (
            Reasoning(
                "raw", ReasoningSignature(NAME, {"summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]})
            ),
        ),
    ),
    Quirk(
        "open_responses_reasoning",
        created()
        + event("response.reasoning.delta", item_id="rs_1", output_index=0, content_index=0, delta="hm")
        + event("response.reasoning.done", item_id="rs_1", output_index=0, content_index=0, text="hm")
        + completed(),
        (Reasoning("hm"),),
    ),
    Quirk(
        "A2: arguments only when done",
        created() + added(EMPTY_CALL) + arguments_done(CITY) + done(call()) + completed(call()),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "arguments only in the item",
        created() + added(EMPTY_CALL) + done(call()) + completed(),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "arguments only in the last event",
        created() + added(EMPTY_CALL) + completed(call()),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "text only in the last event",
        created() + added(EMPTY_MESSAGE) + completed(message("a")),
        (Text("a"),),
    ),
    Quirk(
        "text only when done",
        created()
        + added(EMPTY_MESSAGE)
        + event("response.output_text.done", item_id="msg_1", output_index=0, content_index=0, text="a")
        + done(message("a"))
        + completed(),
        (Text("a"),),
    ),
    Quirk(
        "arguments as an object",
        created() + added(call({}, status="in_progress")) + done(call({"city": "Paris"})) + completed(),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "B11: no arguments",
        created() + added(call("", "fc_1", ID2, "get_time")) + done(call("", "fc_1", ID2, "get_time")) + completed(),
        (CLOCK,),
        "tool_calls",
    ),
    Quirk(
        "D6: an item is completed twice",
        created() + added(EMPTY_CALL) + argument_delta(CITY) + done(call()) + done(call()) + completed(call()),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "a message is completed twice",
        created() + added(EMPTY_MESSAGE) + text_delta("a") + done(message("a")) + done(message("a")) + completed(),
        (Text("a"),),
    ),
    Quirk(
        "thoughts are completed twice",
        created() + added(SEALED) + done(SEALED) + done(SEALED) + completed(),
        (Reasoning("", ReasoningSignature(NAME, {"summary": [], "encrypted_content": "final"})),),
    ),
    Quirk(
        "interleaved calls at one index",
        created()
        + added(EMPTY_CALL)
        + added(call("", "fc_2", ID2, "get_time"))
        + argument_delta('{"city":')
        + argument_delta("{}", item="fc_2")
        + argument_delta('"Paris"}')
        + done(call())
        + done(call("{}", "fc_2", ID2, "get_time"))
        + completed(),
        (WEATHER, CLOCK),
        "tool_calls",
    ),
    Quirk(
        "an item is announced twice",
        created() + added(EMPTY_CALL) + added(EMPTY_CALL) + argument_delta(CITY) + done(call()) + completed(),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "interleaved calls",
        created()
        + added(EMPTY_CALL)
        + added(call("", "fc_2", ID2, "get_time"), 1)
        + argument_delta('{"city":')
        + argument_delta("{}", 1, "fc_2")
        + argument_delta('"Paris"}')
        + done(call("{}", "fc_2", ID2, "get_time"), 1)
        + done(call())
        + completed(),
        (WEATHER, CLOCK),
        "tool_calls",
    ),
    Quirk(
        "text after a call",
        created()
        + added(EMPTY_CALL)
        + argument_delta(CITY)
        + done(call())
        + added(EMPTY_MESSAGE, 1)
        + text_delta("a", 1)
        + done(message("a"), 1)
        + completed(),
        (WEATHER, Text("a")),
        "tool_calls",
    ),
    Quirk(
        "pieces that do not make the whole",
        created() + added(EMPTY_CALL) + argument_delta('{"ci') + argument_delta('aris"}') + done(call()),
        fails=InvalidUpstreamAnswer,
    ),
    Quirk("a call without a name", created() + done(call(name="")) + completed(), fails=InvalidUpstreamAnswer),
    Quirk(
        "a lost delta is sent at the end",
        created() + added(EMPTY_CALL) + argument_delta('{"city":') + done(call()) + completed(),
        (WEATHER,),
        "tool_calls",
    ),
    Quirk(
        "custom tool",
        created()
        + added({"id": "ctc_1", "type": "custom_tool_call", "call_id": ID1, "name": "patch", "input": ""})
        + event("response.custom_tool_call_input.delta", item_id="ctc_1", output_index=0, delta="*** Be")
        + event("response.custom_tool_call_input.delta", item_id="ctc_1", output_index=0, delta="gin")
        + event("response.custom_tool_call_input.done", item_id="ctc_1", output_index=0, input="*** Begin")
        + done({"id": "ctc_1", "type": "custom_tool_call", "call_id": ID1, "name": "patch", "input": "*** Begin"})
        + completed(),
        (ToolCall(ID1, "patch", "*** Begin", freeform=True),),
        "tool_calls",
    ),
    Quirk(
        "refusal",
        created()
        + added(EMPTY_MESSAGE)
        + event("response.refusal.delta", item_id="msg_1", output_index=0, content_index=0, delta="No")
        + event("response.refusal.done", item_id="msg_1", output_index=0, content_index=0, refusal="No.")
        + done({**message(""), "content": [{"type": "refusal", "refusal": "No"}]})
        + completed(),
        (RefusalPart("No"),),
    ),
    Quirk(
        "a namespaced call",
        created() + added({**EMPTY_CALL, "namespace": "web"}) + done(call(namespace="web")) + completed(),
        (ToolCall(ID1, "get_weather", CITY, extra={NAME: {"namespace": "web"}}),),
        "tool_calls",
    ),
    Quirk(
        "B32: an item and events of unknown kinds",
        created()
        + event("response.sorcery", spell="x")
        + added({"id": "sp_1", "type": "spell", "power": 3})
        + event("response.spell.casting", item_id="sp_1", output_index=0)
        + done({"id": "sp_1", "type": "spell", "power": 3})
        + completed(),
        (Opaque(NAME, {"id": "sp_1", "type": "spell", "power": 3}),),
    ),
    Quirk("empty_answer", created() + completed(), ()),
    Quirk("keepalives", b": ping\n\ndata:\n\n" + created() + text_delta("a") + completed(), (Text("a"),)),
    Quirk("not_json", created() + b"data: {nonsense\n\n", fails=InvalidUpstreamAnswer),
    Quirk("cancelled", created() + completed(status="cancelled"), fails=UpstreamUnavailable, mentions="cancelled"),
]


def decode_events(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream of ours, each checked: its name is its type, and they are numbered from 0 without gaps."""
    assert b"\r" not in stream
    decoder = SseDecoder()
    frames = [*decoder.feed(stream), *decoder.end()]
    assert frames[-1].data == b"[DONE]"
    events = [json.loads(frame.data) for frame in frames[:-1]]
    assert [frame.event for frame in frames[:-1]] == [one["type"] for one in events]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    return events


def check_event(one: dict[str, Any]) -> None:
    """The event is what OpenAI's own types say, with nothing missing and nothing more."""
    model = _EVENTS[one["type"]]
    _no_surplus(model.model_validate_json(json.dumps(one), strict=True))
    if type(one.get("response")) is dict:
        check_response(one["response"])


def check_response(body: dict[str, Any]) -> None:
    """The Response is what OpenAI's own types and the Open Responses specification say."""
    _no_surplus(Response.model_validate_json(json.dumps(body), strict=True))
    for name, kinds in REQUIRED.items():
        assert name in body, name
        assert type(body[name]) in kinds, (name, body[name])
    for item in body["output"]:
        assert item["id"]
        assert item["type"] != "reasoning" or None not in (item.get("content", []), item.get("encrypted_content", ""))
    for tool in body["tools"]:
        assert tool["type"] != "function" or {"name", "description", "parameters", "strict"} <= set(tool)


def _no_surplus(value: Any) -> None:
    if isinstance(value, BaseModel):
        known = _OPEN_RESPONSES.get(type(value).__name__, set())
        assert set(value.model_extra or {}) <= known, (type(value).__name__, value.model_extra)
        for name in type(value).model_fields:
            _no_surplus(getattr(value, name))
    elif isinstance(value, list):
        for inner in value:
            _no_surplus(inner)


def by_the_sdk(stream: bytes) -> ParsedResponse[None]:
    """What OpenAI's own client makes of the bytes of a stream."""
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    )
    http = httpx2.Client(transport=transport)
    client = OpenAI(api_key="k", base_url="http://unused.test/v1", http_client=http)
    with client, client.responses.stream(model="m", input="hi") as events:
        return events.get_final_response()
