"""Read and write calls without any mark: JSON or a Python list at the start of a line, perhaps in a fence.

Only what names a tool on offer and, in JSON, its arguments is a call; any other JSON is an answer.
"""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls, python_calls
from toolgate.text_tools.parsing.call_rendering import (
    Tools,
    argument_values,
    call_object,
    json_array,
    json_text,
    python_call,
)
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

_PYTHON_FENCES = ("```tool_code", "```python", "```py")


def read(state: ParserState, _: str) -> Parse[None]:
    # A bracket with an object behind it begins a JSON array, any other a Python list.
    if (yield from state.buffer.peek()) == "{" or (yield from state.buffer.is_followed_by(1, ("{",))):
        yield from json_calls.read_calls(state, in_text=True)
    else:
        yield from python_calls.read_calls(state)


def read_fenced(state: ParserState, matched: str) -> Parse[None]:
    if matched in _PYTHON_FENCES:
        yield from state.buffer.read_blanks()
        yield from python_calls.read_calls(state, "```")
    else:
        yield from json_calls.read_calls(state, "```", in_text=True)


def read_functools(state: ParserState, _: str) -> Parse[None]:
    yield from json_calls.read_calls(state)


def render_llama(calls: Sequence[ToolCall], _: Tools) -> str:
    return "; ".join([call_object(call, arguments_key="parameters") for call in calls])


def _render_array(opening: str, closing: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{opening}{json_array([call_object(call) for call in calls])}{closing}"


def render_json_fenced(calls: Sequence[ToolCall], _: Tools) -> str:
    objects = [{"name": call.name, "arguments": argument_values(call)} for call in calls]
    return "\n".join([f"```json\n{json_text(one, '  ')}\n```" for one in objects])


def render_python(calls: Sequence[ToolCall], _: Tools) -> str:
    return json_array([python_call(call) for call in calls])


def render_tool_code(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"```tool_code\n{chr(10).join([python_call(call) for call in calls])}\n```"


# Patterns that only look ahead: the bracket belongs to the call, so its reader must find it unread.
_BRACE = CallMarker(read, pattern=r"(?=\{)", firsts="{", at="line")
_BRACKET = CallMarker(read, pattern=r"(?=\[)", firsts="[", at="line")
_JSON_FENCE = CallMarker(
    read_fenced, pattern=r"```(?:json)?[ \t]*\n(?=\s*[\[{])", partial=r"`{1,3}|```[a-z]*\s*", firsts="`", at="line"
)
_TOOL_CODE = CallMarker(read_fenced, "```tool_code", at="line")

# llama3_json:      {"name": "f", "parameters": {…}}; {"name": "g", "parameters": {}}
# xlam:             [{"name": "f", "arguments": {…}}]
# json_fenced:      ```json\n{\n  "name": "f",\n  "arguments": {…}\n}\n```
# phi4_mini:        functools[{"name": "f", "arguments": {…}}]
# pythonic:         [f(city="Paris"), g()]
# gemma3_tool_code: ```tool_code\nf(city="Paris")\n```
SYNTAXES = (
    Syntax("llama3_json", fixed_markers(_BRACE, _BRACKET), render_llama),
    Syntax("xlam", fixed_markers(_BRACE, _BRACKET), partial(_render_array, "", "")),
    Syntax("xlam_fenced", fixed_markers(_BRACE, _BRACKET, _JSON_FENCE), partial(_render_array, "```json\n", "\n```")),
    Syntax("json_fenced", fixed_markers(_BRACE, _BRACKET, _JSON_FENCE), render_json_fenced),
    Syntax(
        "phi4_mini",
        fixed_markers(CallMarker(read_functools, "functools", at="line")),
        partial(_render_array, "functools", ""),
    ),
    Syntax("pythonic", fixed_markers(_BRACKET), render_python),
    Syntax("gemma3_tool_code", fixed_markers(_TOOL_CODE), render_tool_code),
)
