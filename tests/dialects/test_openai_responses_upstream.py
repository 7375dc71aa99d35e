"""What a Responses upstream is asked: whatever dialect the client spoke, in items that it takes."""

from typing import Any

import pytest

from tests.dialects.openai_responses_cases import CITY, ID1, ID2, WEATHER
from toolgate.conversation.call_ids import portable_id
from toolgate.conversation.errors import InvalidRequest, UpstreamRejected, UpstreamUnavailable
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
from toolgate.dialects.openai_responses import DIALECT
from toolgate.dialects.openai_responses.shared_codec import NAME

USER = Message("user", (Text("hi"),))


def encode(request: ModelRequest, **quirks: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    return DIALECT.upstream.encode_request(request, Quirks(**quirks))


def encode_request(*messages: Message, dialect: str = "openai_chat", **fields: Any) -> dict[str, Any]:
    return encode(ModelRequest("m", messages or (USER,), dialect=dialect, **fields))[0]


def items(*parts: Part, dialect: str = "openai_chat") -> Any:
    return encode_request(USER, Message("assistant", parts), dialect=dialect)["input"][1:]


def again(**fields: Any) -> dict[str, Any]:
    """A body of this dialect after it was read and written."""
    return encode(DIALECT.server.decode_request({"model": "m", "input": "hi", **fields}))[0]


def test_a_request_goes_to_responses_with_a_bearer() -> None:
    request = ModelRequest("m", (USER,))
    assert DIALECT.upstream.path(request) == "/responses"
    assert DIALECT.upstream.headers("k") == {"authorization": "Bearer k"}
    assert DIALECT.upstream.headers(None) == {}


def test_a_leading_system_message_becomes_the_instructions() -> None:
    body = encode_request(Message("system", (Text("Be"), Text("brief."))), USER, Message("system", (Text("Now."),)))
    assert body["instructions"] == "Be\n\nbrief."
    assert body["input"] == [
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "message", "role": "system", "content": "Now."},
    ]


def test_a_message_that_the_client_placed_itself_stays_there() -> None:
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]
    assert again(input=messages)["input"] == [{"type": "message", **message} for message in messages]
    assert "instructions" not in again(input=messages)
    assert again(instructions="Be brief.")["instructions"] == "Be brief."


def test_an_assistants_turn_becomes_items_in_order() -> None:
    """field: C4"""
    signature = ReasoningSignature(
        NAME, {"encrypted_content": "gAAA", "summary": [{"type": "summary_text", "text": "Hm."}]}
    )
    assert items(Reasoning("Hm.", signature), Text("Look."), WEATHER, RefusalPart("No.")) == [
        {"type": "reasoning", "encrypted_content": "gAAA", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": "Look."},
        {"type": "function_call", "call_id": ID1, "name": "get_weather", "arguments": CITY},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]


def test_no_item_names_an_id_that_the_upstream_would_look_for() -> None:
    """field: C6"""
    history = [
        {"role": "user", "content": "u"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": "a"},
        {"type": "function_call", "id": "fc_1", "call_id": ID1, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "fco_1", "call_id": ID1, "output": "x"},
    ]
    body = again(input=history, store=False)
    assert not [item for item in body["input"] if "id" in item]
    assert body["input"][1]["encrypted_content"] == "gAAA"


@pytest.mark.parametrize("signature", [None, ReasoningSignature("anthropic", {"signature": "s"})])
def test_reasoning_of_others_or_without_proof_stays_out(signature: ReasoningSignature | None) -> None:
    assert items(Reasoning("Hm.", signature), Text("a")) == [{"type": "message", "role": "assistant", "content": "a"}]


def test_results_follow_their_calls() -> None:
    """field: B1, B9"""
    body = encode_request(
        USER,
        Message("assistant", (WEATHER, ToolCall(ID2, "patch", "*** Begin", freeform=True))),
        Message("tool", (ToolResult(ID1, (Text("a"), Text("b"))),)),
        Message("tool", (ToolResult(ID2, (Text("look"), Media("image", "image/png", "QUJD"))),)),
    )
    assert body["input"][3:] == [
        {"type": "function_call_output", "call_id": ID1, "output": "a\nb"},
        {
            "type": "custom_tool_call_output",
            "call_id": ID2,
            "output": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "data:image/png;base64,QUJD"},
            ],
        },
    ]


