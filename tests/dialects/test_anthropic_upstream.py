"""What Anthropic is sent on behalf of clients of other dialects: whole, and without what it is sure to refuse."""

import base64
from typing import Any, Literal

import pytest
from anthropic.types import (
    DocumentBlockParam,
    ImageBlockParam,
    MessageParam,
    TextBlockParam,
    ThinkingBlockParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import ConfigDict, TypeAdapter

from tests.dialects.anthropic_cases import DIALECT, ID1, ID2, decode_request, written
from toolgate.conversation.call_ids import portable_id
from toolgate.conversation.history import match_results
from toolgate.conversation.message import (
    REASONING_DROPPED,
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
    ToolKind,
)
from toolgate.dialects.dialect import Quirks

HI = Message("user", (Text("hi"),))
SIGNATURE = ReasoningSignature("anthropic", {"signature": "sig"})
SCHEMA = {"type": "object", "properties": {}}
TOOLS = (ToolDef("a", input_schema=SCHEMA), ToolDef("b", input_schema=SCHEMA))
THINKING = {"type": "enabled", "budget_tokens": 2048}
OLD = Quirks(thinking="budget")


def foreign(*messages: Message, **fields: Any) -> ModelRequest:
    """A request of a client that speaks another dialect."""
    return ModelRequest("m", messages or (HI,), dialect="openai_chat", **fields)


def call(id: str = ID1, name: str = "a", arguments: str = '{"x":1}', **more: Any) -> ToolCall:
    return ToolCall(id, name, arguments, **more)


def assistant(*parts: Part) -> Message:
    return Message("assistant", parts)


def gave(id: str = ID1, *content: Text | Media, **more: Any) -> Message:
    return Message("tool", (ToolResult(id, content or (Text("ok"),), **more),))


def messages(*conversation: Message, quirks: Quirks | None = None, **fields: Any) -> list[dict[str, Any]]:
    return list(written(foreign(*conversation, **fields), quirks)[0]["messages"])


def test_where_and_with_what_it_is_sent() -> None:
    assert DIALECT.upstream.path(foreign()) == "/messages"
    assert DIALECT.upstream.headers("k") == {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert DIALECT.upstream.headers(None) == {"anthropic-version": "2023-06-01"}


def test_a_plain_question() -> None:
    body, dropped = written(foreign(Message("system", (Text("Be kind."),)), HI, stream=True))
    assert body == {
        "model": "m",
        "max_tokens": 8192,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }
    assert dropped == ()
    assert written(foreign(settings=RequestSettings(max_tokens=5)), Quirks(default_max_tokens=9))[0]["max_tokens"] == 5
    assert written(foreign(), Quirks(default_max_tokens=9))[0]["max_tokens"] == 9


def test_several_system_messages_at_the_beginning_are_blocks_of_one_prompt() -> None:
    body, dropped = written(foreign(Message("system", (Text("One."),)), Message("system", (Text("Two."),)), HI))
    assert body["system"] == [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    assert dropped == ()


def test_a_later_system_message_is_moved_to_the_prompt_unless_the_model_takes_it_in_place() -> None:
    first, later = Message("system", (Text("One."),)), Message("system", (Text("Two."),))
    request = foreign(first, HI, later, assistant(Text("Yes")), later, HI)
    body, dropped = written(request)
    assert [block["text"] for block in body["system"]] == ["One.", "Two.", "Two."]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert len(dropped) == 2
    body, dropped = written(request, Quirks(system_in_place=True))
    assert [message["role"] for message in body["messages"]] == ["user", "system", "assistant", "user"]
    assert body["messages"][1] == {"role": "system", "content": "Two."}
    assert len(dropped) == 1  # the one behind the assistant's words has no place there


def test_a_client_of_this_dialect_may_be_overruled() -> None:
    request = decode_request({"role": "user", "content": "hi"}, {"role": "system", "content": "Two."})
    assert written(request, Quirks(system_in_place=False))[0]["system"] == "Two."
    assert "system" not in written(request)[0]


def test_turns_alternate() -> None:
    """field: B4"""
    conversation = (HI, HI, assistant(Text("a"), call()), gave(), HI, assistant(Text("b")), assistant(Text("c")))
    roles = [message["role"] for message in messages(*conversation)]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_results_of_parallel_calls_stand_together_before_everything_else() -> None:
    """field: B2, B4"""
    conversation = (HI, assistant(call(), call(ID2, "b")), gave(), gave(ID2), HI)
    content = messages(*conversation)[2]["content"]
    assert [block["type"] for block in content] == ["tool_result", "tool_result", "text"]
    unsettled = (HI, assistant(call(), call(ID2, "b")), HI, gave(ID2), gave())
    content = messages(*unsettled)[2]["content"]
    assert [block["type"] for block in content] == ["tool_result", "tool_result", "text"]


@pytest.mark.parametrize("empty", ["", " ", "\n\t"])
def test_empty_texts_are_never_sent(empty: str) -> None:
    """quirk: a_empty_text_block"""
    blank = Text(empty)
    conversation = (
        Message("system", (blank,)),
        Message("user", (blank, Text("hi"))),
        assistant(blank, call()),
        gave(ID1, blank),
    )
    body, _ = written(foreign(*conversation))
    assert "system" not in body
    assert body["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": ID1, "name": "a", "input": {"x": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ID1}]},
    ]


def test_messages_left_empty_are_never_sent() -> None:
    conversation = (HI, assistant(Reasoning("Hm")), Message("user", (Text(""),)), HI)
    assert messages(*conversation) == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "hi"}]}
    ]


