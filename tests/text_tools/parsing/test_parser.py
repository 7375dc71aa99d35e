"""What the parser does that no field case names: answers, reasoning, repairs, and where values end."""

import pytest

from tests.text_tools.parsed import TOOLS, parts, summary, tool
from tests.text_tools.test_field_cases import PARIS, both
from toolgate.conversation.events import PartDelta
from toolgate.conversation.message import ToolCall
from toolgate.text_tools.parsing.parser import TextParser
from toolgate.text_tools.syntaxes import syntax


def test_a_final_answer_is_text_and_no_tool() -> None:
    """spec: T5"""
    assert both('<invoke name="final_answer"><parameter name="answer">It is 21 °C.</parameter></invoke>') == [
        "It is 21 °C."
    ]
    assert both("<final_answer>\nIt is 21 °C.\n</final_answer>") == ["It is 21 °C."]
    assert both('<tool_call>{"name": "final_answer", "arguments": {"answer": "Yes."}}</tool_call>', "hermes") == [
        "Yes."
    ]


def test_a_final_answer_streams() -> None:
    """spec: T5"""
    parser = TextParser(syntax("invoke"), TOOLS)
    parser.feed('<invoke name="final_answer"><parameter name="answer">')
    assert PartDelta("It is") in parser.feed("It is")


def test_an_answer_and_calls_beside_it_both_reach_the_client() -> None:
    """spec: T5"""
    text = f"<final_answer>Look:</final_answer>\n{PARIS}"
    assert both(text) == ["Look:", ("get_weather", {"city": "Paris"})]


def test_a_tool_that_is_called_final_answer_is_a_tool() -> None:
    """spec: T5"""
    tools = [tool("final_answer", answer="string")]
    text = '<invoke name="final_answer"><parameter name="answer">x</parameter></invoke>'
    assert both(text, tools=tools) == [("final_answer", {"answer": "x"})]


def test_reasoning_is_known_by_its_mark_at_the_beginning_alone() -> None:
    assert both("<think>\nHm.\n</think>\n\nYes.") == [("reasoning", "Hm."), "Yes."]
    assert both("Write <think> first.") == ["Write <think> first."]
    assert both("[THINK]Hm.[/THINK]Yes.") == [("reasoning", "Hm."), "Yes."]
    assert both("<think></think>Yes.") == ["Yes."]


def test_a_text_may_begin_inside_reasoning() -> None:
    assert both("Hm.\n</think>\nYes.", thinking=True) == [("reasoning", "Hm."), "Yes."]


def test_a_value_with_a_reasoning_mark_is_a_value() -> None:
    text = '<invoke name="get_weather"><parameter name="city"><think>x</think></parameter></invoke>'
    assert both(text) == [("get_weather", {"city": "<think>x</think>"})]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("a\nb", "a\nb"),
        ("\na\nb\n", "a\nb"),
        ("  a\n", "  a\n"),
        ("\n    indented\n", "    indented"),
        ("\n", ""),
        ("", ""),
    ],
)
def test_one_framing_line_break_is_layout(value: str, read: str) -> None:
    text = f'<invoke name="get_weather"><parameter name="city">{value}</parameter></invoke>'
    assert both(text) == [("get_weather", {"city": read})]


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ('{"city": "Paris",}', {"city": "Paris"}),
        ("{'city': 'it\\'s'}", {"city": "it's"}),
        ('{city: "Paris", metric: True}', {"city": "Paris", "metric": True}),
        ('{"city": "a\nb\\d"}', {"city": "a\nb\\d"}),
        ('{"city": "\\u00e9\\ud83d\\ude00"}', {"city": "é😀"}),
        ('"{\\"city\\": \\"Paris\\"}"', {"city": "Paris"}),
        ("null", {}),
        ("{}", {}),
    ],
)
def test_json_that_can_mean_only_one_thing_is_repaired(body: str, read: object) -> None:
    """spec: T6"""
    assert both(f'<tool_call>{{"name": "get_weather", "arguments": {body}}}</tool_call>', "hermes") == [
        ("get_weather", read)
    ]


@pytest.mark.parametrize(
    "body",
    [
        '{"arguments": {"city": "Paris"}, "name": "get_weather"}',
        '{"tool_name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"name": "functions.get_weather", "args": {"city": "Paris"}}',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}',
        '{"id": "x", "name": "get_weather", "input": {"city": "Paris"}, "more": [1, {"a": 2}]}',
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    ],
)
def test_the_keys_of_a_call_go_by_many_names(body: str) -> None:
    assert both(f"<tool_call>{body}</tool_call>", "hermes") == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize(
    "call",
    [
        "<invoke name='get_weather'><parameter name='city'>Paris</parameter></invoke>",
        "<invoke name=get_weather><parameter name=city>Paris</parameter></invoke>",
        '<invoke  name = "get_weather" >\n  <parameter  name = "city" >Paris</parameter>\n</invoke>',
        '<invoke name="get_weather">{"city": "Paris"}</invoke>',
        '<function_calls>\n<invoke name="get_weather"><parameter name="city">Paris</parameter></function_calls>',
        '<invoke name="get_weather"><parameter name="city">Paris</parameter></invoke>\n</function_calls>',
    ],
)
def test_invoke_is_read_however_it_is_quoted_and_laid_out(call: str) -> None:
    """spec: T3"""
    assert both(call) == [("get_weather", {"city": "Paris"})]


def test_a_parameter_may_close_itself() -> None:
    text = '<invoke name="get_weather"><parameter name="city"/><parameter name="days">2</parameter></invoke>'
    assert both(text) == [("get_weather", {"city": "", "days": 2})]