def test_an_upstream_gets_its_own_call_id_back() -> None:
    carried = portable_id("functions.get_weather:0")
    body = encode_request(
        USER,
        Message("assistant", (ToolCall(carried, "get_weather", "{}"),)),
        Message("tool", (ToolResult(carried, (Text("x"),)),)),
    )
    assert [item["call_id"] for item in body["input"][1:]] == ["functions.get_weather:0"] * 2


def test_media_of_every_kind() -> None:
    parts = (
        Media("image", "image/png", "QUJD", extra={NAME: {"detail": "low"}}),
        Media("image", url="https://example.org/a.png"),
        Media("image", file_id="file_1"),
        Media("file", "application/pdf", "QUJD"),
        Media("file", url="https://example.org/a.pdf", name="a.pdf"),
        Media("audio", "audio/mpeg", "QUJD"),
        Media("video", url="https://example.org/a.mp4"),
    )
    body, dropped = encode(ModelRequest("m", (Message("user", parts),)))
    assert body["input"][0]["content"] == [
        {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "low"},
        {"type": "input_image", "image_url": "https://example.org/a.png"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,QUJD"},
        {"type": "input_file", "filename": "a.pdf", "file_url": "https://example.org/a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
    ]
    assert dropped == ("video by url has no place here",)


def test_what_another_dialect_keeps_is_reported_not_sent() -> None:
    strange = Opaque("anthropic", {"type": "container_upload"})
    body, dropped = encode(ModelRequest("m", (Message("user", (Text("a"), strange)),)))
    assert body["input"][0]["content"] == [{"type": "input_text", "text": "a"}]
    assert dropped == ("a part of type 'container_upload' is known to anthropic only",)


def test_the_upstream_stores_nothing_unless_the_client_requests_it() -> None:
    assert encode_request()["store"] is False
    assert again()["store"] is False
    assert again(store=False)["store"] is False
    assert again(store=True)["store"] is True


@pytest.mark.parametrize(
    ("body", "include"),
    [
        (encode_request(), None),
        (
            encode_request(settings=RequestSettings(thinking=ReasoningSettings(effort="high"))),
            ["reasoning.encrypted_content"],
        ),
        (encode_request(settings=RequestSettings(thinking=ReasoningSettings(enabled=False))), None),
        (
            encode_request(
                USER, Message("assistant", (Reasoning("", ReasoningSignature(NAME, {"encrypted_content": "g"})),)), USER
            ),
            ["reasoning.encrypted_content"],
        ),
        (again(include=["reasoning.encrypted_content"]), ["reasoning.encrypted_content"]),
        (again(include=["web_search_call.action.sources"]), ["web_search_call.action.sources"]),
        (again(include=[]), None),
    ],
    ids=[
        "plain",
        "asked to think",
        "asked not to",
        "has thought",
        "client asks",
        "client asks other",
        "client asks none",
    ],
)
def test_encrypted_reasoning_is_requested_of_models_that_reason(body: dict[str, Any], include: Any) -> None:
    assert body.get("include") == include


def test_tools_are_sent_as_not_strict_unless_they_are() -> None:
    """field: B14, B25"""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}
    tools = encode_request(tools=(ToolDef("f", "d", schema), ToolDef("g", strict=True)))["tools"]
    assert tools == [
        {"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": False},
        {"type": "function", "name": "g", "parameters": {"type": "object", "properties": {}}, "strict": True},
    ]


def test_unspecified_strictness_is_not_sent_for_clients_of_this_dialect() -> None:
    (tool,) = again(tools=[{"type": "function", "name": "f", "strict": None}])["tools"]
    assert "strict" not in tool


def test_tools_of_this_dialect_return_as_they_were() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False, "defer_loading": True},
        {"type": "custom", "name": "c", "description": "d", "format": {"type": "text"}},
        {
            "type": "namespace",
            "name": "n",
            "description": "N.",
            "tools": [
                {"type": "function", "name": "i", "parameters": {"type": "object"}},
                {"type": "custom", "name": "j"},
            ],
        },
        {"type": "namespace", "name": "empty", "tools": []},
        {"type": "web_search", "search_context_size": "low"},
        {"type": "tool_search"},
    ]
    assert again(tools=tools)["tools"] == tools