def test_a_conversation_of_system_messages_alone_becomes_a_question() -> None:
    body, dropped = written(foreign(Message("system", (Text("Write a poem."),))))
    assert body["messages"] == [{"role": "user", "content": "Write a poem."}]
    assert "system" not in body
    assert len(dropped) == 1


def test_a_conversation_begins_with_the_user_and_ends_without_a_blank() -> None:
    begun = messages(assistant(Text("Hello!")), HI, assistant(Text("Well, ")))
    assert [message["role"] for message in begun] == ["user", "assistant", "user", "assistant"]
    assert begun[-1]["content"] == "Well,"


def test_a_failed_result_is_never_empty() -> None:
    content = messages(HI, assistant(call()), gave(ID1, Text(""), is_error=True))[2]["content"]
    assert content == [
        {
            "type": "tool_result",
            "tool_use_id": ID1,
            "content": "The tool failed and gave no reason.",
            "is_error": True,
        }
    ]


def test_a_lost_result_is_an_error_result() -> None:
    """field: B37"""
    request = match_results(foreign(HI, assistant(call(), call(ID2, "b")), gave(), HI))
    content = written(request)[0]["messages"][2]["content"]
    assert [(block["type"], block.get("is_error")) for block in content] == [
        ("tool_result", None),
        ("tool_result", True),
        ("text", None),
    ]


def test_ids_are_well_formed_and_the_same_for_call_and_result() -> None:
    """quirk: kimi_ids; field: B10"""
    conversation = messages(HI, assistant(call("functions.a:0")), gave("functions.a:0"))
    used, answered = conversation[1]["content"][0]["id"], conversation[2]["content"][0]["tool_use_id"]
    assert used == answered
    assert used.isalnum()


def test_ids_repeated_in_every_round_become_unique() -> None:
    """quirk: ids_duplicate; field: B6"""
    rounds = [message for _ in range(3) for message in (assistant(call("a_0")), gave("a_0"))]
    conversation = messages(HI, *rounds)
    used = [message["content"][0]["id"] for message in conversation[1::2]]
    answered = [message["content"][0]["tool_use_id"] for message in conversation[2::2]]
    assert used == answered
    assert len(set(used)) == 3


def test_an_upstream_gets_its_own_ids_back() -> None:
    """quirk: kimi_ids"""
    carried = portable_id("call_1")
    conversation = messages(HI, assistant(call(carried)), gave(carried))
    assert conversation[1]["content"][0]["id"] == conversation[2]["content"][0]["tool_use_id"] == "call_1"
    carried = portable_id("functions.a:0")
    assert messages(HI, assistant(call(carried)), gave(carried))[1]["content"][0]["id"] == carried


def test_an_upstream_may_be_stricter_about_ids() -> None:
    strict = Quirks(call_id_pattern="[a-z0-9A-Z]{9}")
    conversation = messages(HI, assistant(call()), gave(), quirks=strict)
    assert len(conversation[1]["content"][0]["id"]) == 9
    assert conversation[1]["content"][0]["id"] == conversation[2]["content"][0]["tool_use_id"]


