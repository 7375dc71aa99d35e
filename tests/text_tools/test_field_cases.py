"""Tool calls in the text of real models; each test names the field case that it covers."""

import json
from typing import Any

import pytest

from tests.text_tools.parsed import NOW, TOOLS, WEATHER, assert_well_formed, events, parts, summary, tool
from toolgate.conversation.call_ids import original_id
from toolgate.conversation.events import PartDelta, PartStart
from toolgate.conversation.message import Text, ToolCall
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.syntaxes import syntax, syntaxes

PARIS = '<invoke name="get_weather"><parameter name="city">Paris</parameter></invoke>'
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def both(text: str, name: str = "invoke", **options: Any) -> list[Any]:
    """Return the parts of a text, which must be the same whole and character by character."""
    whole = summary(text, name, **options)
    assert summary(list(text), name, **options) == whole
    return whole


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(f"call_{number:024d}", name, "{}") for number, name in enumerate(names)]


@pytest.mark.parametrize("name", list(syntaxes()))
def test_two_calls_in_one_delta_both_keep_their_arguments(name: str) -> None:
    """field: F2, F14"""
    written = [ToolCall("call_00000000000000000000000a", "get_weather", '{"city": "Paris"}')]
    written.append(ToolCall("call_00000000000000000000000b", "get_weather", '{"city": "Rome", "days": 2}'))
    text = syntax(name).render(written, {"get_weather": WEATHER})
    assert summary([text], name) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome", "days": 2})]


@pytest.mark.parametrize("name", list(syntaxes()))
def test_a_call_without_arguments_is_complete(name: str) -> None:
    """field: F20"""
    text = syntax(name).render(calls("now"), {"now": NOW})
    assert both(text, name) == [("now", {})]


@pytest.mark.parametrize("value", ["$HOME\n$1", "a\n\n$b", "</parameter", "</param", "<", "x</parameter>y", "{", "}"])
def test_values_with_breaks_dollars_and_half_marks_stay_whole(value: str) -> None:
    """field: F4"""
    text = f'<invoke name="get_weather"><parameter name="city">{value}</parameter></invoke>'
    assert both(text) == [("get_weather", {"city": value})]


def test_a_namespaced_call_is_no_content() -> None:
    """field: F5"""
    wrapped = f"<minimax:tool_call>\n{PARIS}\n</minimax:tool_call>"
    prefixed = f"<x:function_calls>{PARIS}</x:function_calls>".replace("<", "<x:").replace("<x:/", "</x:")
    prefixed = prefixed.replace("x:x:", "x:")
    for text in (wrapped, prefixed):
        assert both(text) == both(text, "auto") == [("get_weather", {"city": "Paris"})]


def test_a_call_in_reasoning_that_is_never_closed_is_a_call() -> None:
    """field: F6"""
    assert both(f"<think>I need the weather. {PARIS}") == [
        ("reasoning", "I need the weather."),
        ("get_weather", {"city": "Paris"}),
    ]


def test_a_call_ends_the_reasoning_of_a_model_that_never_closes_it_as_soon_as_it_begins() -> None:
    """field: F6"""
    parser = TextParser(syntax("invoke"), TOOLS, calls_end_thinking=True)
    found = parser.feed('<think>Hm. <invoke name="get_weather"><parameter name="city">Pa')
    assert [event.part.name for event in found if isinstance(event, PartStart) and isinstance(event.part, ToolCall)]
    assert parser.called


def test_a_call_drafted_in_reasoning_and_made_after_it_runs_once() -> None:
    """field: F7"""
    assert both(f"<think>I could write {PARIS} now.</think>\n\n{PARIS}") == [
        ("reasoning", f"I could write {PARIS} now."),
        ("get_weather", {"city": "Paris"}),
    ]