def test_a_hosted_tool_of_another_dialect_is_dropped_in_words() -> None:
    """field: B34"""
    foreign = ToolDef("web_search", kind="hosted", extra={"anthropic": {"type": "web_search_20250305"}})
    body, dropped = encode(ModelRequest("m", (USER,), (foreign,), ToolChoice("auto")))
    assert "tools" not in body
    assert "tool_choice" not in body
    assert dropped == ("the hosted tool 'web_search' is known to its own API only",)


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        (None, {}),
        (ToolChoice("auto"), {"tool_choice": "auto"}),
        (ToolChoice("none", parallel=False), {"tool_choice": "none"}),
        (ToolChoice("required", parallel=True), {"tool_choice": "required", "parallel_tool_calls": True}),
        (ToolChoice("required", ("f",)), {"tool_choice": {"type": "function", "name": "f"}}),
        (ToolChoice("required", ("c",)), {"tool_choice": {"type": "custom", "name": "c"}}),
        (
            ToolChoice("auto", ("f", "c")),
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}],
                }
            },
        ),
    ],
)
def test_a_choice_is_written_flat(choice: ToolChoice | None, fields: dict[str, Any]) -> None:
    """field: B15, B16, B21"""
    body = encode_request(tools=(ToolDef("f"), ToolDef("c", kind="freeform")), tool_choice=choice)
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == fields
    assert "tool_choice" not in encode_request(tool_choice=choice)


def test_a_choice_of_a_hosted_tool_returns_in_the_clients_words() -> None:
    for choice in (
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "wiki"}]},
    ):
        assert again(tools=[{"type": "web_search"}], tool_choice=choice)["tool_choice"] == choice


def test_a_choice_that_was_changed_on_the_way_is_not_undone() -> None:
    request = DIALECT.server.decode_request(
        {
            "model": "m",
            "input": "hi",
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": {"type": "function", "name": "f"},
        }
    )
    changed = ModelRequest(
        request.model, request.messages, request.tools, ToolChoice("auto"), dialect=NAME, extra=request.extra
    )
    assert encode(changed)[0]["tool_choice"] == "auto"