@pytest.mark.parametrize(
    ("part", "given"),
    [
        (call(arguments="{}"), {}),
        (call(arguments=""), {}),
        (call(arguments='{"n":12345678901234567890123}'), {"n": 12345678901234567890123}),
        (call(arguments="{'x'"), {"INVALID_JSON": "{'x'"}),
        (call(arguments='{"x":', complete=False), {"INVALID_JSON": '{"x":'}),
        (call(arguments="", complete=False), {"INVALID_JSON": ""}),
        (call(arguments="*** patch", freeform=True), {"input": "*** patch"}),
    ],
)
def test_inputs_are_objects(part: Part, given: dict[str, Any]) -> None:
    """field: B11, B12; quirk: args_bignum, args_invalid"""
    assert messages(HI, assistant(part), gave())[1]["content"][0]["input"] == given


def test_reasoning_that_anthropic_sealed_goes_back_and_no_other() -> None:
    """field: C1, C4, C7"""
    parts = (
        Reasoning("Hm", SIGNATURE),
        Reasoning("", ReasoningSignature("anthropic", {"data": "secret"})),
        Reasoning("no", ReasoningSignature("openai_responses", {"id": "rs_1"})),
        Reasoning("no"),
        RefusalPart("I will not."),
    )
    assert messages(HI, assistant(*parts), HI)[1]["content"] == [
        {"type": "thinking", "thinking": "Hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": "I will not."},
    ]


PNG = base64.b64encode(b"png").decode()


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            Media("image", "image/jpeg", PNG),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}},
        ),
        (
            Media("image", None, PNG),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ),
        (Media("image", url="https://x"), {"type": "image", "source": {"type": "url", "url": "https://x"}}),
        (
            Media("file", "application/pdf", PNG, name="a.pdf"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PNG},
                "title": "a.pdf",
            },
        ),
        (Media("file", url="https://x"), {"type": "document", "source": {"type": "url", "url": "https://x"}}),
        (
            Media("file", "text/markdown", base64.b64encode("ü".encode()).decode()),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "ü"}},
        ),
    ],
)
def test_media(part: Media, block: dict[str, Any]) -> None:
    assert messages(Message("user", (part, Text("What?"))))[0]["content"][0] == block
    assert messages(HI, assistant(call()), gave(ID1, part))[2]["content"][0]["content"] == [block]


@pytest.mark.parametrize(
    "part",
    [
        Media("audio", "audio/wav", PNG),
        Media("video", url="https://x"),
        Media("file", "application/zip", PNG),
        Media("file", "text/plain", "not base64!"),
        Media("image", file_id="file_1"),
        Opaque("openai_chat", {"type": "novel"}),
    ],
)
def test_what_has_no_place_is_left_out_with_a_note(part: Part) -> None:
    """spec: C8"""
    body, dropped = written(foreign(Message("user", (part, Text("What?")))))
    assert body["messages"] == [{"role": "user", "content": "What?"}]
    assert len(dropped) == 1


def test_tools() -> None:
    """field: B14, B25"""
    tools = (
        ToolDef("a", "Does a.", {"type": "object", "additionalProperties": False}, strict=True),
        ToolDef("b"),
        ToolDef("c", input_schema={"properties": {}}),
    )
    assert written(foreign(tools=tools))[0]["tools"] == [
        {
            "name": "a",
            "description": "Does a.",
            "input_schema": {"type": "object", "additionalProperties": False},
            "strict": True,
        },
        {"name": "b", "input_schema": {"type": "object", "properties": {}}},
        {"name": "c", "input_schema": {"type": "object", "properties": {}}},
    ]


