"""What Messages clients receive, with the official SDK as the judge."""

import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import beta_tool
from anthropic.types import MessageTokensCount, ModelInfo
from anthropic.types.shared import ErrorResponse
from msgspec.structs import replace

from tests.dialects.anthropic_cases import (
    DIALECT,
    ID1,
    ID2,
    REPLY,
    REQUEST,
    blocks_of,
    check,
    check_message,
    client,
    collected,
    encode_run,
    parsed,
    read,
    streamed,
    whole,
)
from tests.typed import of
from toolgate.conversation.errors import (
    Conflict,
    Forbidden,
    GatewayOverloaded,
    InternalGatewayError,
    InvalidRequest,
    InvalidUpstreamAnswer,
    NotFound,
    RateLimited,
    TooLarge,
    ToolgateError,
    Unauthenticated,
    UpstreamTimeout,
)
from toolgate.conversation.events import (
    FinishReason,
    ModelResponse,
    PartDelta,
    PartEnd,
    PartStart,
    RunEnd,
    RunEvent,
    StepStart,
    Usage,
)
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
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import server

CITY = '{"city":"Paris"}'
SIGNATURE = ReasoningSignature("anthropic", {"signature": "sig"})
FOREIGN = ReasoningSignature("openai_responses", {"id": "rs_1", "encrypted_content": "secret"})
CALLS = ModelResponse(
    (Reasoning("Hm", SIGNATURE), Text("Let me see."), ToolCall(ID1, "get_weather", CITY), ToolCall(ID2, "clock", "{}")),
    "tool_calls",
    Usage(input=20, output=9, cache_read=10, cache_write=6, reasoning=5),
)


def test_a_stream_has_exactly_the_events_of_the_dialect() -> None:
    """spec: C4"""
    kinds = [event["type"] for event in parsed(streamed(CALLS))]
    thought = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", "ping", *thought, *block, *block, *block, "message_delta", "message_stop"]


def test_block_numbers_count_up_from_0() -> None:
    """field: A7, A15"""
    events = parsed(streamed(CALLS))
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2, 3]
    open_block = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None


@pytest.mark.parametrize("beta", [True, False])
def test_the_sdk_collects_all_text(beta: bool) -> None:
    message = collected(streamed(CALLS), beta)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (message.content[0].thinking, message.content[0].signature) == ("Hm", "sig")
    assert message.content[1].text == "Let me see."
    assert [(call.id, call.name, call.input) for call in message.content[2:]] == [
        (ID1, "get_weather", {"city": "Paris"}),
        (ID2, "clock", {}),
    ]
    assert message.stop_reason == "tool_use"
    assert message.id == REPLY.id
    assert message.model == REPLY.model


def test_usage_keeps_cached_input_apart() -> None:
    """field: G9; spec: U9"""
    usage = collected(streamed(CALLS)).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (4, 10, 6)
    assert (usage.output_tokens, usage.output_tokens_details.thinking_tokens) == (9, 5)
    assert whole(CALLS)["usage"] == {
        "input_tokens": 4,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 6,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 5},
    }


def test_usage_is_estimated_at_the_beginning_when_the_upstream_counts_at_the_end() -> None:
    first, *_, last, _ = parsed(encode_run(StepStart(), RunEnd("stop", Usage(3, 2))))
    assert first["message"]["usage"]["input_tokens"] > 0
    assert first["message"]["usage"]["output_tokens"] == 0
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == (3, 2)


def test_arguments_come_in_deltas_and_never_with_the_start() -> None:
    """field: B26"""
    call = ToolCall(ID1, "get_weather", CITY)
    opened = PartStart(ToolCall(ID1, "get_weather", ""))
    events = parsed(
        encode_run(opened, PartDelta('{"city":'), PartDelta('"Paris"}'), PartEnd(call), RunEnd("tool_calls", Usage()))
    )
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert starts == [{"type": "tool_use", "id": ID1, "name": "get_weather", "input": {}}]
    assert deltas == [
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": '"Paris"}'},
    ]


def test_a_call_without_arguments_is_an_empty_object_to_every_reader() -> None:
    """field: A1, B11"""
    response = ModelResponse((ToolCall(ID1, "clock", "{}"),), "tool_calls", Usage())
    assert blocks_of(streamed(response))[0]["input"] == {}
    assert whole(response)["content"][0]["input"] == {}