def test_positional_arguments_are_not_guessed_at() -> None:
    assert both('[get_weather("Paris")]', "pythonic") == ['[get_weather("Paris")]']


def test_a_parameter_that_is_given_twice_is_reported() -> None:
    parser = TextParser(syntax("invoke"), TOOLS)
    parser.feed(PARIS.replace("</invoke>", '<parameter name="city">Rome</parameter></invoke>'))
    parser.end()
    assert [problem.reason for problem in parser.problems] == ["the parameter 'city' is given twice"]


def test_an_unknown_syntax_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no syntax is called 'xml'; there are .*hermes.*invoke"):
        syntax("xml")


def test_a_stray_tick_hides_no_call() -> None:
    assert summary(f"it`s here:\n{PARIS}") == ["it`s here:\n", ("get_weather", {"city": "Paris"})]


def test_text_is_emitted_as_it_comes() -> None:
    parser = TextParser(syntax("auto"), TOOLS)
    told_so_far = ""
    for char in "Plain words, 1 < 2, [x], {y} and `z`.":
        told_so_far += "".join([event.text for event in parser.feed(char) if isinstance(event, PartDelta)])
    assert told_so_far == "Plain words, 1 < 2, [x], {y} and `z`."


def test_ticks_inside_a_fence_do_not_end_it() -> None:
    text = f"```\nSome `code` and ```` more\n{PARIS}\n```\n"
    assert both(text) == [text]


def test_a_whole_call_may_stand_in_a_value() -> None:
    example = f"Write {PARIS} to ask."
    text = f'<invoke name="get_weather"><parameter name="city">{example}</parameter></invoke>'
    assert both(text) == [("get_weather", {"city": example})]


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_types_of_alternatives_are_allowed(word: str) -> None:
    tools = [tool("f", x={word: [{"type": "integer"}, {"type": "null"}]})]
    for text, value in {"5.0": 5, "None": None, "x": "x"}.items():
        call = f'<invoke name="f"><parameter name="x">{text}</parameter></invoke>'
        assert both(call, tools=tools) == [("f", {"x": value})]


def test_a_reference_to_itself_ends() -> None:
    loop = {"anyOf": [{"$ref": "#/properties/x"}] * 50 + [{"type": "integer"}]}
    call = '<invoke name="f"><parameter name="x">7</parameter></invoke>'
    assert both(call, tools=[tool("f", x=loop)]) == [("f", {"x": 7})]


def test_a_mark_inside_a_longer_one_does_not_count() -> None:
    call = '<atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
    assert both(f"Well.<|eom|><|start|>assistant to=now<|message|>{call}", "auto") == ["Well.", ("now", {})]


@pytest.mark.parametrize("depth", [50, 5_000])
def test_deep_nesting_is_read_or_reported_and_never_fatal(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    parser = TextParser(syntax("hermes"), TOOLS)
    parser.feed(f'<tool_call>{{"name": "get_weather", "arguments": {{"tags": {deep}}}}}</tool_call>')
    assert parser.called
    assert bool(parser.problems) is (depth > 400)
    tags = "".join(["]<]minimax[>[<item>"] * depth)
    assert summary(
        f']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<tags>{tags}', "auto", cut=True
    )
    assert both('{"name": ' * 50, "auto") == ['{"name": ' * 50]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('<invoke name="get_weather"><parameter name="city">Paris</invoke>', "invoke"),
        ('<invoke name="get_weather">\n<parameter name="city">\nParis\n</invoke>\n', "invoke"),
        (
            '<function_calls><invoke name="get_weather"><parameter name="city">Paris</invoke></function_calls>',
            "anthropic_xml",
        ),
        ("<tool_call><function=get_weather><parameter=city>Paris</function></tool_call>", "qwen3_coder"),
    ],
)
def test_the_end_of_a_call_ends_a_value_whose_own_end_is_missing(text: str, form: str) -> None:
    assert summary(text, form) == summary(list(text), form) == [("get_weather", {"city": "Paris"})]
    assert all(short[2:] == ("cut",) for short in summary(text, form, cut=True))


def test_brackets_end_a_value_whose_closing_mark_is_missing() -> None:
    text = '<invoke name="get_weather"><parameter name="tags">["a"]</invoke>'
    assert summary(text) == summary(list(text)) == [("get_weather", {"tags": ["a"]})]


@pytest.mark.parametrize("value", ["Par", "Paris\n", "3"])
def test_a_value_without_any_end_is_not_whole(value: str) -> None:
    for key in ("city", "days", "tags"):
        text = f'<invoke name="get_weather"><parameter name="{key}">{value}'
        (call,) = parts(text)
        assert isinstance(call, ToolCall)
        assert not call.complete
        assert not call.arguments.endswith("}")


@pytest.mark.parametrize(
    ("word", "read"),
    [("NaN", "NaN"), ("Infinity", "Infinity"), ("-Infinity", "-Infinity"), ("nan", "NaN"), ("-inf", "-Infinity")],
)
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", '<tool_call>{"name": "now", "arguments": {"x": %s, "y": [1, %s]}}</tool_call>'),
        ("pythonic", "[now(x=%s, y=[1, %s])]"),
    ],
)
def test_numbers_that_json_does_not_have_become_strings(form: str, text: str, word: str, read: str) -> None:
    assert summary(text.replace("%s", word), form) == [("now", {"x": read, "y": [1, read]})]


@pytest.mark.parametrize("form", ["mistral_args", "mistral_callid"])
def test_an_arguments_mark_with_nothing_behind_it_is_an_empty_object(form: str) -> None:
    assert summary("[TOOL_CALLS]now[ARGS]", form) == [("now", {})]
    assert summary("[TOOL_CALLS]now[ARGS]", form, cut=True) == [("now", "", "cut")]