@pytest.mark.parametrize("kind", ["freeform", "hosted"])
def test_tools_of_other_kinds_are_left_out_with_a_note(kind: ToolKind) -> None:
    """field: B34"""
    tools = (ToolDef("x", kind=kind, extra={"openai_responses": {"type": "x"}}),)
    body, dropped = written(foreign(tools=tools, tool_choice=ToolChoice("required")))
    assert "tools" not in body
    assert "tool_choice" not in body
    assert len(dropped) == 2  # the tool, and the call that was demanded


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, None),
        (ToolChoice("auto"), {"type": "auto"}),
        (ToolChoice("required"), {"type": "any"}),
        (ToolChoice("required", ("a",)), {"type": "tool", "name": "a"}),
        pytest.param(ToolChoice("none", (), False), {"type": "none"}, id="field: B16"),
        pytest.param(
            ToolChoice("auto", (), False), {"type": "auto", "disable_parallel_tool_use": True}, id="field: B17"
        ),
        (ToolChoice("required", (), False), {"type": "any", "disable_parallel_tool_use": True}),
        (ToolChoice("required", ("a",), False), {"type": "tool", "name": "a", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choices(choice: ToolChoice | None, wanted: dict[str, Any] | None) -> None:
    """field: B20"""
    body, _ = written(foreign(tools=TOOLS, tool_choice=choice))
    assert body.get("tool_choice") == wanted
    assert len(body["tools"]) == 2


def test_a_choice_among_some_tools_offers_those_alone() -> None:
    """field: B21"""
    tools = (*TOOLS, ToolDef("c"))
    body, _ = written(foreign(tools=tools, tool_choice=ToolChoice("required", ("a", "b"))))
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["a", "b"], {"type": "any"})
    body, _ = written(foreign(tools=tools, tool_choice=ToolChoice("auto", ("c",))))
    assert ([tool["name"] for tool in body["tools"]], body["tool_choice"]) == (["c"], {"type": "auto"})


def test_no_tools_means_no_choice() -> None:
    """field: B14, B15"""
    body, _ = written(foreign(tool_choice=ToolChoice("auto", (), False)))
    assert "tools" not in body
    assert "tool_choice" not in body


def test_a_history_with_calls_names_its_tools_though_none_are_offered() -> None:
    """field: B15"""
    body, _ = written(foreign(HI, assistant(call(), call(ID2, "b")), gave(), gave(ID2), HI))
    assert [tool["name"] for tool in body["tools"]] == ["a", "b"]
    assert body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    ("thinking", "wanted", "effort"),
    [
        (ReasoningSettings(True, "high"), {"type": "adaptive"}, "high"),
        (ReasoningSettings(True, "minimal"), {"type": "adaptive"}, "low"),
        (ReasoningSettings(True, "xhigh", summary="auto"), {"type": "adaptive", "display": "summarized"}, "xhigh"),
        (ReasoningSettings(True), {"type": "adaptive"}, None),
        (ReasoningSettings(True, budget=5000), {"type": "adaptive"}, "medium"),
        (ReasoningSettings(True, budget=100000), {"type": "adaptive"}, "max"),
        (ReasoningSettings(False, "none"), {"type": "disabled"}, None),
    ],
)
def test_newer_models_think_by_effort(thinking: ReasoningSettings, wanted: dict[str, Any], effort: str | None) -> None:
    body, dropped = written(foreign(settings=RequestSettings(thinking=thinking, max_tokens=100)))
    assert body["thinking"] == wanted
    assert body.get("output_config", {}).get("effort") == effort
    assert body["max_tokens"] == 100
    assert dropped == ()


def test_an_unknown_effort_is_noted() -> None:
    body, dropped = written(foreign(settings=RequestSettings(thinking=ReasoningSettings(True, "extreme"))))
    assert body["thinking"] == {"type": "adaptive"}
    assert "output_config" not in body
    assert len(dropped) == 1


@pytest.mark.parametrize(
    ("thinking", "limit", "wanted", "max_tokens"),
    [
        (ReasoningSettings(True, "low"), 10000, {"type": "enabled", "budget_tokens": 2048}, 10000),
        (ReasoningSettings(True, "high"), 10000, {"type": "enabled", "budget_tokens": 10000 - 1024}, 10000),
        (ReasoningSettings(True, "high"), None, {"type": "enabled", "budget_tokens": 16384}, 8192 + 16384),
        (ReasoningSettings(True, budget=3000), 10000, {"type": "enabled", "budget_tokens": 3000}, 10000),
        (ReasoningSettings(True, budget=10), 10000, {"type": "enabled", "budget_tokens": 1024}, 10000),
    ],
)
def test_older_models_think_by_a_budget_within_the_limit(
    thinking: ReasoningSettings, limit: int | None, wanted: dict[str, Any], max_tokens: int
) -> None:
    body, dropped = written(foreign(settings=RequestSettings(thinking=thinking, max_tokens=limit)), OLD)
    assert (body["thinking"], body["max_tokens"]) == (wanted, max_tokens)
    assert "output_config" not in body
    assert dropped == ()


