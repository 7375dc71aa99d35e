"""Read and write `<invoke name="f"><parameter name="k">v</parameter></invoke>`, alone or in a wrapper, with any prefix.

This is what prompted models are asked to write, and what MiniMax-M2 and dots.llm2 write by themselves. A tag may close
itself, quotes may be single or missing, and a JSON object may replace the parameters. A wrapper without a call of a declared
tool is text. `call_formats/tagged.py` finds where a value ends. Prompted models may escape as XML does; those two never do,
so their values are not decoded.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls, python_calls, tagged
from toolgate.text_tools.parsing.call_rendering import (
    NumberAsWritten,
    Tools,
    argument_values,
    bare_text,
    free_of,
    python_call,
)
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import STRING, ParameterTypes, types_of
from toolgate.text_tools.parsing.syntax import CallMarker, Render, Syntax, UnrenderableValue, fixed_markers
from toolgate.text_tools.syntaxes import anthropic_legacy

_WRAPPERS = ("function_calls", "tool_calls", "tool_call", "dots_function_call")
# Prompts and models use prefixes of their own, such as `antml:` and `minimax:`.
_PREFIX = r"(?:[A-Za-z][\w.-]{0,31}:)?"
_TAG = re.compile(rf"<({_PREFIX})(\w+)")
_LINE = "\n"
_ESCAPED = re.compile(r"[<&]")


@lru_cache(256)
def _tags(prefix: str, wrapper: str, escapes: bool, framed: bool) -> tagged.TagFormat:
    """Return the marks of parameters with a prefix, in a wrapper if there is one."""
    opening, close, end = f"<{prefix}parameter", f"</{prefix}parameter>", f"</{prefix}invoke>"
    stops = (f"<{prefix}invoke", f"</{wrapper}>") if wrapper else (f"<{prefix}invoke",)

    def key(state: ParserState) -> Parse[tuple[str, bool | None] | None]:
        if not (yield from state.buffer.accept(opening)):
            return None
        attributes = yield from tagged.read_tag_end(state)
        if attributes is None or "name" not in attributes:
            return None
        if "/" in attributes:  # `<parameter name="k"/>` is read as if its closing tag followed
            state.buffer.push_back(close)
        is_string = attributes.get("string")
        return attributes["name"], None if is_string is None else is_string == "true"

    follows = (opening, end, *stops)
    return tagged.TagFormat(key, close, f"{opening} ", (end,), follows, stops, framed=framed, escapes=escapes)


def read(state: ParserState, matched: str) -> Parse[None]:
    """Read a wrapper and all calls in it, or one call without a wrapper."""
    found = _TAG.match(matched)
    if found is None:
        return
    prefix, tag = found[1], found[2]
    if tag == "invoke":
        yield from read_call(state, prefix, "")
        # A wrapper's closing tag without its opening one: the model dropped it.
        if not state.buffer.held:
            yield from state.accept_closing(*[f"</{prefix}{wrapper}>" for wrapper in _WRAPPERS])
        return
    if not (yield from state.buffer.accept(">")):
        return
    yield from read_calls(state, prefix, f"{prefix}{tag}", escapes=tag == "function_calls")


def read_calls(state: ParserState, prefix: str, wrapper: str, escapes: bool = True, framed: bool = True) -> Parse[None]:
    """Read the calls in a wrapper and its closing tag."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    if not (yield from buffer.starts_with("<")):
        yield from python_calls.read_calls(state, f"</{wrapper}>")  # OLMo 3
        return
    if prefix and not (yield from buffer.starts_with(f"<{prefix}invoke")):
        prefix = ""  # the prefix of the wrapper need not be that of the calls
    if not (yield from buffer.starts_with(f"<{prefix}invoke")):
        return
    while (yield from buffer.accept(f"<{prefix}invoke")):
        if (yield from buffer.accept(">")):
            done = yield from anthropic_legacy.read_call(state)
        else:
            done = yield from read_call(state, prefix, wrapper, escapes, framed)
        if not done:
            return
        yield from buffer.read_blanks()
    yield from state.accept_closing(f"</{wrapper}>")