def test_an_empty_text_makes_no_block() -> None:
    """quirk: a_empty_text_block; field: A4"""
    quiet: list[RunEvent] = [PartStart(Text("")), PartDelta(""), PartEnd(Text(""))]
    clock = ToolCall(ID1, "clock", "{}")
    call: list[RunEvent] = [PartStart(ToolCall(ID1, "clock", "")), PartDelta("{}"), PartEnd(clock)]
    data = encode_run(StepStart(), *quiet, *call, RunEnd("tool_calls", Usage()))
    assert [block["type"] for block in blocks_of(data)] == ["tool_use"]
    assert [block["type"] for block in whole(ModelResponse((Text(""), clock), "tool_calls"))["content"]] == ["tool_use"]


def test_a_part_without_deltas_is_not_lost() -> None:
    call = ToolCall(ID1, "get_weather", CITY)
    parts: list[Part] = [Text("Hi"), Reasoning("Hm", SIGNATURE), call, RefusalPart("No.")]
    data = encode_run(
        *[event for part in parts for event in (PartStart(part), PartEnd(part))], RunEnd("tool_calls", Usage())
    )
    assert blocks_of(data) == [
        {"type": "text", "text": "Hi"},
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "tool_use", "id": ID1, "name": "get_weather", "input": {"city": "Paris"}},
        {"type": "text", "text": "No."},
    ]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (Reasoning("Hm", SIGNATURE), {"type": "thinking", "thinking": "Hm", "signature": "sig"}),
        (Reasoning("Hm"), {"type": "thinking", "thinking": "Hm", "signature": ""}),
        (Reasoning("", SIGNATURE), {"type": "thinking", "thinking": "", "signature": "sig"}),
        (Reasoning("", ReasoningSignature("anthropic", {"data": "x"})), {"type": "redacted_thinking", "data": "x"}),
    ],
)
def test_reasoning_is_thinking_with_its_signature(part: Part, block: dict[str, Any]) -> None:
    """quirk: a_thinking; field: A6, C2, C7, C11"""
    response = ModelResponse((part, Text("Yes.")), "stop", Usage())
    assert blocks_of(streamed(response)) == [block, {"type": "text", "text": "Yes."}]
    assert whole(response)["content"] == [block, {"type": "text", "text": "Yes."}]


@pytest.mark.parametrize("text", ["Hm", ""])
def test_a_seal_of_another_dialect_travels_in_an_envelope_and_comes_back(text: str) -> None:
    """field: C5"""
    response = ModelResponse((Reasoning(text, FOREIGN), Text("Yes.")), "stop", Usage())
    for shown in (blocks_of(streamed(response))[0], whole(response)["content"][0]):
        assert (shown["type"], shown["thinking"]) == ("thinking", text)
        assert unwrap_signature(shown["signature"]) == FOREIGN
        back = {"role": "assistant", "content": [shown]}
        request = DIALECT.server.decode_request({"model": "m", "max_tokens": 1, "messages": [back]})
        assert request.messages[0].parts == (Reasoning(text, FOREIGN),)


def test_reasoning_with_neither_text_nor_signature_is_not_sent() -> None:
    response = ModelResponse((Reasoning(""), Text("Yes.")), "stop", Usage())
    assert blocks_of(streamed(response)) == whole(response)["content"] == [{"type": "text", "text": "Yes."}]


@pytest.mark.parametrize(
    ("reason", "stop_sequence", "parts", "word"),
    [
        ("stop", None, (Text("Hi"),), "end_turn"),
        ("stop", "END", (Text("Hi"),), "stop_sequence"),
        ("stop", None, (RefusalPart("No."),), "refusal"),
        ("tool_calls", None, (ToolCall(ID1, "clock", "{}"),), "tool_use"),
        ("length", None, (Text("Hi"),), "max_tokens"),
        ("content_filter", None, (Text("Hi"),), "refusal"),
        ("pause", None, (Text("Hi"),), "pause_turn"),
    ],
)
def test_stop_reasons(reason: FinishReason, stop_sequence: str | None, parts: tuple[Part, ...], word: str) -> None:
    """field: A26; quirk: a_pause_turn, a_refusal"""
    response = ModelResponse(parts, reason, Usage(), stop_sequence=stop_sequence)
    message = collected(streamed(response))
    assert (message.stop_reason, message.stop_sequence) == (word, stop_sequence)
    assert (whole(response)["stop_reason"], whole(response)["stop_sequence"]) == (word, stop_sequence)


