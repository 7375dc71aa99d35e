"""Read and write Claude 2's prompt format: `<invoke><tool_name>f</tool_name><parameters><k>v</k></parameters></invoke>`.

`invoke.py` reads the wrapper's opening tag, which is its own, too.
"""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.call_rendering import Tools, argument_values, bare_text, free_of, tag_name
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import ParameterTypes, types_of

_TEXT = re.compile(r"[^<>]*")


def read_key(state: ParserState) -> Parse[tuple[str, bool | None] | None]:
    if not (yield from state.buffer.accept("<")):
        return None
    name = yield from state.buffer.read_chars(_TEXT)
    if not name or name.startswith("/") or not (yield from state.buffer.accept(">")):
        return None
    return name, None


def tags_by_name(*ends: str) -> tagged.TagFormat:
    """Return the format of parameters whose names are their tags."""
    return tagged.TagFormat(read_key, "</{}>", "<{}>", ends, ("<",), framed=True, dynamic=True)


_TAGS = tags_by_name("</parameters>")


def read_call(state: ParserState) -> Parse[bool]:
    """Read one call behind `<invoke>`; return False if it is none."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    if not (yield from buffer.accept("<tool_name>")):
        return False
    name = yield from buffer.read_chars(_TEXT)
    if not (yield from buffer.accept("</tool_name>")):
        return False
    parsed = state.begin_call(name.strip())
    if parsed is None:
        return False
    yield from buffer.read_blanks()
    if (yield from buffer.accept("<parameters>")):
        yield from tagged.read_parameters(state, parsed, name, _TAGS)
    else:
        if (yield from buffer.starts_with("</invoke>")):  # a call without arguments
            parsed.end_members()
        else:
            yield from state.copy_broken(parsed, name, tagged.MALFORMED, "</invoke>")
        parsed.end()
    yield from state.accept_closing("</invoke>")
    return True


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Render the calls in their wrapper."""
    lines = ["<function_calls>"]
    for call in calls:
        lines.append(f"<invoke>\n<tool_name>{free_of(call.name, '<')}</tool_name>\n<parameters>")
        types = types_of(tools.get(call.name))
        lines += [render_parameter(key, value, types) for key, value in argument_values(call).items()]
        lines.append("</parameters>\n</invoke>")
    return "\n".join([*lines, "</function_calls>"])


def render_parameter(key: str, value: object, types: ParameterTypes) -> str:
    """Render one parameter, whose name is its tag."""
    name = tag_name(key)
    text = free_of(bare_text(value, key, types), f"</{name}>", f"<{name}>")
    # A line break behind the opening tag is read as layout, so a text that begins with one gets another before it.
    return f"<{name}>{f'{chr(10)}{text}{chr(10)}' if text.startswith((chr(10), chr(13))) else text}</{name}>"