@pytest.mark.parametrize(
    ("conversation", "fields", "limit"),
    [
        pytest.param((HI, assistant(call()), gave()), {}, 9999, id="field: C1"),
        pytest.param(
            (HI, assistant(Reasoning("Hm", ReasoningSignature("openai_chat", {})), call()), gave()),
            {},
            9999,
            id="foreign signature",
        ),
        pytest.param((HI,), {"tool_choice": ToolChoice("required")}, 9999, id="forced call"),
        pytest.param((HI,), {}, 2000, id="no room"),
    ],
)
def test_older_models_are_not_asked_to_think_where_that_is_refused(
    conversation: tuple[Message, ...], fields: dict[str, Any], limit: int
) -> None:
    """field: C1"""
    settings = RequestSettings(thinking=ReasoningSettings(True, "high"), max_tokens=limit, temperature=0.5)
    body, dropped = written(foreign(*conversation, tools=TOOLS, settings=settings, **fields), OLD)
    assert "thinking" not in body
    assert [note for note in dropped if note != REASONING_DROPPED] == [dropped[-1]]
    assert dropped[-1].startswith("thinking was turned off")
    assert body["temperature"] == 0.5


@pytest.mark.parametrize(
    "conversation",
    [
        (HI, assistant(Reasoning("Hm", SIGNATURE), call()), gave()),
        (HI, assistant(Reasoning("Hm", SIGNATURE), call()), gave(), assistant(call(ID2)), gave(ID2)),
        (HI, assistant(call()), gave(), assistant(Text("Done.")), HI),
        (HI, assistant(Text("Yes.")), HI),
    ],
)
def test_older_models_think_where_the_thinking_came_back_or_is_not_needed(conversation: tuple[Message, ...]) -> None:
    """field: C1"""
    settings = RequestSettings(thinking=ReasoningSettings(True, "low"), max_tokens=9999)
    body, dropped = written(foreign(*conversation, tools=TOOLS, settings=settings), OLD)
    assert body["thinking"] == THINKING
    assert dropped == ()


def test_newer_models_think_even_when_earlier_thinking_is_lost_or_a_call_is_forced() -> None:
    settings = RequestSettings(thinking=ReasoningSettings(True, "low"))
    request = foreign(HI, assistant(call()), gave(), tools=TOOLS, settings=settings, tool_choice=ToolChoice("required"))
    assert written(request)[0]["thinking"] == {"type": "adaptive"}


def test_a_client_of_this_dialect_whose_thinking_is_lost_is_not_refused() -> None:
    """field: C1"""
    history = (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": ID1, "name": "a", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ID1}]},
    )
    body, dropped = written(decode_request(*history, thinking=THINKING))
    assert "thinking" not in body
    assert len(dropped) == 1
    body, dropped = written(decode_request(*history, thinking={"type": "adaptive"}))
    assert body["thinking"] == {"type": "adaptive"}
    assert dropped == ()


@pytest.mark.parametrize(("style", "noted"), [("budget", 0), ("always", 1)])
def test_thinking_is_not_disabled_for_a_model_that_always_thinks(
    style: Literal["budget", "always"], noted: int
) -> None:
    body, dropped = written(
        foreign(settings=RequestSettings(thinking=ReasoningSettings(False))), Quirks(thinking=style)
    )
    assert "thinking" not in body
    assert len(dropped) == noted


