"""Strategies for tools, calls and texts of every awkward kind, for the laws of text syntaxes."""

import json
import os
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.syntax import UnrenderableValue
from toolgate.text_tools.syntaxes import syntaxes


def law(examples: int) -> settings:
    """So many examples, the same for everyone; TEXT_LAWS=20 looks at twenty times as many, and at others."""
    more = int(os.environ.get("TEXT_LAWS", "1"))
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    phases = [Phase.explicit, Phase.generate] + [Phase.shrink] * ("NO_SHRINK" not in os.environ)
    return settings(
        max_examples=examples * more,
        derandomize=more == 1,
        database=None,
        deadline=None,
        suppress_health_check=quiet,
        phases=phases,
    )


NAMES = ["get_weather", "now", "search-files", "mcp__files__read", "a.b.c", "wetter_übermorgen", "天気", "x1", "final"]
KEYS = ["city", "days", "_from", "max-results", "名前", "a.b", "content", "name", "arguments", "k9"]
AWKWARD = [
    "",
    " ",
    "\n",
    "\nindented\n  code\n",
    "trailing\n",
    "\r\n",
    "a\r",
    "02134",
    "1e5",
    "true",
    "null",
    "None",
    "nil",
    "[1, 2",
    '{"a": 1}',
    "</parameter>",
    "</invoke>",
    "</parameter>\n</invoke>",
    '<invoke name="x1"><parameter name="k9">1</parameter></invoke>',
    "</tool_call>",
    "<think>hm</think>",
    "<|im_end|>",
    "<![CDATA[x]]>",
    "]]>",
    "Tom &amp; Jerry",
    "a && b &lt; c",
    "x &lt; y",
    'if a < b and c > d: print("\'")',
    "```json\n{}\n```",
    "`",
    "\\d+\\_\\\\",
    "\x00\x07\x1f\x7f",
    "\u2028\u00a0\ufeff",
    "👩‍🚀 é 日本語",
    '"quoted"',
    "'single'",
    "a; b, c) d]",
    "print('''x''')",
    "functions.now:0",
    "x" * 12_000,
]

texts = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(10**30), 10**30) | st.integers(-5, 5)
numbers = integers | st.floats(allow_nan=False, allow_infinity=False)


def _schema_of(value: Any) -> dict[str, Any]:
    """A schema that allows this value and says so."""
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array", "items": {"anyOf": [_schema_of(item) for item in value]} if value else {}}
        case _:
            return {"type": "object", "properties": {key: _schema_of(item) for key, item in value.items()}}


@st.composite
def _schemas(draw: st.DrawFn, value: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """One of the many ways to say that such a value is allowed."""
    plain = _schema_of(value)
    match draw(st.integers(0, 7)):
        case 0:
            return {}
        case 1:
            return {"anyOf": [{"type": "null"}, plain]}
        case 2:
            return {"type": ["null", plain["type"]]} if plain["type"] not in ("array", "object") else plain
        case 3:
            definitions[f"D{len(definitions)}"] = plain
            return {"$ref": f"#/$defs/D{len(definitions) - 1}"}
        case 4 if not isinstance(value, (list, dict)):
            return {"enum": [value]}
        case _:
            return plain


_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def tools_and_calls(draw: st.DrawFn, most: int = 3) -> tuple[tuple[ToolDef, ...], list[ToolCall]]:
    """Tools, and calls of them whose arguments their schemas allow."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=most, unique=True))
    tools, calls = [], []
    for number, name in enumerate(names):
        arguments = draw(st.dictionaries(st.sampled_from(KEYS), _values, max_size=4))
        definitions: dict[str, Any] = {}
        properties = {key: draw(_schemas(value, definitions)) for key, value in arguments.items()}
        schema = {"type": "object", "properties": properties, "$defs": definitions}
        tools.append(ToolDef(name, None, schema))
        written = json.dumps(arguments, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 2])))
        calls.append(ToolCall(f"call_{number:024d}", name, written))
    return tuple(tools), calls


def render_everywhere(calls: list[ToolCall], tools: tuple[ToolDef, ...]) -> dict[str, str]:
    """The calls in every syntax that can say them."""
    by_name, texts = {tool.name: tool for tool in tools}, {}
    for name, syntax in syntaxes().items():
        with suppress(UnrenderableValue):
            texts[name] = syntax.render(calls, by_name)
    return texts


FRAGMENTS = [
    "<invoke name=",
    '"now">',
    "</invoke>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "now", "arguments": {',
    "}}",
    "<think>",
    "</think>",
    "`",
    "```\n",
    "```json\n",
    "\n",
    " ",
    "[now(",
    ")]",
    "[TOOL_CALLS]now[ARGS]{",
    "<|channel|>commentary to=functions.now <|message|>",
    "<|channel|>final<|message|>",
    "<|end|>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{",
    "<function=now>",
    "<parameter=x>",
    "</parameter>",
    '<parameter name="x">',
    "</function>",
    "<function_calls>",
    "now()",
    "<final_answer>",
    "</final_answer>",
    '<invoke name="now">',
    "Action: now\n",
    "Action Input: {",
    ">>>now\n{",
    "<|tool_call>call:now{x:",
    '<|"|>',
    "x:<escape>",
    "]<]minimax[>[<tool_call>",
    ']<]minimax[>[<invoke name="now">',
    "]<]minimax[>[<x>",
    "&lt;",
    "&am",
    "<![CDATA[",
    "]]>",
    '"x": [1, true, "a',
    "plain words",
    "é日本",
]
fragments = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join)
"""Text made of pieces of all syntaxes, mostly broken."""

mangling = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(["", *FRAGMENTS])), max_size=3)
"""Where to take some characters out of a text, how many, and what to put there."""


def mangle(text: str, how: list[tuple[float, int, str]]) -> str:
    """The text after all that was done to it."""
    for where, count, instead in how:
        at = int(len(text) * where)
        text = text[:at] + instead + text[at + count :]
    return text