def test_brackets_in_reasoning_are_no_calls() -> None:
    """field: F7"""
    text = "<think>[1, 2] [now] {x} <tool_call> [[[</think>Done."
    assert both(text, "auto") == [("reasoning", "[1, 2] [now] {x} <tool_call> [[["), "Done."]


def test_reasoning_that_is_cut_off_is_emitted_once() -> None:
    """field: F9"""
    assert both("<think>I was just about to", cut=True) == [("reasoning", "I was just about to")]


@pytest.mark.parametrize(
    "held", ["<invoke", '<invoke name="get_w', "<tool_call>\n", '<tool_call>{"name": "ge', "<|tool_c"]
)
def test_text_held_back_at_the_end_is_text(held: str) -> None:
    """field: F10"""
    assert both(f"So: {held}", "auto", cut=True) == [f"So: {held}"]


def test_a_call_that_is_cut_off_is_shown_and_marked() -> None:
    """field: F10"""
    assert both(PARIS[:-21], cut=True) == [("get_weather", '{"city":"Paris', "cut")]
    assert both('<tool_call>{"name": "get_weather", "arguments": {"ci', "hermes", cut=True) == [
        ("get_weather", '{"ci', "cut")
    ]


def test_a_call_whose_arguments_are_whole_needs_no_closing_mark() -> None:
    """field: F10"""
    assert both(HERMES.removesuffix("\n</tool_call>"), "hermes", cut=True) == [("get_weather", {"city": "Paris"})]
    assert both(HERMES.removesuffix("call>"), "hermes", cut=True) == [("get_weather", {"city": "Paris"})]


def test_a_model_that_stopped_by_itself_may_forget_the_last_closing_mark() -> None:
    """field: F10"""
    assert both(PARIS.removesuffix("</invoke>")) == [("get_weather", {"city": "Paris"})]
    assert both(PARIS.removesuffix("</invoke>"), cut=True) == [("get_weather", '{"city":"Paris"', "cut")]


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("hermes", "</tool_call>"),
        ("deepseek_v31", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        ("kimi_k2", "<|tool_call_end|>"),
        ("mistral_args", "[TOOL_CALLS]now[ARGS]{}"),
        ("gpt_oss", "<|call|><|end|>"),
        ("pythonic", ")] now()"),
        ("invoke", "</parameter></invoke>"),
    ],
)
def test_end_marks_inside_a_json_string_do_not_end_the_call(name: str, marks: str) -> None:
    """field: F11"""
    call = ToolCall("call_00000000000000000000000a", "get_weather", json.dumps({"tags": [marks], "city": marks}))
    text = syntax(name).render([call], {"get_weather": WEATHER})
    assert both(text, name) == [("get_weather", {"tags": [marks], "city": marks})]


def test_entities_are_decoded_where_models_escape_and_left_where_they_never_do() -> None:
    """field: F11"""

    def value(text: str, name: str, mark: str = "{}") -> object:
        call = f'<invoke name="get_weather"><parameter name="city">{text}</parameter></invoke>'
        return both(mark.format(call), name)[0][1]["city"]

    assert value("1 &lt; 2 &amp;&amp; 3", "invoke") == "1 < 2 && 3"
    assert value("<p>Tom &amp; Jerry</p>", "invoke") == "<p>Tom &amp; Jerry</p>"
    assert value("a && b &lt; c", "invoke") == "a && b &lt; c"
    assert value("<![CDATA[a &lt; <b>]]>", "invoke") == "a &lt; <b>"
    assert value("1 &lt; 2", "minimax_m2", "<minimax:tool_call>{}</minimax:tool_call>") == "1 &lt; 2"


