"""What Messages clients ask, and how it is understood; what nobody understands goes back to Anthropic untouched."""

from typing import Any

import pytest

from tests.dialects.anthropic_cases import DIALECT, ID1, ID2, WEATHER, decode_request, written
from tests.typed import given, of
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import match_results
from toolgate.conversation.message import (
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    ReasoningSignature,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest, ReasoningSettings, StructuredOutputFormat, ToolChoice, ToolDef
from toolgate.dialects.anthropic.server import decode_count_request
from toolgate.dialects.dialect import Quirks
from toolgate.dialects.openai_chat import DIALECT as CHAT

PNG = "iVBORw0KGgoAAAANSUhEUg=="
EPHEMERAL: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def use(id: str = ID1, name: str = "get_weather", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {"city": "Paris"}, **more}


def result(id: str = ID1, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, **more}


def encode_for_chat(request: ModelRequest) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The request as a Chat upstream gets it, and what was dropped on the way."""
    return CHAT.upstream.encode_request(request, Quirks())


def test_a_plain_question() -> None:
    request = decode_request({"role": "user", "content": "hi"}, system="Be kind.")
    assert request.messages == (Message("system", (Text("Be kind."),)), Message("user", (Text("hi"),)))
    assert (request.model, request.settings.max_tokens, request.stream, request.dialect) == (
        "m",
        100,
        False,
        "anthropic",
    )


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"max_tokens": 0}])
def test_a_plain_request_is_decoded_as_one_with_an_empty_setting(more: dict[str, Any]) -> None:
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
    assert decode_request(*history, **more) == decode_request(*history, temperature=None, **more)


def test_system_blocks_keep_their_cache_marks() -> None:
    """field: B29"""
    request = decode_request(system=[text("One."), text("Two.", **EPHEMERAL)])
    assert request.messages[0].parts == (Text("One."), Text("Two.", {"anthropic": EPHEMERAL}))


def test_system_messages_keep_their_place() -> None:
    later = {"role": "system", "content": [text("Now be brief.")], "clear_at": "never"}
    request = decode_request(user(text("hi")), later, user(text("go on")))
    assert [message.role for message in request.messages] == ["user", "system", "user"]
    assert request.messages[1].extra == {"anthropic": {"clear_at": "never"}}
    assert written(request)[0]["messages"][1] == {"role": "system", "content": "Now be brief.", "clear_at": "never"}


def test_claude_codes_billing_line_reaches_anthropic_alone() -> None:
    """field: B36"""
    line = text("x-anthropic-billing-header: cc_version=2.1; cch=0", **EPHEMERAL)
    request = decode_request(system=[line, text("You are helpful.")])
    assert written(request)[0]["system"] == [line, text("You are helpful.")]
    body, dropped = encode_for_chat(request)
    assert "billing" not in str(body)
    assert any("known to anthropic only" in note for note in dropped)


def test_results_come_first_and_the_words_beside_them_follow() -> None:
    """field: B2, B4"""
    results = user(text("By the way"), result(ID2, content="noon"), result(ID1, content="sunny"))
    request = decode_request(assistant(use(), use(ID2, "clock")), results)
    assert request.messages[1:] == (
        Message("tool", (ToolResult(ID2, (Text("noon"),)), ToolResult(ID1, (Text("sunny"),)))),
        Message("user", (Text("By the way"),)),
    )
    body, _ = written(match_results(request))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_result", "tool_result", "text"]
    assert [block.get("tool_use_id") for block in body["messages"][1]["content"]] == [ID1, ID2, None]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("sunny", (Text("sunny"),)),
        ("", ()),
        (None, ()),
        ([text("sunny", **EPHEMERAL)], (Text("sunny", {"anthropic": EPHEMERAL}),)),
        (
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}],
            (Media("image", "image/png", PNG),),
        ),
        (
            [{"type": "document", "title": "T", "source": {"type": "url", "url": "https://x/y.pdf"}}],
            (Media("file", url="https://x/y.pdf", name="T"),),
        ),
    ],
)
def test_the_content_of_results(content: str | list[Any] | None, parts: tuple[Text | Media, ...]) -> None:
    """field: B1"""
    request = decode_request(assistant(use()), user(result(content=content)))
    assert request.messages[1].parts == (ToolResult(ID1, parts),)


@pytest.mark.parametrize("is_error", [True, False, None])
def test_results_keep_whether_they_failed(is_error: bool | None) -> None:
    stated: dict[str, Any] = {} if is_error is None else {"is_error": is_error}
    request = decode_request(assistant(use()), user(result(content="x", **stated)))
    assert of(ToolResult, request.messages[1].parts[0]).is_error is is_error
    assert written(request)[0]["messages"][1]["content"] == [result(content="x", **stated)]


def test_a_result_without_the_id_of_its_call_is_refused() -> None:
    """spec: C7"""
    with pytest.raises(InvalidRequest) as raised:
        decode_request(user({"type": "tool_result", "content": "x"}))
    assert raised.value.param == "messages[0].content[0].tool_use_id"


def test_references_to_deferred_tools_are_words_to_others() -> None:
    loaded = result(content=[{"type": "tool_reference", "tool_name": "get_weather"}])
    request = decode_request(
        assistant(use(name="ToolSearch")), user(loaded), tools=[{**WEATHER, "defer_loading": True}]
    )
    assert written(request)[0]["messages"][1]["content"] == [loaded]
    assert written(request)[0]["tools"] == [{**WEATHER, "defer_loading": True}]
    body, _ = encode_for_chat(request)
    assert "get_weather is now available" in str(body["messages"][-1])
    assert body["tools"][0]["function"]["name"] == "get_weather"


def test_the_placeholder_for_deferred_tools_reaches_anthropic_alone() -> None:
    placeholder = {"name": "DeferredToolPlaceholder", "input_schema": {"type": "object"}, "defer_loading": True}
    request = decode_request(tools=[placeholder, WEATHER])
    assert written(request)[0]["tools"] == [placeholder, WEATHER]
    body, dropped = encode_for_chat(request)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather"]
    assert any("DeferredToolPlaceholder" in note for note in dropped)


def test_thinking_comes_back_as_it_was() -> None:
    """quirk: a_thinking; field: C1, C2, C7, C12"""
    blocks = [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "sig2"},
        {"type": "redacted_thinking", "data": "secret"},
    ]
    request = decode_request(user(text("hi")), assistant(*blocks, use()), user(result(content="x")))
    assert request.messages[1].parts[:3] == (
        Reasoning("Hm", ReasoningSignature("anthropic", {"signature": "sig"})),
        Reasoning("", ReasoningSignature("anthropic", {"signature": "sig2"})),
        Reasoning("", ReasoningSignature("anthropic", {"data": "secret"})),
    )
    assert written(request)[0]["messages"][1]["content"] == [*blocks, use()]


def test_unsigned_thinking_has_no_signature() -> None:
    request = decode_request(
        assistant({"type": "thinking", "thinking": "Hm", "signature": ""}, text("Yes")), user(text("ok"))
    )
    assert request.messages[0].parts == (Reasoning("Hm"), Text("Yes"))
    assert written(request)[0]["messages"][0] == {"role": "assistant", "content": "Yes"}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "f", "server_name": "wiki", "input": {}},
        {"type": "compaction", "content": "…", "signature": "s"},
        {"type": "from_the_future", "a": [1]},
        {"type": "image", "source": {"type": "from_the_future"}},
    ],
)
def test_blocks_that_only_anthropic_knows_return_to_it(block: dict[str, Any]) -> None:
    """field: B32"""
    request = decode_request(user(text("hi")), assistant(block, text("Yes")), user(text("go on")))
    assert request.messages[1].parts[0] == Opaque("anthropic", block)
    assert written(request)[0]["messages"][1]["content"] == [block, text("Yes")]
    assert any("known to anthropic only" in note for note in encode_for_chat(request)[1])


def test_tools_that_the_gateway_ran_are_steps_of_the_conversation_again() -> None:
    """field: E6"""
    used = {"type": "mcp_tool_use", "id": ID1, "name": "f", "server_name": "toolgate", "input": {"a": 1}}
    gave = {"type": "mcp_tool_result", "tool_use_id": ID1, "is_error": False, "content": [text("x")]}
    request = decode_request(
        user(text("hi")), assistant(text("Wait."), used, gave, text("Done.")), user(text("thanks"))
    )
    assert request.messages[1:4] == (
        Message("assistant", (Text("Wait."), ToolCall(ID1, "f", '{"a":1}', "gateway"))),
        Message("tool", (ToolResult(ID1, (Text("x"),), False),)),
        Message("assistant", (Text("Done."),)),
    )
    body, _ = written(match_results(request))
    assert body["messages"][1]["content"][1]["type"] == "tool_use"
    assert body["messages"][2]["content"] == [result(content="x", is_error=False)]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, Media("image", url="https://x/y.png")),
        ({"type": "image", "source": {"type": "file", "file_id": "file_1"}}, Media("image", file_id="file_1")),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PNG},
                **EPHEMERAL,
            },
            Media("file", "application/pdf", PNG, extra={"anthropic": EPHEMERAL}),
        ),
    ],
)
def test_media_by_bytes_address_or_file(block: dict[str, Any], part: Part) -> None:
    request = decode_request(user(block, text("What is this?")))
    assert request.messages[0].parts[0] == part
    assert written(request)[0]["messages"][0]["content"][0] == block


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "Body"}},
        {
            "type": "document",
            "title": "T",
            "source": {"type": "content", "content": [{"type": "text", "text": "Body"}]},
        },
        {"type": "search_result", "title": "T", "source": "https://x", "content": [{"type": "text", "text": "Body"}]},
    ],
)
def test_documents_of_text_are_text_to_others(block: dict[str, Any]) -> None:
    request = decode_request(user(block, text("And?")))
    assert written(request)[0]["messages"][0]["content"][0] == block
    content = encode_for_chat(request)[0]["messages"][0]["content"][0]["text"]
    assert content.startswith("T\n")
    assert content.endswith("Body")


def test_calls_keep_their_input_and_what_stands_beside_it() -> None:
    """field: B29, B30"""
    call = use(caller={"type": "direct"}, input={"n": 9007199254740993, "s": "ü"}, **EPHEMERAL)
    request = decode_request(user(text("hi")), assistant(call), user(result(content="x")))
    assert request.messages[1].parts == (
        ToolCall(
            ID1,
            "get_weather",
            '{"n":9007199254740993,"s":"ü"}',
            extra={"anthropic": {"caller": {"type": "direct"}, **EPHEMERAL}},
        ),
    )
    assert written(request)[0]["messages"][1]["content"] == [call]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [({}, "{}"), (None, "{}"), ("", "{}"), ('{"a":1}', '{"a":1}'), ({"INVALID_JSON": "{'a'"}, "{'a'")],
)
def test_inputs_of_every_shape(given: dict[str, Any] | str | None, arguments: str) -> None:
    """field: B11, B27"""
    request = decode_request(user(text("hi")), assistant(use(input=given)), user(result(content="x")))
    assert of(ToolCall, request.messages[1].parts[0]).arguments == arguments


def test_tools() -> None:
    """field: B14, B29"""
    plain = {"name": "a", "description": "Does a.", "input_schema": {"type": "object"}, "strict": True}
    marked = {"name": "b", "type": "custom", "input_schema": {"type": "object"}, "input_examples": [{}], **EPHEMERAL}
    hosted = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "wiki"}
    request = decode_request(tools=[plain, marked, hosted, toolset])
    assert request.tools == (
        ToolDef("a", "Does a.", {"type": "object"}, True),
        ToolDef(
            "b", None, {"type": "object"}, extra={"anthropic": {"type": "custom", "input_examples": [{}], **EPHEMERAL}}
        ),
        ToolDef("web_search", kind="hosted", extra={"anthropic": hosted}),
        ToolDef("wiki", kind="hosted", extra={"anthropic": toolset}),
    )
    assert written(request)[0]["tools"] == [plain, marked, hosted, toolset]


def test_hosted_tools_are_dropped_for_others_with_a_note() -> None:
    """field: B34"""
    request = decode_request(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    body, dropped = encode_for_chat(request)
    assert "tools" not in body
    assert any("web_search" in note for note in dropped)


@pytest.mark.parametrize(
    "tool", [{"input_schema": {}}, {"name": "", "input_schema": {}}, {"name": 3}, "f", {"name": "f", "input_schema": 1}]
)
def test_bad_tools_are_refused_by_path(tool: dict[str, Any] | str) -> None:
    """spec: C7"""
    with pytest.raises(InvalidRequest) as raised:
        decode_request(tools=[tool])
    assert given(raised.value.param).startswith("tools[0]")


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"type": "auto"}, ToolChoice("auto")),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "tool", "name": "get_weather"}, ToolChoice("required", ("get_weather",))),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto", (), False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice("required", (), True)),
        (
            {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
            ToolChoice("required", ("get_weather",), False),
        ),
    ],
)
def test_tool_choices_come_and_go(given: dict[str, Any], choice: ToolChoice) -> None:
    """field: B17, B19"""
    request = decode_request(tools=[WEATHER], tool_choice=given)
    assert request.tool_choice == choice
    assert written(request)[0]["tool_choice"] == given


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, ReasoningSettings(True, None, 2048, "auto")),
        ({"thinking": {"type": "adaptive"}}, ReasoningSettings(True, None, None, "auto", adaptive=True)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, ReasoningSettings(True, adaptive=True)),
        ({"thinking": {"type": "disabled"}}, ReasoningSettings(False)),
        ({"thinking": {"type": "between_tools"}}, ReasoningSettings(True, None, None, "auto")),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            ReasoningSettings(True, "max", None, "auto", adaptive=True),
        ),
        ({"output_config": {"effort": "low", "task_budget": {"total": 9}}}, ReasoningSettings(True, "low")),
    ],
)
def test_thinking_is_decoded_and_sent_on_unchanged(fields: dict[str, Any], thinking: ReasoningSettings | None) -> None:
    """field: C12"""
    request = decode_request(**fields)
    assert request.settings.thinking == thinking
    body, dropped = written(request)
    assert {name: body[name] for name in ("thinking", "output_config") if name in body} == fields
    assert dropped == ()


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_an_output_schema(fields: dict[str, Any]) -> None:
    request = decode_request(**fields)
    assert request.settings.output == StructuredOutputFormat(SCHEMA)
    assert written(request)[0]["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}


def test_an_output_format_from_the_future_returns_to_anthropic() -> None:
    config = {"format": {"type": "novel", "x": 1}}
    request = decode_request(output_config=config)
    assert request.settings.output is None
    assert written(request)[0]["output_config"] == config


def test_settings() -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop_sequences": ["a", "b"]}
    request = decode_request(**sampling, metadata={"user_id": "u1", "novel": 1}, stream=True)
    settings = request.settings
    assert (settings.temperature, settings.top_p, settings.top_k, settings.stop) == (0.5, 0.9, 3, ("a", "b"))
    assert (settings.user, request.stream) == ("u1", True)
    body, dropped = written(request)
    assert {name: body[name] for name in sampling} == sampling
    assert body["metadata"] == {"user_id": "u1", "novel": 1}
    assert body["stream"] is True
    assert dropped == ()


def test_a_long_user_id_is_shortened_for_others_alone() -> None:
    id = '{"device_id": "' + "0" * 64 + '"}'
    request = decode_request(metadata={"user_id": id})
    assert written(request)[0]["metadata"] == {"user_id": id}
    assert len(given(request.settings.user)) == 64
    assert request.settings.user == decode_request(metadata={"user_id": id}).settings.user


def test_unknown_fields_are_let_through() -> None:
    """spec: U2; what Claude Code sends"""
    fields = {
        "mcp_servers": [{"type": "url", "url": "https://x", "name": "wiki"}],
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "container": "c1",
        "service_tier": "auto",
        "speed": "fast",
        "from_the_future": {"a": 1},
    }
    request = decode_request({"role": "user", "content": "hi", "novel": 1}, **fields)
    assert request.extra == {"anthropic": fields}
    body, _ = written(request)
    assert {name: body[name] for name in fields} == fields
    assert body["messages"] == [{"role": "user", "content": "hi", "novel": 1}]
    assert not set(fields) & set(encode_for_chat(request)[0])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], None),
        ({"max_tokens": 1, "messages": [user()]}, "model"),
        ({"model": "m", "messages": [user()]}, "max_tokens"),
        ({"model": "m", "max_tokens": "1", "messages": [user()]}, "max_tokens"),
        ({"model": "m", "max_tokens": -1, "messages": [user()]}, "max_tokens"),
        ({"model": "m", "max_tokens": 1, "messages": []}, "messages"),
        ({"model": "m", "max_tokens": 1}, "messages"),
        ({"model": "m", "max_tokens": 1, "messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"model": "m", "max_tokens": 1, "messages": [user({"text": "x"})]}, "messages[0].content[0].type"),
        ({"model": "m", "max_tokens": 1, "messages": [user({"type": "image"})]}, "messages[0].content[0].source"),
        (
            {"model": "m", "max_tokens": 1, "messages": [assistant({"type": "tool_use", "id": "x"})]},
            "messages[0].content[0].name",
        ),
        ({"model": "m", "max_tokens": 1, "messages": [user()], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"model": "m", "max_tokens": 1, "messages": [user()], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"model": "m", "max_tokens": 1, "messages": [user()], "stop_sequences": [1]}, "stop_sequences"),
        ({"model": "m", "max_tokens": 1, "messages": [user()], "stop_sequences": ["x"] * 65}, "stop_sequences"),
    ],
)
def test_what_breaks_the_rules_is_refused_by_path(body: dict[str, Any] | list[Any], param: str | None) -> None:
    """spec: C7"""
    with pytest.raises(InvalidRequest) as raised:
        DIALECT.server.decode_request(body)
    assert raised.value.param == param


def test_counting_tokens_needs_no_limit() -> None:
    request = decode_count_request({"model": "m", "messages": [user(text("hi"))], "tools": [WEATHER]})
    assert request.settings.max_tokens is None
    assert request.tools[0].name == "get_weather"


def test_a_request_survives_the_round_trip() -> None:
    """Law 6: what an upstream of the same dialect gets is what the client asked."""
    request = decode_request(
        user(text("hi"), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}),
        assistant({"type": "thinking", "thinking": "Hm", "signature": "sig"}, text("Wait."), use(), use(ID2, "clock")),
        user(result(content="sunny", is_error=False), result(ID2, content=[text("noon", **EPHEMERAL)]), text("And?")),
        system=[text("One."), text("Two.", **EPHEMERAL)],
        tools=[WEATHER],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        stop_sequences=["END"],
        temperature=1,
        metadata={"user_id": "u"},
        stream=True,
        novel=1,
    )
    body, dropped = written(request)
    assert DIALECT.server.decode_request(body) == request
    assert dropped == ()