def read_call(state: ParserState, prefix: str, wrapper: str, escapes: bool = True, framed: bool = True) -> Parse[bool]:
    """Read one call behind `<invoke`; return False if it is none."""
    attributes = yield from tagged.read_tag_end(state)
    name = attributes.get("name") if attributes else None
    parsed = state.begin_call(name) if name else None
    if not attributes or not name or parsed is None:
        return False
    if "/" in attributes:
        parsed.end_members()
        parsed.end()
        return True
    tags = _tags(prefix, wrapper, escapes, framed)
    yield from state.buffer.read_blanks()
    if (yield from state.buffer.peek()) != "{":
        yield from tagged.read_parameters(state, parsed, name, tags)
        return True
    yield from json_calls.read_argument_object(state, parsed, name, *tags.ends)
    yield from state.buffer.read_blanks()
    yield from state.buffer.accept_any(*tags.ends)
    parsed.end()
    return True


def render_call(call: ToolCall, tools: Tools, prefix: str = "", escapes: bool = True, framed: bool = True) -> str:
    """Render one call."""
    types = types_of(tools.get(call.name))
    lines = [f'<{prefix}invoke name="{_attribute(call.name, escapes)}">']
    for key, value in argument_values(call).items():
        opening = f'<{prefix}parameter name="{_attribute(key, escapes)}">'
        text = _value(value, key, types, prefix, escapes)
        if framed and text.startswith(("\n", "\r\n")):  # a line break that would be read as layout
            text = f"\n{text}\n"
        lines.append(f"{opening}{text}</{prefix}parameter>")
    return _LINE.join([*lines, f"</{prefix}invoke>"])


def _value(value: object, key: str, types: ParameterTypes, prefix: str, escapes: bool) -> str:
    marks = (f"<{prefix}parameter", f"</{prefix}parameter")
    if not escapes:
        return free_of(bare_text(value, key, types), *marks)
    takes_strings = STRING in types.of(key)
    try:
        text = bare_text(value, key, types)
    except UnrenderableValue:
        # A string such as "5" where numbers are allowed, too: CDATA shows that it is a string.
        if not isinstance(value, str) or isinstance(value, NumberAsWritten) or not takes_strings:
            raise
        return f"<![CDATA[{value.replace(']]>', ']]]]><![CDATA[>')}]]>"
    if not takes_strings and text[:1] in ("[", "{"):  # read as JSON up to its closing bracket, without decoding
        return text
    # Escaped only where it must be, but then everywhere: entities are decoded if the first `<` or `&` begins one.
    first = _ESCAPED.search(text)
    if first and (first[0] == "&" or "<![CDATA[" in text or any(mark in text for mark in marks)):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
    return text


def _attribute(text: str, escapes: bool) -> str:
    if not escapes:
        return free_of(text, *tagged.MARKUP)
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _renderer(opening: str, closing: str, escapes: bool = True) -> Render:
    def render(calls: Sequence[ToolCall], tools: Tools) -> str:
        return f"{opening}{_LINE.join([render_call(call, tools, escapes=escapes) for call in calls])}{closing}"

    return render


def render_olmo3(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<function_calls>{_LINE.join([python_call(call) for call in calls])}</function_calls>"


MARKERS = fixed_markers(
    CallMarker(
        read,
        pattern=rf"<{_PREFIX}(?:invoke(?=[\s])|(?:function_calls|dots_function_call)(?=>))|<minimax:tool_call(?=>)",
        partial=r"<[A-Za-z][\w.:-]*|<",
        firsts="<",
    )
)
SYNTAXES = (
    Syntax("invoke", MARKERS, _renderer("", "")),
    Syntax("anthropic_xml", MARKERS, _renderer("<function_calls>\n", "\n</function_calls>")),
    Syntax("minimax_m2", MARKERS, _renderer("<minimax:tool_call>\n", "\n</minimax:tool_call>", False)),
    Syntax("anthropic_legacy", MARKERS, anthropic_legacy.render),
    Syntax("olmo3", MARKERS, render_olmo3),
    Syntax("dots", MARKERS, _renderer("<dots_function_call>\n", "\n</dots_function_call>", False)),
)