TYPES = tool(
    "f",
    s="string",
    i="integer",
    n="number",
    b="boolean",
    a="array",
    o="object",
    maybe={"anyOf": [{"type": "string"}, {"type": "null"}]},
    either={"type": ["integer", "string"]},
    ref={"$ref": "#/$defs/Count"},
    word={"enum": ["None", "auto"]},
    free={},
)
TYPES.input_schema["$defs"] = {"Count": {"type": "integer"}}  # type: ignore[index]  # the test's own dict


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("s", "02134", "02134"),
        ("s", "true", "true"),
        ("s", "null", "null"),
        ("s", "1e5", "1e5"),
        ("i", "123", 123),
        ("i", "5.0", 5),
        ("i", '"5"', 5),
        ("i", " 7\n", 7),
        ("i", "123456789012345678901234567890", 123456789012345678901234567890),
        ("i", "five", "five"),
        ("i", "5.5", "5.5"),
        ("n", "1.50", 1.5),
        ("n", "-2", -2),
        ("b", "True", True),
        ("b", "false", False),
        ("b", "yes", "yes"),
        ("a", '["a", 1]', ["a", 1]),
        ("a", "['a', True]", ["a", True]),
        ("a", "a, b", "a, b"),
        ("o", '{"k": [1]}', {"k": [1]}),
        ("o", "{'k': None}", {"k": None}),
        ("maybe", "null", None),
        ("maybe", "nullify", "nullify"),
        ("maybe", "None", "None"),
        ("either", "42", 42),
        ("either", "42a", "42a"),
        ("either", "", ""),
        ("ref", "9", 9),
        ("word", "None", "None"),
        ("free", "3", 3),
        ("free", "three", "three"),
        ("free", '{"a": [1, {"b": "</parameter>"}]}', {"a": [1, {"b": "</parameter>"}]}),
        ("free", "{oops", "{oops"),
        ("unknown", "x", "x"),
    ],
)
def test_types_come_from_the_schema(key: str, text: str, value: object) -> None:
    """field: F12"""
    for name, written in {
        "invoke": f'<invoke name="f"><parameter name="{key}">{text}</parameter></invoke>',
        "qwen3_coder": f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>",
        "glm45": f"<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
    }.items():
        assert both(written, name, tools=[TYPES]) == [("f", {key: value})], name


def test_the_ids_of_kimi_are_kept() -> None:
    """field: F15"""
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:7<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    (call,) = parts(text, "kimi_k2")
    assert isinstance(call, ToolCall)
    assert call.id == "functions.get_weather:7"
    assert syntax("kimi_k2").render([call], {}) == text


def test_kimi_gets_no_ids_of_other_models() -> None:
    """field: F15"""
    text = syntax("kimi_k2").render(calls("get_weather", "now"), {})
    assert "functions.get_weather:0<" in text
    assert "functions.now:1<" in text


@pytest.mark.parametrize("name", ["kimi_k3", "hermes", "invoke"])
def test_calls_without_ids_get_ones_of_their_own(name: str) -> None:
    """field: F16"""
    parser = TextParser(syntax(name), TOOLS)
    text = syntax(name).render(calls("now", "now"), {"now": NOW})
    found = [e.part for e in parser.feed(text) + parser.end() if isinstance(e, PartStart)]
    assert len({call.id for call in found if isinstance(call, ToolCall) and len(call.id) == 29}) == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>", "Hi."),
        ("<|channel|>commentary<|message|>First, I look.<|end|>", "First, I look."),
        ('<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>', None),
        ('<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}', None),
        ('<|channel|>commentary to=functions.get_weather<|message|>{"city": "Paris"}<|call|>', None),
        ('<|channel|>analysis to=functions.get_weather code<|message|>{"city": "Paris"}<|call|>', None),
        ("<|channel|>final to=functions.now<|message|>No call.<|return|>", "No call."),
    ],
)
def test_harmony_channels_become_reasoning_text_and_calls(text: str, wanted: str | None) -> None:
    """field: F17"""
    assert both(text, "gpt_oss", cut=True)[-1] == (wanted or ("get_weather", {"city": "Paris"}))
    assert both(text, "auto", cut=True)[-1] == (wanted or ("get_weather", {"city": "Paris"}))


