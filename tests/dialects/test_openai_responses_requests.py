"""Responses requests are read whole: items in order, tools of every kind, nothing unknown refused or lost."""

from typing import Any

import pytest

from tests.dialects.openai_responses_cases import CITY, ID1, ID2, WEATHER
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.history import match_results
from toolgate.conversation.message import (
    Media,
    Message,
    Opaque,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest, ReasoningSettings, StructuredOutputFormat, ToolChoice, ToolDef
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import Dialect, Quirks
from toolgate.dialects.ollama import DIALECT as OLLAMA
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.dialects.openai_responses import DIALECT, requests
from toolgate.dialects.openai_responses.shared_codec import NAME


def decode(**fields: Any) -> ModelRequest:
    return DIALECT.server.decode_request({"model": "m", "input": "hi", **fields})


def messages(*items: Any) -> tuple[Message, ...]:
    return decode(input=list(items)).messages


def fc(id: str = ID1, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "get_weather", "arguments": CITY, **fields}


def output(value: Any = "sunny", id: str = ID1, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": value, **fields}


def test_a_string_is_a_users_message() -> None:
    assert decode(input="hello").messages == (Message("user", (Text("hello"),)),)


def test_messages_come_with_or_without_a_type_and_in_every_role() -> None:
    assert messages(
        {"role": "system", "content": "s"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
        {"role": "user", "content": "u"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": "a"},
    ) == (
        Message("system", (Text("s"),)),
        Message("system", (Text("d"),), {NAME: {"role": "developer"}}),
        Message("user", (Text("u"),)),
        Message("assistant", (Text("a"),)),
    )


def test_instructions_lead_and_are_marked() -> None:
    request = decode(instructions="Be brief.")
    assert requests.instructions(request) == "Be brief."
    assert [message.role for message in request.messages] == ["system", "user"]
    assert requests.instructions(decode(input=[{"role": "system", "content": "s"}])) is None


def test_the_items_of_one_turn_are_one_message_in_order() -> None:
    """field: D10, D11"""
    turn = messages(
        {"role": "user", "content": "u"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
        fc(),
        {"type": "custom_tool_call", "call_id": ID2, "name": "patch", "input": "*** Begin"},
        output(),
        {"type": "custom_tool_call_output", "call_id": ID2, "output": "ok"},
        {"role": "assistant", "content": "Done."},
    )
    assert [message.role for message in turn] == ["user", "assistant", "tool", "tool", "assistant"]
    assert turn[1].parts == (
        Reasoning("Hm."),
        Text("Look."),
        WEATHER,
        ToolCall(ID2, "patch", "*** Begin", freeform=True),
    )
    assert turn[2].parts == (ToolResult(ID1, (Text("sunny"),)),)
    assert turn[3].parts == (ToolResult(ID2, (Text("ok"),)),)


def test_the_parts_of_one_message_stay_together() -> None:
    (message,) = messages(
        {
            "role": "assistant",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "b"},
            ],
        }
    )
    assert message.parts == (
        Text("a", {NAME: {"message": {"phase": "commentary"}}}),
        RefusalPart("b", {NAME: {"continues": True}}),
    )


def test_content_parts_of_every_kind() -> None:
    (message,) = messages(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "low"},
                {"type": "input_image", "image_url": "https://example.org/a.png", "detail": None},
                {"type": "input_image", "image_url": {"url": "https://example.org/b.png"}},
                {"type": "input_image", "file_id": "file_1"},
                {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"},
                {"type": "input_file", "file_url": "https://example.org/a.pdf"},
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
                {"type": "input_smell", "scent": "rose"},
            ],
        }
    )
    assert message.parts == (
        Text("a"),
        Media("image", "image/png", "QUJD", detail="low"),
        Media("image", url="https://example.org/a.png"),
        Media("image", url="https://example.org/b.png"),
        Media("image", file_id="file_1"),
        Media("file", "application/pdf", "QUJD", name="a.pdf"),
        Media("file", url="https://example.org/a.pdf"),
        Media("audio", "audio/mpeg", "QUJD"),
        Opaque(NAME, {"type": "input_smell", "scent": "rose"}),
    )


def test_a_result_may_hold_pictures() -> None:
    """field: B1, B9"""
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}]
    result = messages(fc(), output(parts))[1].parts[0]
    assert result == ToolResult(ID1, (Text("look"), Media("image", "image/png", "QUJD")))


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), ({"a": 1}, '{"a":1}'), (7, "7"), ([{"type": "output_text", "text": "x"}], "x")]
)
def test_a_result_of_another_shape_is_taken_as_text(value: Any, text: str) -> None:
    assert messages(fc(), output(value))[1].parts == (ToolResult(ID1, (Text(text),)),)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (fc(id=ID1), "fc_" + "a" * 24),
        ({**fc(), "id": "fc_other"}, "fc_other"),
        ({"type": "function_call", "id": ID1, "name": "get_weather", "arguments": CITY}, ID1),
        (fc(), None),
    ],
    ids=["our own item id", "another's item id", "only an item id", "no id at all"],
)
def test_a_result_finds_its_call_by_either_id(call: Any, named: str | None) -> None:
    """field: B5, B7"""
    decoded = messages(
        call, {"type": "function_call_output", "output": "sunny", **({"call_id": named} if named else {})}
    )
    assert decoded[1].parts == (ToolResult(ID1, (Text("sunny"),)),)


