"""A request is cut to what an upstream takes, and its answer cut back, so that the client hears only names it knows."""

import re

import pytest

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import PartDelta, PartEnd, PartStart, StepEvent
from toolgate.conversation.message import Message, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, RequestSettings, ToolChoice, ToolDef
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.tool_definition_rewrite import AdaptedRequest, ToolNameRestorer, adapt, short_name

LONG = "mcp__a_server_with_a_very_long_name__" + "and_a_tool_with_a_longer_one" * 2
ASK = Message("user", (Text("go"),))


def adapted(request: ModelRequest, dialect: str = "anthropic", quirks: Quirks | None = None) -> AdaptedRequest:
    return adapt(request, dialect, quirks or Quirks())


def answer(call: ToolCall) -> list[StepEvent]:
    return [PartStart(ToolCall(call.id, call.name, "")), PartDelta(call.arguments), PartEnd(call)]


def test_a_name_too_long_for_the_upstream_is_shortened_and_restored() -> None:
    """field: B22"""
    request = ModelRequest("m", (ASK,), (ToolDef(LONG), ToolDef("short")), ToolChoice("required", (LONG,)), dialect="c")
    taken = adapted(request)
    name = taken.request.tools[0].name
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
    assert taken.request.tool_choice == ToolChoice("required", (name,))
    assert taken.request.tools[1].name == "short"
    assert adapted(request).request == taken.request
    emitted = ToolNameRestorer(taken.originals).restore(answer(ToolCall("id", name, "{}")))
    assert [event.part.name for event in emitted if isinstance(event, (PartStart, PartEnd))] == [LONG, LONG]  # type: ignore[union-attr]


def test_calls_in_the_history_go_by_the_shortened_name_too() -> None:
    """field: B22"""
    history = (
        ASK,
        Message("assistant", (ToolCall("id", LONG, "{}"),)),
        Message("tool", (ToolResult("id", (Text("x"),), name=LONG),)),
    )
    taken = adapted(ModelRequest("m", history, (ToolDef(LONG),), dialect="c")).request
    names = {part.name for message in taken.messages[1:] for part in message.parts}  # type: ignore[union-attr]
    assert names == {taken.tools[0].name}


def test_two_long_names_with_one_beginning_stay_apart() -> None:
    assert short_name(LONG + "1", 64) != short_name(LONG + "2", 64)
    assert short_name("math.add", 64) != short_name("math add", 64)
    assert short_name("math-add_2", 64) == "math-add_2"


def test_a_freeform_tool_becomes_a_function_and_its_calls_plain_text_again() -> None:
    """field: B31"""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: PATCH"}
    tool = ToolDef("apply_patch", "Patches.", kind="freeform", format=grammar)
    past = Message("assistant", (ToolCall("id", "apply_patch", "*** Begin", freeform=True),))
    done = Message("tool", (ToolResult("id", (Text("ok"),)),))
    taken = adapted(ModelRequest("m", (ASK, past, done), (tool,), dialect="c"))
    function = taken.request.tools[0]
    assert function.kind == "function"
    assert function.input_schema is not None
    assert "start: PATCH" in function.input_schema["properties"]["input"]["description"]
    assert taken.request.messages[1].parts[0] == ToolCall("id", "apply_patch", '{"input":"*** Begin"}')
    emitted = ToolNameRestorer(taken.originals).restore(
        answer(ToolCall("id", "apply_patch", '{"input":"*** \\"End\\""}'))
    )
    whole = ToolCall("id", "apply_patch", '*** "End"', freeform=True)
    assert emitted == [
        PartStart(ToolCall("id", "apply_patch", "", freeform=True)),
        PartDelta('*** "End"'),
        PartEnd(whole),
    ]


def test_an_upstream_that_knows_freeform_tools_gets_them() -> None:
    tool = ToolDef("apply_patch", kind="freeform")
    taken = adapted(ModelRequest("m", (ASK,), (tool,), dialect="c"), "openai_responses", Quirks(freeform_tools=True))
    assert taken.request.tools == (tool,)


def test_tools_of_a_namespace_are_flattened_and_come_back_with_it() -> None:
    """field: B32"""
    tools = (ToolDef("read", namespace="files"), ToolDef("read", namespace="mail"))
    taken = adapted(ModelRequest("m", (ASK,), tools, dialect="openai_responses"), "openai_chat")
    assert [tool.name for tool in taken.request.tools] == ["files__read", "mail__read"]
    emitted = ToolNameRestorer(taken.originals).restore(answer(ToolCall("id", "mail__read", "{}")))
    assert isinstance(emitted[0], PartStart)
    assert emitted[0].part == ToolCall("id", "read", "", extra={"openai_responses": {"namespace": "mail"}})


def test_a_choice_among_several_tools_becomes_fewer_tools() -> None:
    """field: B21"""
    tools = tuple(ToolDef(name) for name in "abc")
    taken = adapted(ModelRequest("m", (ASK,), tools, ToolChoice("auto", ("a", "c"), True), dialect="c")).request
    assert [tool.name for tool in taken.tools] == ["a", "c"]
    assert taken.tool_choice == ToolChoice("auto", (), True)


def test_fields_that_only_the_clients_dialect_knows_are_named_also_when_tools_are_renamed() -> None:
    for tool in (ToolDef("short"), ToolDef(LONG)):
        request = ModelRequest("m", (ASK,), (tool,), dialect="openai_responses", extra={"openai_responses": {"odd": 1}})
        assert adapted(request).dropped == ("odd is known to openai_responses only",)


def test_a_client_of_the_upstreams_own_dialect_is_left_alone() -> None:
    request = ModelRequest("m", (ASK,), (ToolDef(LONG),), dialect="anthropic")
    assert adapted(request).request is request


def test_several_choices_are_refused_where_the_upstream_gives_one() -> None:
    request = ModelRequest("m", (ASK,), settings=RequestSettings(choices=2), dialect="openai_chat")
    with pytest.raises(InvalidRequest) as caught:
        adapted(request)
    assert caught.value.param == "n"
    assert adapted(request, "openai_chat").request is request