def test_other_fields_of_the_last_event_are_sent_again() -> None:
    details = {"type": "refusal", "category": "bio", "explanation": None}
    own = {"stop_details": details, "context_management": {"applied_edits": []}, "stop_reason": "compaction"}
    response = ModelResponse((Text("Hi"),), "pause", Usage(), extra={"anthropic": own})
    *_, end, _ = parsed(streamed(response))
    assert end["delta"] == {"stop_reason": "compaction", "stop_sequence": None, "stop_details": details}
    assert end["context_management"] == {"applied_edits": []}
    assert collected(streamed(response)).stop_details.category == "bio"
    assert whole(response)["stop_details"] == details


@pytest.mark.parametrize("half", ["", '{"city":"Par'])
def test_half_a_call_does_not_look_whole(half: str) -> None:
    call = ToolCall(ID1, "get_weather", half, complete=False)
    response = ModelResponse((call,), "length", Usage())
    assert collected(streamed(response)).stop_reason == "max_tokens"
    assert whole(response)["content"][0]["input"] == {"INVALID_JSON": half}
    assert read(streamed(response)).parts == DIALECT.upstream.decode_response(whole(response), REQUEST).parts == (call,)


def test_arguments_that_are_no_object_are_neither_lost_nor_empty() -> None:
    """field: B12; quirk: args_invalid"""
    response = ModelResponse((ToolCall(ID1, "get_weather", "{'city': 1,}"),), "tool_calls", Usage())
    assert whole(response)["content"][0]["input"] == {"INVALID_JSON": "{'city': 1,}"}
    with pytest.raises(
        InvalidUpstreamAnswer, match="not a JSON object"
    ):  # the client has received them, and cannot parse them
        streamed(response)


def test_arguments_of_the_gateways_calls_are_always_an_object() -> None:
    call = ToolCall(ID1, "get_weather", "{'city': 1,}", executor="gateway")
    (block,) = blocks_of(streamed(ModelResponse((call,), "stop", Usage())))
    assert block["input"] == {"INVALID_JSON": "{'city': 1,}"}


def test_numbers_and_letters_reach_the_client_as_the_model_wrote_them() -> None:
    """field: B30; quirk: args_bignum"""
    arguments = '{"n": 12345678901234567890123, "x": 1e400, "s": "ü😀\u2028"}'
    response = ModelResponse((ToolCall(ID1, "get_weather", arguments),), "tool_calls", Usage())
    body = DIALECT.server.encode_response(response, REQUEST, REPLY)
    assert arguments.encode() in body
    deltas = [event["delta"] for event in parsed(streamed(response)) if event["type"] == "content_block_delta"]
    assert "".join([delta["partial_json"] for delta in deltas]) == arguments


def test_half_a_surrogate_pair_does_not_break_the_stream() -> None:
    """quirk: surrogate_halves"""
    assert blocks_of(
        encode_run(PartStart(Text("")), PartDelta("a\ud83d"), PartEnd(Text("a\ud83d")), RunEnd("stop", Usage()))
    ) == [{"type": "text", "text": "a\ufffd"}]


def test_citations_are_sent_with_their_text() -> None:
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0}
    cited |= {"document_title": None, "start_char_index": 0, "end_char_index": 1, "file_id": None}
    text = Text("Hi", {"anthropic": {"citations": [cited]}})
    response = ModelResponse((text,), "stop", Usage())
    assert collected(streamed(response)).content[0].citations[0].cited_text == "x"
    assert whole(response)["content"][0]["citations"] == [cited]


def test_blocks_of_the_providers_own_tools_are_shown_again() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    parts = (Opaque("anthropic", search), Opaque("anthropic", found), Opaque("openai_responses", {"type": "x"}))
    response = ModelResponse((*parts, Text("Yes.")), "stop", Usage())
    assert blocks_of(streamed(response)) == [search, found, {"type": "text", "text": "Yes."}]
    assert whole(response)["content"] == [search, found, {"type": "text", "text": "Yes."}]


