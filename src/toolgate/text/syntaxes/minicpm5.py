"""MiniCPM5: `<function name="f"><param name="k">v</param></function>`, with CDATA around values that need it."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.bodies import tagged
from toolgate.text.kinds import STRING, kinds, parameter
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, bare, members, without

_NEEDS_CDATA = re.compile(r"[<&\n\r]")


def _key(reading: Reading) -> Steps[tuple[str, bool | None] | None]:
    if not (yield from reading.source.word("<param ")):
        return None
    attributes = yield from tagged.header(reading)
    return (attributes["name"], None) if attributes and "name" in attributes else None


_END = "</function>"
_FORM = tagged.Form(_key, "</param>", "<param ", (_END,), ("<param ", _END), escapes=True)


def _read(reading: Reading, _: str) -> Steps[None]:
    attributes = yield from tagged.header(reading)
    name = attributes.get("name") if attributes else None
    begun = reading.begin(name) if name else None
    if name and begun:
        yield from tagged.parameters(reading, begun, name, _FORM)


def _render(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "\n".join([_written(call, tools) for call in calls])


def _written(call: ToolCall, tools: Tools) -> str:
    tool = tools.get(call.name)
    given = [
        f'<param name="{without(key, *tagged.MARKUP)}">{_value(value, key, tool)}</param>'
        for key, value in members(call).items()
    ]
    return f'<function name="{without(call.name, *tagged.MARKUP)}">{"".join(given)}{_END}'


def _value(value: object, key: str, tool: ToolDef | None) -> str:
    text = bare(value, key, tool, python=True)
    schema = tool.input_schema if tool else None
    if not _NEEDS_CDATA.search(text) or (
        text[:1] in ("[", "{") and STRING not in kinds(parameter(schema, key), schema)
    ):
        return text
    if not isinstance(value, str):
        return without(text, "<", "&")
    return f"<![CDATA[{text.replace(']]>', ']]]]><![CDATA[>')}]]>"


SYNTAXES = (Syntax("minicpm5", always(Opener(_read, "<function ")), _render),)