def test_a_harmony_call_that_is_cut_off_is_marked() -> None:
    """field: F17"""
    text = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Par'
    assert both(text, "gpt_oss", cut=True) == [("get_weather", '{"city": "Par', "cut")]


@pytest.mark.parametrize(
    "text",
    [
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '[get_weather(city="Paris")]',
        "[get_weather(city='Paris')]",
        '<|python_tag|>get_weather(city="Paris")<|eom_id|>',
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
    ],
)
def test_llama_calls_with_and_without_a_mark(text: str) -> None:
    """field: F19"""
    assert both(text, "auto") == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize("name", ["invoke", "deepseek_v32", "qwen3_coder", "glm45", "kimi_k3", "hermes", "pythonic"])
def test_arguments_stream_while_they_are_written(name: str) -> None:
    """field: F21, F30"""
    story = "Once upon a time there was a word. " * 20
    call = ToolCall("call_00000000000000000000000a", "get_weather", json.dumps({"city": story}))
    text = syntax(name).render([call], {"get_weather": WEATHER})
    parser, told_so_far = TextParser(syntax(name), TOOLS), 0
    for read, char in enumerate(text[: text.index(story) + len(story)]):
        told_so_far += sum([len(event.text) for event in parser.feed(char) if isinstance(event, PartDelta)])
        assert read - told_so_far < 140, "more is held back than the marks before and a mark that may begin"


def test_a_call_starts_as_soon_as_its_name_is_known() -> None:
    """field: F21"""
    parser = TextParser(syntax("invoke"), TOOLS)
    assert parser.feed('<invoke name="now"') == []
    (start,) = parser.feed(">")
    assert isinstance(start, PartStart)
    assert isinstance(start.part, ToolCall)
    assert start.part.name == "now"


@pytest.mark.parametrize(
    "text", ["\x00", "<tool_call>{" * 50, '<invoke name="now">' * 50, "[" * 500, "{" * 500, "`" * 99]
)
@pytest.mark.parametrize("name", ["auto", "invoke", "hermes"])
def test_unreadable_text_never_fails_the_turn(text: str, name: str) -> None:
    """field: F22"""
    assert_well_formed(events(text, name))
    assert_well_formed(events(list(text), name))


def test_arguments_that_cannot_be_parsed_are_kept_and_reported() -> None:
    """field: F22"""
    parser = TextParser(syntax("hermes"), TOOLS)
    bad = '<tool_call>{"name": "get_weather", "arguments": {"city": Paris, the}}</tool_call>'
    found = [e.part for e in parser.feed(bad + HERMES) + parser.end() if isinstance(e, PartStart)]
    assert [call.name for call in found if isinstance(call, ToolCall)] == ["get_weather", "get_weather"]
    assert [(problem.name, problem.reason) for problem in parser.problems] == [
        ("get_weather", "the arguments are not valid JSON")
    ]
    (first, second) = parts(bad + HERMES, "hermes")
    assert isinstance(first, ToolCall)
    assert first.arguments.startswith('{"city": Paris, the}')
    assert isinstance(second, ToolCall)
    assert json.loads(second.arguments) == {"city": "Paris"}


def test_end_of_turn_tokens_quoted_in_reasoning_end_nothing() -> None:
    """field: F24"""
    text = "<think>The token `<|im_end|>` ends a turn.</think>Yes, <|im_end|> does."
    assert both(text) == [("reasoning", "The token `<|im_end|>` ends a turn."), "Yes, <|im_end|> does."]


def test_functions_with_bare_params_and_cdata() -> None:
    """field: F25"""
    text = '<function name="get_weather"><param name="city"><![CDATA[a\n<b> & "c"]]></param></function>'
    assert both(text, "minicpm5") == both(text, "auto") == [("get_weather", {"city": 'a\n<b> & "c"'})]