def test_tools_that_the_gateway_ran_are_shown_as_those_of_an_mcp_server() -> None:
    """spec: X4"""
    call = ToolCall(ID1, "get_weather", CITY, executor="gateway")
    result = ToolResult(ID1, (Text("Sunny"), Media("image", "image/png", data="AAAA")), True)
    response = ModelResponse((call, result, Text("It is sunny.")), "stop", Usage())
    shown = blocks_of(streamed(response))
    assert shown == whole(response)["content"]
    used, gave, _ = shown
    assert used == {
        "type": "mcp_tool_use",
        "id": ID1,
        "name": "get_weather",
        "server_name": "toolgate",
        "input": {"city": "Paris"},
    }
    assert (gave["type"], gave["tool_use_id"], gave["is_error"]) == ("mcp_tool_result", ID1, True)
    assert [piece["text"] for piece in gave["content"]] == [
        "Sunny",
        "[image image/png: this API cannot carry it in an answer]",
    ]


def test_a_freeform_call_has_its_text_in_an_object() -> None:
    call = ToolCall(ID1, "patch", 'say "hi"', freeform=True)
    opened = ToolCall(ID1, "patch", "", freeform=True)
    data = encode_run(
        PartStart(opened), PartDelta("say "), PartDelta('"hi"'), PartEnd(call), RunEnd("tool_calls", Usage())
    )
    assert blocks_of(data)[0]["input"] == {"input": 'say "hi"'}
    assert whole(ModelResponse((call,), "tool_calls"))["content"][0]["input"] == {"input": 'say "hi"'}


def test_media_are_named_in_words() -> None:
    response = ModelResponse(
        (Media("image", url="https://x/y.png"), Media("audio", "audio/wav", data="AA")), "stop", Usage()
    )
    assert blocks_of(streamed(response)) == whole(response)["content"]
    assert [block["text"] for block in whole(response)["content"]] == [
        "![image](https://x/y.png)",
        "[audio audio/wav: this API cannot carry it in an answer]",
    ]


def test_an_empty_answer_is_an_empty_message() -> None:
    """quirk: empty_answer"""
    response = ModelResponse((), "stop", Usage())
    assert collected(streamed(response)).content == []
    assert whole(response)["content"] == []


def test_a_run_of_several_steps_is_one_message() -> None:
    """field: E2; spec: X4"""
    step: list[RunEvent] = [StepStart(), PartStart(Text("")), PartDelta("a"), PartEnd(Text("a"))]
    data = encode_run(*step, *step, RunEnd("stop", Usage(2, 2)))
    kinds = [event["type"] for event in parsed(data)]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    assert [block["text"] for block in blocks_of(data)] == ["a", "a"]


@pytest.mark.parametrize(
    "response", [CALLS, ModelResponse((Text("Hi"),), "stop", Usage(1, 1)), ModelResponse((), "stop")]
)
def test_whole_answers_are_valid_for_every_client(response: ModelResponse) -> None:
    check_message(whole(response))
    collected(streamed(response), beta=False)


def test_the_upstream_codec_decodes_what_the_server_codec_encodes() -> None:
    for size in (1, 13, 0):
        assert read(streamed(CALLS), size).parts == CALLS.parts
    again = read(streamed(CALLS))
    assert (again.reason, again.usage) == (CALLS.reason, CALLS.usage)
    assert DIALECT.upstream.decode_response(whole(CALLS), REQUEST).parts == CALLS.parts


def test_reply_ids_look_like_anthropics() -> None:
    assert server.reply_id("1f").startswith("msg_")
    assert server.reply_id("1f") != server.reply_id("2f")


@pytest.mark.parametrize(
    ("error", "kind", "exception"),
    [
        (InvalidRequest("No.", param="messages[0]"), "invalid_request_error", anthropic.BadRequestError),
        (Unauthenticated("No."), "authentication_error", anthropic.AuthenticationError),
        (Forbidden("No."), "permission_error", anthropic.PermissionDeniedError),
        (NotFound("No."), "not_found_error", anthropic.NotFoundError),
        (Conflict("No."), "invalid_request_error", anthropic.ConflictError),
        (TooLarge("No."), "request_too_large", anthropic.ContentTooLargeError),
        (RateLimited("No."), "rate_limit_error", anthropic.RateLimitError),
        (InternalGatewayError("No."), "api_error", anthropic.InternalServerError),
        (InvalidUpstreamAnswer("No."), "api_error", anthropic.InternalServerError),
        (GatewayOverloaded("No."), "overloaded_error", anthropic.ServiceUnavailableError),
        (UpstreamTimeout("No."), "timeout_error", anthropic.GatewayTimeoutError),
    ],
)
def test_errors_reach_the_sdk_as_its_own(
    error: ToolgateError, kind: str, exception: type[anthropic.APIStatusError]
) -> None:
    """spec: C7"""
    body = server.encode_error(error)
    sdk = client(lambda request: httpx2.Response(error.status, content=body))
    with pytest.raises(exception) as raised:
        sdk.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    assert (raised.value.type, raised.value.api_message) == (kind, "No.")
    if not error.param and kind != "request_too_large":
        check(ErrorResponse, json.loads(body))