def test_a_result_without_an_id_is_refused_where_two_calls_wait() -> None:
    """field: B5"""
    with pytest.raises(InvalidRequest) as refused:
        messages(fc(), fc(ID2), {"type": "function_call_output", "output": "x"})
    assert refused.value.param == "input[2].call_id"


def test_a_result_that_answers_no_call_is_refused_when_the_history_is_settled() -> None:
    with pytest.raises(InvalidRequest, match="matches no earlier tool call"):
        match_results(decode(input=[{"role": "user", "content": "u"}, output(id="call_openresponses_missing")]))


def test_ids_that_return_every_round_belong_to_the_nearest_call() -> None:
    """field: B6"""
    request = match_results(
        decode(input=[fc("search:0"), output("a", "search:0"), fc("search:0"), output("b", "search:0")])
    )
    results = [part.content for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    assert results == [(Text("a"),), (Text("b"),)]


def test_arguments_may_be_an_object_or_nothing() -> None:
    """field: B11, B27"""
    calls = messages(fc(arguments={"city": "Paris"}), fc(ID2, arguments=""))[0].parts
    assert [part.arguments for part in calls if isinstance(part, ToolCall)] == [CITY, "{}"]


def test_malformed_arguments_are_not_made_empty() -> None:
    """field: B12"""
    (call,) = messages(fc(arguments='{"city":'))[0].parts
    assert isinstance(call, ToolCall)
    assert call.arguments == '{"city":'


def test_a_half_call_in_the_history_stays_half() -> None:
    (call,) = messages(fc(arguments='{"ci', status="incomplete"))[0].parts
    assert call == ToolCall(ID1, "get_weather", '{"ci', complete=False)


def test_reasoning_keeps_its_proof() -> None:
    """field: C1, C2"""
    item: dict[str, Any] = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": None,
        "encrypted_content": "gAAA",
    }
    assert messages(item)[0].parts == (
        Reasoning("", ReasoningSignature(NAME, {"summary": [], "encrypted_content": "gAAA"})),
    )


def test_a_call_carries_its_namespace() -> None:
    (call,) = messages(fc(namespace="web", caller=None))[0].parts
    assert call == ToolCall(ID1, "get_weather", CITY, extra={NAME: {"namespace": "web"}})


def test_items_of_unknown_kinds_stay_in_their_place() -> None:
    """field: B32"""
    strange: list[dict[str, Any]] = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "other", "name": "f", "arguments": "{}"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "tool_search_call", "arguments": {}},
        {"type": "no_such_item", "x": 1},
    ]
    decoded = messages({"role": "user", "content": "u"}, *strange, {"role": "user", "content": "v"})
    assert decoded[1].parts == tuple([Opaque(NAME, item) for item in strange])
    assert [message.role for message in decoded] == ["user", "assistant", "user"]


def test_a_call_that_was_run_here_is_history_for_any_model() -> None:
    item = {"type": "mcp_call", "id": "mcp_" + "a" * 24, "server_label": "toolgate", "name": "f", "arguments": "{}"}
    decoded = messages({**item, "output": "x", "error": None})
    assert decoded[0].parts == (ToolCall(ID1, "f", "{}", executor="gateway"),)
    assert decoded[1].parts == (ToolResult(ID1, (Text("x"),), False, "f"),)
    failed = messages(
        {**item, "error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}}
    )
    assert failed[1].parts == (ToolResult(ID1, (Text("no"),), True, "f"),)


def test_tools_that_an_item_brings_are_on_offer() -> None:
    """field: B32"""
    item = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    request = decode(input=[{"role": "user", "content": "u"}, item], tools=[{"type": "function", "name": "early"}])
    assert [tool.name for tool in request.tools] == ["early", "late"]
    body, _ = DIALECT.upstream.encode_request(request, Quirks())
    assert [tool["name"] for tool in body["tools"]] == ["early"]
    assert item in body["input"]


@pytest.mark.parametrize("dialect", [OPENAI_CHAT, ANTHROPIC, OLLAMA], ids=lambda dialect: dialect.name)
def test_tools_that_the_first_item_brings_leave_no_empty_answer_behind(dialect: Dialect) -> None:
    """A system message that is not the first, and an answer before any question, are refused by many servers."""
    item = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]}
    request = decode(input=[item, {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "u"}])
    body, _ = dialect.upstream.encode_request(request, Quirks())
    assert [message["content"] for message in body["messages"]] in (["Be brief.", "u"], ["u"])
    assert len(body["tools"]) == 1


