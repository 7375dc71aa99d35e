"""Read and write `Action:` at the start of a line: ReAct names a tool behind it, Command-R writes an array in a fence."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, argument_values, free_of, json_text
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# ReAct:     Action: f\nAction Input: {"city": "Paris"}\n
# Command-R: Action: ```json\n[{"tool_name": "f", "parameters": {"city": "Paris"}}]```
_MARK, _INPUT = "Action:", "Action Input:"
_NAME = re.compile(r"[^\n\r]*")


def read(state: ParserState, _: str) -> Parse[None]:
    buffer = state.buffer
    yield from buffer.read_blanks()
    if (yield from buffer.starts_with("```")):
        yield from json_calls.read_calls(state)
        return
    name = (yield from buffer.read_chars(_NAME, 256)).strip().strip("`")
    if state.resolve_name(name) is None:
        return
    yield from buffer.read_blanks()
    if (yield from buffer.accept(_INPUT)) and (yield from buffer.is_followed_by(0, ("{", "```"))):
        yield from json_calls.read_arguments(state, name, None)


def render_react(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{_MARK} {free_of(call.name, chr(10))}\n{_INPUT} {argument_json(call)}\n" for call in calls])


def render_command_r(calls: Sequence[ToolCall], _: Tools) -> str:
    objects = [{"tool_name": call.name, "parameters": argument_values(call)} for call in calls]
    return f"{_MARK} ```json\n{json_text(objects, '    ')}```"


_MARKERS = fixed_markers(CallMarker(read, _MARK, at="line"))
SYNTAXES = (Syntax("react", _MARKERS, render_react), Syntax("command_r", _MARKERS, render_command_r))
