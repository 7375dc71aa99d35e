"""Read and write the calls of GLM-4.5 and later, Laguna and HY 3: a name, then pairs of `<arg_key>` and `<arg_value>`.

The marks around the calls are read by `tool_call_tag.py` and `tool_calls_tag.py`.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls, tagged
from toolgate.text_tools.parsing.call_rendering import Tools, argument_values, bare_text, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import types_of

_NAME = re.compile(r"[^<>{}\s]*")
_TEXT = re.compile(r"[^<>]*")


# <tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>
# The open release of HY 3 has a suffix in every tag: <tool_call:opensource>, <arg_key:opensource>.
@lru_cache(8)
def _tags(suffix: str) -> tagged.TagFormat:
    opening, middle, end = f"<arg_key{suffix}>", f"</arg_key{suffix}>", f"</tool_call{suffix}>"
    value, close = f"<arg_value{suffix}>", f"</arg_value{suffix}>"

    def key(state: ParserState) -> Parse[tuple[str, bool | None] | None]:
        if not (yield from state.buffer.accept(opening)):
            return None
        name = yield from state.buffer.read_chars(_TEXT)
        if not (yield from state.buffer.accept(middle)):
            return None
        yield from state.buffer.read_blanks()
        return (name, None) if (yield from state.buffer.accept(value)) else None

    return tagged.TagFormat(key, close, value, (end,), (opening, end))


def read_call(state: ParserState, suffix: str = "") -> Parse[bool]:
    """Read one call behind `<tool_call>`; return False if it is none."""
    buffer, tags = state.buffer, _tags(suffix)
    name = yield from buffer.read_chars(_NAME)
    if not name or state.resolve_name(name) is None:
        return False
    yield from buffer.accept(f"<tool_sep{suffix}>")
    yield from buffer.read_blanks()
    if (yield from buffer.starts_with("{")):  # Laguna also writes the arguments as JSON
        return (yield from json_calls.read_arguments(state, name, None, *tags.ends))
    if not buffer.ended and not (yield from buffer.starts_with(*tags.follows)):
        return False
    parsed = state.begin_call(name)
    if parsed is None:
        return False
    yield from tagged.read_parameters(state, parsed, name, tags)
    return True


def render_call(call: ToolCall, tools: Tools, gap: str, sep: str = "") -> str:
    """Render one call; `gap` stands between its marks, `sep` behind its name."""
    name = free_of(call.name, "<", ">", "{", "\n", " ")
    parts = [f"<tool_call>{name}{sep}{gap}"]
    types = types_of(tools.get(call.name))
    for key, value in argument_values(call).items():
        text = free_of(bare_text(value, key, types), "<arg_value>", "</arg_value>")
        parts.append(f"<arg_key>{free_of(key, '<', '>')}</arg_key>{gap}<arg_value>{text}</arg_value>{gap}")
    return "".join([*parts, "</tool_call>"])


def render_glm45(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Render the calls in lines."""
    return "\n".join([render_call(call, tools, "\n") for call in calls])


def render_glm47(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Render the calls without line breaks."""
    return "".join([render_call(call, tools, "") for call in calls])


def render_hy3(calls: Sequence[ToolCall], tools: Tools) -> str:
    """Render the calls in lines and in a wrapper."""
    inner = "".join([render_call(call, tools, "\n", "<tool_sep>") + "\n" for call in calls])
    return f"<tool_calls>\n{inner}</tool_calls>"