@pytest.mark.parametrize(
    ("settings", "kept", "notes"),
    [
        (RequestSettings(temperature=0.5, top_p=0.9), {"temperature": 0.5}, 1),
        (RequestSettings(temperature=0.1, top_p=1), {"temperature": 0.1}, 0),
        (RequestSettings(temperature=1.7), {"temperature": 1}, 1),
        (RequestSettings(top_p=0.9, top_k=5), {"top_p": 0.9, "top_k": 5}, 0),
        (RequestSettings(temperature=0.5, top_k=5, top_p=0.5, thinking=ReasoningSettings()), {}, 3),
        (RequestSettings(top_k=1, thinking=ReasoningSettings()), {}, 1),
        (
            RequestSettings(temperature=1, top_p=0.97, thinking=ReasoningSettings()),
            {"temperature": 1, "top_p": 0.97},
            0,
        ),
    ],
)
def test_sampling_that_anthropic_refuses_is_left_out_with_a_note(
    settings: RequestSettings, kept: dict[str, Any], notes: int
) -> None:
    body, dropped = written(foreign(settings=settings))
    assert {name: body[name] for name in ("temperature", "top_p", "top_k") if name in body} == kept
    assert len(dropped) == notes


def test_what_anthropic_has_no_word_for_is_noted() -> None:
    """spec: C8"""
    settings = RequestSettings(
        seed=1, frequency_penalty=0.5, presence_penalty=0.5, choices=2, stop=("\n\n", "END"), user="u"
    )
    body, dropped = written(foreign(settings=settings))
    assert body["stop_sequences"] == ["END"]
    assert body["metadata"] == {"user_id": "u"}
    assert len(dropped) == 5


@pytest.mark.parametrize(
    ("output", "quirks", "written_format", "notes"),
    [
        (StructuredOutputFormat(SCHEMA), Quirks(), {"type": "json_schema", "schema": SCHEMA}, 0),
        (
            StructuredOutputFormat(SCHEMA, description="d"),
            Quirks(),
            {"type": "json_schema", "schema": {"description": "d", **SCHEMA}},
            0,
        ),
        (StructuredOutputFormat(SCHEMA), Quirks(output_format="json"), None, 1),
        (StructuredOutputFormat(), Quirks(), None, 1),
    ],
)
def test_an_output_format(
    output: StructuredOutputFormat, quirks: Quirks, written_format: dict[str, Any] | None, notes: int
) -> None:
    body, dropped = written(foreign(settings=RequestSettings(output=output)), quirks)
    assert body.get("output_config", {}).get("format") == written_format
    assert len(dropped) == notes


def test_fields_that_an_upstream_does_not_know_are_left_out_with_a_note() -> None:
    body, dropped = written(
        foreign(settings=RequestSettings(temperature=1)), Quirks(unsupported=("temperature", "top_k"))
    )
    assert "temperature" not in body
    assert dropped == ("temperature is not supported by the upstream",)


def test_fields_of_other_dialects_are_not_sent() -> None:
    """Law 7."""
    extra = {"openai_chat": {"logit_bias": {"1": 2}}}
    request = foreign(Message("user", (Text("hi", extra),), extra), tools=(ToolDef("a", extra=extra),), extra=extra)
    assert "logit_bias" not in str(written(request))


BlockParam = (
    TextBlockParam
    | ImageBlockParam
    | DocumentBlockParam
    | ThinkingBlockParam
    | ToolUseBlockParam
    | ToolResultBlockParam
)


def known(kind: Any, value: object) -> None:
    """The official type accepts the value and knows all of its fields; lists in it are looked at one by one."""
    TypeAdapter(list[kind], config=ConfigDict(extra="forbid")).validate_python([value])


def test_the_sdk_knows_every_field_of_a_rich_request() -> None:
    conversation = (
        Message("system", (Text("One."),)),
        Message("user", (Text("hi"), Media("image", "image/png", PNG), Media("file", "application/pdf", PNG))),
        assistant(Reasoning("Hm", SIGNATURE), Text("Wait."), call(), call(ID2, "b")),
        gave(),
        gave(ID2, Media("image", "image/png", PNG), is_error=False),
    )
    settings = RequestSettings(
        max_tokens=9,
        stop=("x",),
        output=StructuredOutputFormat(SCHEMA),
        thinking=ReasoningSettings(True, "low"),
        user="u",
    )
    body, _ = written(foreign(*conversation, tools=TOOLS, tool_choice=ToolChoice("auto", (), False), settings=settings))
    known(MessageCreateParamsNonStreaming, body)
    for message in body["messages"]:
        known(MessageParam, message)
        for block in message["content"]:
            known(BlockParam, block)
            for piece in block.get("content", ()) if type(block.get("content")) is list else ():
                known(BlockParam, piece)
    for tool in body["tools"]:
        known(ToolParam, tool)