def test_settings_are_encoded_in_this_dialects_fields() -> None:
    settings = RequestSettings(
        max_tokens=100,
        temperature=0.5,
        top_p=0.9,
        user="u",
        thinking=ReasoningSettings(effort="high", summary="auto"),
        output=StructuredOutputFormat({"type": "object"}, "n", strict=True),
    )
    body = encode_request(settings=settings, stream=True)
    assert (body["max_output_tokens"], body["temperature"], body["top_p"], body["user"]) == (100, 0.5, 0.9, "u")
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["text"] == {
        "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    }
    assert body["stream"] is True


@pytest.mark.parametrize(("budget", "effort"), [(1024, "low"), (8000, "medium"), (30000, "high")])
def test_a_budget_of_thought_becomes_an_effort(budget: int, effort: str) -> None:
    assert encode_request(settings=RequestSettings(thinking=ReasoningSettings(budget=budget)))["reasoning"] == {
        "effort": effort
    }


def test_a_limit_below_the_least_is_raised_with_a_word() -> None:
    """field: B35"""
    body, dropped = encode(ModelRequest("m", (USER,), settings=RequestSettings(max_tokens=1)))
    assert body["max_output_tokens"] == 16
    assert dropped == ("the limit of 1 tokens was raised to 16, the least that the Responses API takes",)


def test_settings_without_a_place_are_reported() -> None:
    settings = RequestSettings(stop=("x",), seed=1, top_k=3, frequency_penalty=0.5, presence_penalty=0.0)
    body, dropped = encode(ModelRequest("m", (USER,), settings=settings))
    assert [name for name in ("stop", "seed", "top_k", "frequency_penalty", "presence_penalty") if name in body] == []
    assert sorted([note.split()[0] for note in dropped]) == ["frequency_penalty", "seed", "stop", "top_k"]
    assert again(frequency_penalty=0.5)["frequency_penalty"] == 0.5


def test_more_than_one_answer_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        encode(ModelRequest("m", (USER,), settings=RequestSettings(choices=2)))
    assert refused.value.param == "n"


def test_an_output_format_bends_to_the_upstream() -> None:
    request = ModelRequest("m", (USER,), settings=RequestSettings(output=StructuredOutputFormat({"type": "object"})))
    assert encode(request, output_format="json")[0]["text"] == {"format": {"type": "json_object"}}
    body, dropped = encode(request, output_format="none")
    assert "text" not in body
    assert dropped == ("the upstream takes no output format",)


def test_unknown_fields_return_and_what_we_keep_ourselves_does_not() -> None:
    body = again(
        prompt_cache_key="k",
        client_metadata={"a": 1},
        text={"verbosity": "low"},
        reasoning={"effort": "low", "context": "all_turns"},
        previous_response_id="resp_1",
        conversation="conv_1",
        background=True,
        stream_options={"include_obfuscation": False},
        x_strange=1,
    )
    assert (body["prompt_cache_key"], body["client_metadata"], body["x_strange"]) == ("k", {"a": 1}, 1)
    assert body["text"] == {"verbosity": "low"}
    assert body["reasoning"] == {"effort": "low", "context": "all_turns"}
    for name in ("previous_response_id", "conversation", "background", "stream_options"):
        assert name not in body


def test_an_unsupported_field_is_taken_out_with_a_word() -> None:
    body, dropped = encode(
        ModelRequest("m", (USER,), settings=RequestSettings(temperature=1.0)), unsupported=("temperature", "include")
    )
    assert "temperature" not in body
    assert dropped == ("temperature is not supported by the upstream",)


def test_a_history_of_codex_returns_as_it_was_but_for_ids() -> None:
    """field: B31, B32"""
    history: list[dict[str, Any]] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "gAAA"},
        {"type": "message", "role": "assistant", "content": "Look.", "phase": "commentary"},
        {"type": "function_call", "call_id": ID1, "name": "open", "namespace": "web", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": ID2, "name": "apply_patch", "input": "*** Begin"},
        {
            "type": "function_call_output",
            "call_id": ID1,
            "output": [{"type": "input_text", "text": "a"}, {"type": "x"}],
        },
        {"type": "custom_tool_call_output", "call_id": ID2, "output": "ok"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "message", "role": "user", "content": "v"},
    ]
    written = again(input=history)["input"]
    plain = [{**item, "content": "d" if i == 0 else "u"} if i < 2 else item for i, item in enumerate(history)]
    assert written == plain


def test_a_picture_that_was_generated_returns_as_its_item() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD"}
    assert again(input=[item, {"role": "user", "content": "again"}])["input"][0] == item


def test_texts_of_one_message_return_in_one() -> None:
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": []} for text in ("a", "b")]
    messages = [{"type": "message", "role": "assistant", "content": content}, {"role": "user", "content": "u"}]
    assert again(input=messages)["input"][0] == messages[0]


def test_an_empty_text_is_not_sent() -> None:
    assert items(Text(""), WEATHER) == [
        {"type": "function_call", "call_id": ID1, "name": "get_weather", "arguments": CITY}
    ]


def test_a_half_call_is_marked() -> None:
    (item,) = items(ToolCall(ID1, "f", '{"ci', complete=False))
    assert item["status"] == "incomplete"


@pytest.mark.parametrize(
    ("status", "fault"),
    [(400, UpstreamRejected), (429, UpstreamUnavailable), (500, UpstreamUnavailable), (401, UpstreamUnavailable)],
)
def test_a_bad_status_is_read_into_whose_fault_it_is(status: int, fault: type[Exception]) -> None:
    body = b'{"error":{"message":"boom","type":"invalid_request_error","param":"input","code":"bad"}}'
    error = DIALECT.upstream.decode_error(status, {}, body)
    assert type(error) is fault
    assert "boom" in error.message
