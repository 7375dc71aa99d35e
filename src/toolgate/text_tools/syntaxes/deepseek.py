"""Read and write the calls of DeepSeek V3, R1 and V3.1: marks in full-width bars, arguments in a fence but for V3.1."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# V3.1: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"k": "v"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
# V3:   … <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"k": "v"}\n```<｜tool▁call▁end｜> …
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_WORD = re.compile(r"[^<>{}\s`]*")


def read_call(state: ParserState) -> Parse[bool]:
    """Read one call behind the mark that begins it; return False if it is none."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    name = yield from buffer.read_chars(_WORD)
    if not (yield from buffer.accept(_SEP)):
        return False
    # In V3 the word `function` stands before the name; in V3.1 it could be the name of a tool, with arguments behind.
    if name == "function" and not (yield from buffer.starts_with("{")):
        name = yield from buffer.read_chars(_WORD)
    return (yield from json_calls.read_arguments(state, name, None, _CALL_END))


def render_v3(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [f"{_CALL}function{_SEP}{_name(call)}\n```json\n{argument_json(call)}\n```{_CALL_END}" for call in calls]
    return f"{_BEGIN}{chr(10).join(each)}{_END}"


def render_v31(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_BEGIN}{''.join([f'{_CALL}{_name(call)}{_SEP}{argument_json(call)}{_CALL_END}' for call in calls])}{_END}"


def _name(call: ToolCall) -> str:
    return free_of(call.name, "<", ">", "{", "`", " ", "\n")


read = json_calls.marked_calls(_BEGIN, _CALL, read_call, _END)
_MARKERS = fixed_markers(CallMarker(read, _BEGIN), CallMarker(read, _CALL))
SYNTAXES = (Syntax("deepseek_v3", _MARKERS, render_v3), Syntax("deepseek_v31", _MARKERS, render_v31))
