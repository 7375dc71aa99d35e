"""Cline and Roo Code: the tool's name is the tag, and so is each parameter's.

It is never detected by itself, for a tool may be called `b` or `table`, and text may hold HTML.
"""

from collections.abc import Collection, Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import tagged
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax
from toolgate.text.syntaxes.anthropic_legacy import by_tag, tag_line
from toolgate.text.writing import Tools, members, tag_name


def _read(reading: Reading, opened: str) -> Steps[None]:
    begun = reading.begin(opened[1:-1])
    if begun:
        yield from tagged.parameters(reading, begun, opened[1:-1], by_tag(f"</{opened[1:]}"))


def _openers(names: Collection[str]) -> Sequence[Opener]:
    return [Opener(_read, f"<{name}>") for name in names if not set(name) & set("<>/")]


def _render(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "\n".join([_written(call, tools) for call in calls])


def _written(call: ToolCall, tools: Tools) -> str:
    name = tag_name(call.name)
    lines = [tag_line(key, value, call, tools) for key, value in members(call).items()]
    return "\n".join([f"<{name}>", *lines, f"</{name}>"])


SYNTAXES = (Syntax("cline_xml", _openers, _render, detected=False, by_name=True),)
