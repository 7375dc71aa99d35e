"""`<invoke name="f"><parameter name="k">v</parameter></invoke>`, alone or in a wrapper, under any namespace prefix.

This is what prompted models are asked to write, and what MiniMax-M2 and dots.llm2 write by themselves. A tag may close
itself, quotes may be single or missing, and a JSON object may stand in place of the parameters. Wrappers without a call of a
tool on offer are text. Where a value ends is told in `bodies/tagged.py`. Prompted models may escape as XML does; those two
never do, so their values are taken to the letter.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.bodies import json_calls, tagged
from toolgate.text.kinds import STRING, kinds, parameter
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Render, Syntax, Unsayable, always
from toolgate.text.syntaxes import anthropic_legacy, olmo3
from toolgate.text.writing import Spelt, Tools, bare, members, without

_WRAPPERS = ("function_calls", "tool_calls", "tool_call", "dots_function_call")
_PREFIX = r"(?:[A-Za-z][\w.-]{0,31}:)?"
_TAG = re.compile(rf"<({_PREFIX})(\w+)")
_LINE = "\n"
_ESCAPED = re.compile(r"[<&]")


@lru_cache(256)
def form(prefix: str, wrapper: str, escapes: bool = True, framed: bool = True) -> tagged.Form:
    """The marks of parameters under a prefix, in a wrapper if there is one."""
    opening, close, end = f"<{prefix}parameter", f"</{prefix}parameter>", f"</{prefix}invoke>"
    stops = (f"<{prefix}invoke", f"</{wrapper}>") if wrapper else (f"<{prefix}invoke",)

    def key(reading: Reading) -> Steps[tuple[str, bool | None] | None]:
        if not (yield from reading.source.word(opening)):
            return None
        attributes = yield from tagged.header(reading)
        if attributes is None or "name" not in attributes:
            return None
        if "/" in attributes:
            reading.source.push_back(close)  # a tag that closes itself is one that is closed at once
        said = attributes.get("string")
        return attributes["name"], None if said is None else said == "true"

    follows = (opening, end, *stops)
    return tagged.Form(key, close, f"{opening} ", (end,), follows, stops, framed=framed, escapes=escapes)


def read(reading: Reading, opened: str) -> Steps[None]:
    """Reads a wrapper and all calls in it, or one call that stands alone."""
    found = _TAG.match(opened)
    if found is None:
        return
    prefix, tag = found[1], found[2]
    if tag == "invoke":
        yield from call(reading, prefix, "")
        # A wrapper's closing tag without its opening one: the model dropped it.
        if not reading.source.held:
            yield from reading.close(*[f"</{prefix}{wrapper}>" for wrapper in _WRAPPERS])
        return
    if not (yield from reading.source.word(">")):
        return
    yield from calls(reading, prefix, f"{prefix}{tag}", escapes=tag == "function_calls")


def calls(reading: Reading, prefix: str, wrapper: str, escapes: bool = True, framed: bool = True) -> Steps[None]:
    """Reads the calls in a wrapper and its closing tag."""
    yield from reading.source.blanks()
    if not (yield from reading.source.sees("<")):
        yield from olmo3.lines(reading, wrapper)
        return
    # The prefix of the wrapper need not be that of the calls.
    for inner in (prefix, "") if prefix else ("",):
        if (yield from reading.source.sees(f"<{inner}invoke")):
            yield from _calls(reading, wrapper, form(inner, wrapper, escapes, framed), inner)
            return


def _calls(reading: Reading, wrapper: str, marks: tagged.Form, prefix: str) -> Steps[None]:
    while (yield from reading.source.word(f"<{prefix}invoke")):
        if (yield from reading.source.word(">")):
            done = yield from anthropic_legacy.call(reading)
        else:
            done = yield from _call(reading, marks)
        if not done:
            return
        yield from reading.source.blanks()
    yield from reading.close(f"</{wrapper}>")


def call(reading: Reading, prefix: str, wrapper: str, escapes: bool = True, framed: bool = True) -> Steps[bool]:
    """Reads one call behind `<invoke`; False if it is none."""
    return (yield from _call(reading, form(prefix, wrapper, escapes, framed)))


def _call(reading: Reading, marks: tagged.Form) -> Steps[bool]:
    attributes = yield from tagged.header(reading)
    name = attributes.get("name") if attributes else None
    begun = reading.begin(name) if name else None
    if not attributes or not name or begun is None:
        return False
    if "/" in attributes:
        begun.end_members()
        begun.end()
        return True
    yield from reading.source.blanks()
    if (yield from reading.source.peek()) != "{":
        yield from tagged.parameters(reading, begun, name, marks)
        return True
    yield from json_calls.argument_object(reading, begun, name, *marks.ends)
    yield from reading.source.blanks()
    yield from reading.source.one_of(*marks.ends)
    begun.end()
    return True


def written(call: ToolCall, tools: Tools, prefix: str = "", escapes: bool = True, framed: bool = True) -> str:
    """One call."""
    tool = tools.get(call.name)
    lines = [f'<{prefix}invoke name="{_attribute(call.name, escapes)}">']
    for key, value in members(call).items():
        opening = f'<{prefix}parameter name="{_attribute(key, escapes)}">'
        text = _value(value, key, tool, prefix, escapes)
        lines.append(f"{opening}{_framed(text) if framed else text}</{prefix}parameter>")
    return _LINE.join([*lines, f"</{prefix}invoke>"])


def _value(value: object, key: str, tool: ToolDef | None, prefix: str, escapes: bool) -> str:
    marks = (f"<{prefix}parameter", f"</{prefix}parameter")
    if not escapes:
        return without(bare(value, key, tool), *marks)
    schema = tool.input_schema if tool else None
    takes_strings = STRING in kinds(parameter(schema, key), schema)
    try:
        text = bare(value, key, tool)
    except Unsayable:
        if not isinstance(value, str) or isinstance(value, Spelt) or not takes_strings:
            raise
        return f"<![CDATA[{value.replace(']]>', ']]]]><![CDATA[>')}]]>"
    if not takes_strings and text[:1] in ("[", "{"):
        return text
    first = _ESCAPED.search(text)
    if first and (first[0] == "&" or "<![CDATA[" in text or any(mark in text for mark in marks)):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
    return text


def _framed(text: str) -> str:
    """The text with a line break on both sides, if it begins with one, which would otherwise be taken for layout."""
    return f"\n{text}\n" if text.startswith(("\n", "\r\n")) else text


def _attribute(text: str, escapes: bool) -> str:
    if not escapes:
        return without(text, *tagged.MARKUP)
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _wrapped(opening: str, closing: str, escapes: bool = True) -> Render:
    def render(calls: Sequence[ToolCall], tools: Tools) -> str:
        return f"{opening}{_LINE.join([written(call, tools, escapes=escapes) for call in calls])}{closing}"

    return render


OPENERS = always(
    Opener(
        read,
        pattern=rf"<{_PREFIX}(?:invoke(?=[\s])|(?:function_calls|dots_function_call)(?=>))|<minimax:tool_call(?=>)",
        partial=r"<[A-Za-z][\w.:-]*|<",
        firsts="<",
    )
)
SYNTAXES = (
    Syntax("invoke", OPENERS, _wrapped("", "")),
    Syntax("anthropic_xml", OPENERS, _wrapped("<function_calls>\n", "\n</function_calls>")),
    Syntax("minimax_m2", OPENERS, _wrapped("<minimax:tool_call>\n", "\n</minimax:tool_call>", False)),
    Syntax("anthropic_legacy", OPENERS, anthropic_legacy.render),
    Syntax("olmo3", OPENERS, olmo3.render),
    Syntax("dots", OPENERS, _wrapped("<dots_function_call>\n", "\n</dots_function_call>", False)),
)