@pytest.mark.parametrize(
    "text",
    [
        '<function_calls><invoke name="rm"><parameter name="x">1</parameter></invoke></function_calls>',
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        "The <invoke> tag has a name; <tool_call> has none.",
        f"In a fence it is an example:\n```xml\n{PARIS}\n```\nSee?",
        f"Inline, too: `{PARIS}`.",
        '{"name": "rm", "parameters": {"x": 1}}',
        '{"name": "get_weather", "temperature": 21}',
        '[{"city": "Paris"}, {"city": "Rome"}]',
        "[now] and [get_weather](http://x.org/now()) are links.",
        "Action: none needed.\nI am done.",
        "functools.partial is a function.",
        "[TOOL_CALLS] is what Mistral writes.",
        ">>>quoted\n> twice",
        "to=somebody<|message|>hello",
    ],
)
def test_prose_and_undeclared_tools_stay_text(text: str) -> None:
    """field: F26"""
    for name in ("auto", "invoke", "hermes"):
        assert both(text, name) == [text]


def test_undeclared_tools_are_calls_with_any_tool() -> None:
    """field: F26"""
    assert both('<invoke name="rm"><parameter name="x">1</parameter></invoke>', any_tool=True) == [("rm", {"x": 1})]


def test_narration_stays_in_place() -> None:
    """field: F27"""
    text = f"First Paris.\n{PARIS}\n\nThen the time:\n{PARIS.replace('Paris', 'Rome')} That is all."
    assert both(text) == [
        "First Paris.\n",
        ("get_weather", {"city": "Paris"}),
        "\n\nThen the time:\n",
        ("get_weather", {"city": "Rome"}),
        " That is all.",
    ]


def test_blanks_alone_are_no_content_beside_calls() -> None:
    """field: A24"""
    assert both(f"\n\n{PARIS}\n\n{PARIS}\n") == [("get_weather", {"city": "Paris"})] * 2


def test_ids_that_a_model_gives_come_back_to_it() -> None:
    parser = TextParser(syntax("mistral_callid"), TOOLS)
    found = parser.feed("[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}")
    (start, *_) = [event.part for event in found if isinstance(event, PartStart)]
    assert isinstance(start, ToolCall)
    assert original_id(start.id) == "abc123def"


def test_names_numbers_and_sizes_beyond_the_usual() -> None:
    """field: F0"""
    odd = tool("файлы.читать-все", путь="string", сколько="integer")
    big, long = 10**400, "я" * 20_000
    call = ToolCall("call_00000000000000000000000a", odd.name, f'{{"путь": "{long}", "сколько": {big}}}')
    for name in ("invoke", "hermes", "kimi_k2", "qwen3_coder", "pythonic", "deepseek_v32"):
        (found,) = parts(syntax(name).render([call], {odd.name: odd}), name, [odd])
        assert isinstance(found, ToolCall)
        assert json.loads(found.arguments, parse_int=str) == {"путь": long, "сколько": str(big)}


def test_separators_inside_strings_separate_nothing() -> None:
    """field: F0"""
    value = '}; {"name": "now"}, ), ] </tool_call> <|call|> ;'
    call = ToolCall("call_00000000000000000000000a", "get_weather", json.dumps({"city": value}))
    for name in ("llama3_json", "xlam", "pythonic", "lfm2", "hermes", "phi4_mini", "mistral_array", "gpt_oss", "olmo3"):
        assert both(syntax(name).render([call], {}), name) == [("get_weather", {"city": value})], name


def test_an_empty_name_is_no_call() -> None:
    """field: F0"""
    for text in ('<invoke name=""></invoke>', '<tool_call>{"name": "", "arguments": {}}</tool_call>'):
        assert both(text, "auto", any_tool=True) == [text]


def test_a_message_of_blanks_is_kept() -> None:
    assert both(" \n ") == [" \n "]
    assert parts("") == []
    assert both("hello") == ["hello"]
    assert parts("hello") == [Text("hello")]