def test_an_error_names_the_parameter_for_programs() -> None:
    """spec: C7"""
    body = json.loads(server.encode_error(InvalidRequest("No.", param="tools[0].name", code="invalid_tool")))
    assert body["error"]["details"] == {"error_code": "invalid_tool", "param": "tools[0].name"}


def test_an_error_in_the_middle_of_a_stream_is_the_last_word() -> None:
    """field: D5"""
    encoder = server.encoder(REQUEST, replace(REPLY, request_id="req_1"))
    data = b"".join([encoder.encode(event) for event in (StepStart(), PartStart(Text("")), PartDelta("Hi"))])
    data += encoder.error(GatewayOverloaded("Full."))
    sdk = client(lambda request: httpx2.Response(200, content=data, headers={"content-type": "text/event-stream"}))
    with (
        pytest.raises(anthropic.APIStatusError, match="Full"),
        sdk.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        stream.until_done()
    error = {"type": "overloaded_error", "message": "Full."}
    assert parsed(data)[-1] == {"type": "error", "error": error, "request_id": "req_1"}


def answer(request: ModelRequest) -> ModelResponse:
    """A model that adds by calling a tool, then says what the tool found."""
    for message in request.messages:
        if message.role == "tool":
            result = message.parts[0]
            assert isinstance(result, ToolResult)
            return ModelResponse((Text(f"It is {of(Text, result.content[0]).text}."),), "stop", Usage(9, 4))
    return ModelResponse(
        (Reasoning("Hm", FOREIGN), ToolCall(ID1, "add", '{"a": 1, "b": 2}')), "tool_calls", Usage(5, 3)
    )


class Gateway:
    """The server codec behind the SDK's transport."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(json.loads(request.content))
        try:
            asked = server.decode_request(self.bodies[-1])
        except ToolgateError as error:
            return httpx2.Response(error.status, content=server.encode_error(error))
        if asked.stream:
            return httpx2.Response(200, content=streamed(answer(asked)), headers={"content-type": "text/event-stream"})
        return httpx2.Response(200, content=server.encode_response(answer(asked), asked, REPLY))


@beta_tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)


@pytest.mark.parametrize("stream", [False, True])
def test_the_sdks_tool_runner_works_and_goes_on_without_threads(stream: bool) -> None:
    """A thread is refused in the words that make the runner send the whole conversation."""
    gateway = Gateway()
    asked: Any = {"role": "user", "content": "1+2?"}
    runner: Any = client(gateway).beta.messages.tool_runner(
        model="m", max_tokens=100, tools=[add], messages=[asked], stream=stream
    )
    last = [step.get_final_message() if stream else step for step in runner][-1]
    assert last.content[0].text == "It is 3."
    assert [body.get("thread") for body in gateway.bodies] == [{"type": "create"}, None, None]
    thought, called = gateway.bodies[-1]["messages"][1]["content"]
    assert unwrap_signature(thought["signature"]) == FOREIGN
    assert called["input"] == {"a": 1, "b": 2}


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_thread_is_refused_so_that_clients_know_why(thread: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], "thread": thread}
    with pytest.raises(InvalidRequest) as raised:
        server.decode_request(body)
    error = json.loads(server.encode_error(raised.value))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert server.decode_request({**body, "thread": None}).extra == {}


def test_models_are_listed_as_anthropics_clients_expect() -> None:
    """spec: C6"""
    models = [server.write_model("claude", "Claude", 1_700_000_000), server.write_model("gpt", "GPT", 0)]
    for model in models:
        check(ModelInfo, model)
    page = server.write_models(models)
    sdk = client(lambda request: httpx2.Response(200, json=page))
    assert [model.id for model in sdk.models.list()] == ["claude", "gpt"]
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("claude", "gpt", False)
    assert models[0]["created_at"] == "2023-11-14T22:13:20Z"
    assert server.write_models([]) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


def test_a_token_count_is_encoded() -> None:
    check(MessageTokensCount, json.loads(server.encode_count(42)))
