"""Read and write `<function=f>`: Qwen3-Coder and others put parameters in it, Functionary v3.1 and Llama a JSON object."""

import re
from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls, tagged
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, argument_values, bare_text, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import types_of
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# Qwen3-Coder: <tool_call>\n<function=f>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>
# Functionary: <function=f>{"city": "Paris"}</function>
FUNCTION_TAG = "<function="
_END = "</function>"
_NAME = re.compile(r"[^<>\n]*")
_PARAMETER = "<parameter="


def read_key(state: ParserState) -> Parse[tuple[str, bool | None] | None]:
    if not (yield from state.buffer.accept(_PARAMETER)):
        return None
    name = yield from state.buffer.read_chars(_NAME)
    return (name, None) if (yield from state.buffer.accept(">")) else None


def _tags(*stops: str) -> tagged.TagFormat:
    return tagged.TagFormat(
        read_key, "</parameter>", _PARAMETER, (_END,), (_PARAMETER, _END, *stops), stops, framed=True
    )


_TAGS_ALONE = _tags(FUNCTION_TAG)


def read_function(state: ParserState, closer: str = "") -> Parse[bool]:
    """Read one call behind `<function=`; return False if it is none."""
    name = (yield from state.buffer.read_chars(_NAME)).strip()
    if not (yield from state.buffer.accept(">")):
        return False
    parsed = state.begin_call(name)
    if parsed is None:
        return False
    yield from state.buffer.read_blanks()
    if (yield from state.buffer.peek()) != "{":
        yield from tagged.read_parameters(state, parsed, name, _tags(FUNCTION_TAG, closer) if closer else _TAGS_ALONE)
        return True
    yield from json_calls.read_argument_object(state, parsed, name, _END)
    yield from state.buffer.read_blanks()
    yield from state.buffer.accept(_END)
    parsed.end()
    return True


def read_functions(state: ParserState, closer: str) -> Parse[None]:
    """Read calls one after another and the mark that closes them."""
    while (yield from state.buffer.accept(FUNCTION_TAG)):
        if not (yield from read_function(state, closer)):
            return
        yield from state.buffer.read_blanks()
    yield from state.accept_closing(closer)


def read(state: ParserState, _: str) -> Parse[None]:
    if (yield from read_function(state)):
        yield from state.accept_closing("</tool_call>")  # the model may forget the opening mark


def render_functionary(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{FUNCTION_TAG}{free_of(call.name, '>', '<')}>{argument_json(call)}{_END}" for call in calls])


def render(opening: str, closing: str, qwen: bool, calls: Sequence[ToolCall], tools: Tools) -> str:
    """Render each call between the marks, in lines."""
    lines: list[str] = []
    for call in calls:
        lines += [opening, f"{FUNCTION_TAG}{free_of(call.name, '>', '<')}>"]
        types = types_of(tools.get(call.name))
        for key, value in argument_values(call).items():
            # As the templates of these models write values: Qwen's has JSON but for True and False, Seed's has Python.
            python = not qwen or isinstance(value, bool)
            text = free_of(bare_text(value, key, types, python=python), _PARAMETER, "</parameter>")
            framed = f"\n{text}\n" if qwen or text.startswith(("\n", "\r\n")) else text
            lines.append(f"{_PARAMETER}{free_of(key, '>', '<', chr(10))}>{framed}</parameter>")
        lines += [_END, closing]
    return "\n".join(lines)


MARKER = CallMarker(read, FUNCTION_TAG)
SYNTAXES = (Syntax("functionary_v31", fixed_markers(MARKER), render_functionary),)
render_qwen = partial(render, "<tool_call>", "</tool_call>", True)
render_seed = partial(render, "<seed:tool_call>", "</seed:tool_call>", False)