def test_a_reference_to_an_item_is_refused_in_words_that_help() -> None:
    for item in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}):
        with pytest.raises(InvalidRequest, match="send the item itself") as refused:
            messages(item)
        assert (refused.value.param, refused.value.code) == ("input[0]", "item_not_found")


def test_tools_of_every_kind() -> None:
    tools = decode(
        tools=[
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
            {"type": "function", "name": "g", "parameters": None, "strict": None, "defer_loading": True},
            {"type": "function", "function": {"name": "h"}},
            {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "namespace", "name": "n", "description": "N.", "tools": [{"type": "function", "name": "i"}]},
            {"type": "web_search", "search_context_size": "low"},
            {"type": "mcp", "server_label": "wiki", "server_url": "https://example.org"},
        ]
    ).tools
    assert tools == (
        ToolDef("f", "d", {"type": "object"}, True),
        ToolDef("g", extra={NAME: {"defer_loading": True}}),
        ToolDef("h"),
        ToolDef("c", kind="freeform", format={"type": "grammar", "syntax": "lark", "definition": "x"}),
        ToolDef("i", namespace="n", extra={NAME: {"namespace": {"description": "N."}}}),
        ToolDef("web_search", kind="hosted", extra={NAME: {"type": "web_search", "search_context_size": "low"}}),
        ToolDef(
            "wiki",
            kind="hosted",
            extra={NAME: {"type": "mcp", "server_label": "wiki", "server_url": "https://example.org"}},
        ),
    )


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", ("f",))),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice("required", ("f",))),
        ({"type": "custom", "name": "c"}, ToolChoice("required", ("c",))),
        ({"type": "web_search"}, ToolChoice("auto")),
        ({"type": "mcp", "server_label": "wiki"}, ToolChoice("auto")),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}, {"type": "mcp"}],
            },
            ToolChoice("required", ("f",)),
        ),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}, ToolChoice("auto", ("f",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "name": "c"}]}},
            ToolChoice("auto", ("c",)),
        ),
    ],
)
def test_a_choice_is_read_flat_and_nested(sent: Any, choice: ToolChoice) -> None:
    """field: B21"""
    assert decode(tool_choice=sent).tool_choice == choice


def test_parallel_calls_alone_are_a_free_choice() -> None:
    """field: B17, B19"""
    assert decode(parallel_tool_calls=False).tool_choice == ToolChoice(parallel=False)
    assert decode(parallel_tool_calls=None).tool_choice is None


def test_settings() -> None:
    request = decode(
        max_output_tokens=8,
        temperature=0.5,
        top_p=0.9,
        user="u",
        text={"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True}, "verbosity": "low"},
        reasoning={"effort": "high", "summary": "auto", "context": "all_turns"},
    )
    settings = request.settings
    assert (settings.max_tokens, settings.temperature, settings.top_p, settings.user) == (8, 0.5, 0.9, "u")
    assert settings.output == StructuredOutputFormat({"a": 1}, "n", None, True)
    assert settings.thinking == ReasoningSettings(True, "high", summary="auto")
    assert request.extra[NAME] == {"text": {"verbosity": "low"}, "reasoning": {"context": "all_turns"}}
    assert decode(text={"format": {"type": "json_object"}}).settings.output == StructuredOutputFormat()
    assert decode(text={"format": {"type": "text"}}).settings.output is None
    assert decode(reasoning={"effort": "none"}).settings.thinking == ReasoningSettings(False, "none")


def test_fields_for_stored_responses_can_be_read_from_the_request() -> None:
    request = decode(store=False, previous_response_id="resp_1", background=True, conversation={"id": "conv_1"})
    assert not requests.is_stored(request)
    assert requests.is_background(request)
    assert requests.previous_response_id(request) == "resp_1"
    assert requests.conversation_id(request) == "conv_1"
    plain = decode(previous_response_id=None, conversation=None)
    assert requests.is_stored(plain)
    assert requests.previous_response_id(plain) is None
    assert requests.conversation_id(plain) is None


def test_input_may_be_missing_only_where_something_else_brings_it() -> None:
    assert DIALECT.server.decode_request({"model": "m", "previous_response_id": "resp_1"}).messages == ()
    with pytest.raises(InvalidRequest) as refused:
        DIALECT.server.decode_request({"model": "m"})
    assert refused.value.param == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].name"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_mistake_is_named_where_it_stands(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        DIALECT.server.decode_request({"model": "m", "input": "hi", **fields})
    assert refused.value.param == param
