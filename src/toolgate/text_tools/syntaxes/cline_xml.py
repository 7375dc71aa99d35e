"""Read and write the calls of Cline and Roo Code: the tool's name is a tag, and so is each parameter's.

It is not part of `auto`: a tool may be called `b` or `table`, and text may contain HTML.
"""

from collections.abc import Collection, Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.call_rendering import Tools, argument_values, tag_name
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import types_of
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax
from toolgate.text_tools.syntaxes.anthropic_legacy import render_parameter, tags_by_name


# <get_weather>\n<city>Paris</city>\n</get_weather>
def read(state: ParserState, matched: str) -> Parse[None]:
    parsed = state.begin_call(matched[1:-1])
    if parsed:
        yield from tagged.read_parameters(state, parsed, matched[1:-1], tags_by_name(f"</{matched[1:]}"))


def markers(names: Collection[str]) -> Sequence[CallMarker]:
    """Return one marker for each tool whose name can be a tag."""
    return [CallMarker(read, f"<{name}>") for name in names if not set(name) & set("<>/")]


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    lines: list[str] = []
    for call in calls:
        name, types = tag_name(call.name), types_of(tools.get(call.name))
        parameters = [render_parameter(key, value, types) for key, value in argument_values(call).items()]
        lines += [f"<{name}>", *parameters, f"</{name}>"]
    return "\n".join(lines)


SYNTAXES = (Syntax("cline_xml", markers, render, detected=False, by_name=True),)
