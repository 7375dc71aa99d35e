"""Read and write JSON calls behind a special mark: Granite, Llama, InternLM, Command-A, GigaChat and Apertus."""

from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls, python_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, call_object, json_array
from toolgate.text_tools.parsing.escape_json_string import quoted
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Read, Syntax, fixed_markers

_TURN_ENDS = ("<|eom_id|>", "<|eot_id|>")
_RESPONSE, _RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
_THINKS = (("<|START_THINKING|>", "<|END_THINKING|>"),)


def json_reader(*closers: str, then: str = "", keyed: bool = False) -> Read:
    """Return a reader of JSON calls; `then` must follow the marker."""

    def read(state: ParserState, _: str) -> Parse[None]:
        if then:
            yield from state.buffer.read_blanks()
            if not (yield from state.buffer.accept(then)):
                return
        yield from json_calls.read_calls(state, *closers, keyed=keyed)

    return read


# Llama's mark for code: some of its versions put JSON behind it, others Python.
def read_python_tag(state: ParserState, _: str) -> Parse[None]:
    yield from state.buffer.read_blanks()
    if (yield from state.buffer.peek()) in ("{", "["):
        yield from json_calls.read_calls(state, *_TURN_ENDS)
    else:
        yield from python_calls.read_calls(state, *_TURN_ENDS)


def render_array(opening: str, closing: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{opening}{json_array([call_object(call) for call in calls])}{closing}"


def _render_each(opening: str, closing: str, gap: str, key: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return gap.join([f"{opening}{call_object(call, arguments_key=key)}{closing}" for call in calls])


def render_llama(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"<|python_tag|>{'; '.join([call_object(call, arguments_key='parameters') for call in calls])}"


def render_command_a(calls: Sequence[ToolCall], _: Tools) -> str:
    lines = [
        f'    {{"tool_call_id": "{number}", "tool_name": {quoted(call.name)}, "parameters": {argument_json(call)}}}'
        for number, call in enumerate(calls)
    ]
    return f"<|START_ACTION|>[\n{f',{chr(10)}'.join(lines)}\n]<|END_ACTION|>"


def render_apertus(calls: Sequence[ToolCall], _: Tools) -> str:
    objects = [f"{{{quoted(call.name)}: {argument_json(call)}}}" for call in calls]
    return f"<|tools_prefix|>{json_array(objects)}<|tools_suffix|>"


# granite3:       <|tool_call|>[{"name": "f", "arguments": {…}}]
# granite_20b_fc: <function_call> {"name": "f", "arguments": {…}}
# llama3_tag:     <|python_tag|>{"name": "f", "parameters": {…}}; {"name": "g", "parameters": {}}
# internlm2:      <|action_start|> <|plugin|>\n{"name": "f", "parameters": {…}}<|action_end|>
# command_a:      <|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {…}}\n]<|END_ACTION|>
# gigachat3:      <|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {…}}
# gigachat31:     <|function_call|>{"name": "f", "arguments": {…}}<|message_sep|>
# apertus:        <|tools_prefix|>[{"f": {…}}]<|tools_suffix|>
_INTERN, _GIGA = "<|action_start|> <|plugin|>\n", "<|message_sep|>\n\nfunction call<|role_sep|>\n"
_COHERE = fixed_markers(
    CallMarker(json_reader("<|END_ACTION|>"), "<|START_ACTION|>"),
    CallMarker(lambda state, _: state.read_plain_text(_RESPONSE_END), _RESPONSE),
)

SYNTAXES = (
    Syntax(
        "granite3",
        fixed_markers(CallMarker(json_reader(), "<|tool_call|>")),
        partial(render_array, "<|tool_call|>", ""),
    ),
    Syntax(
        "granite_20b_fc",
        fixed_markers(CallMarker(json_reader("</function_call>"), "<function_call>")),
        partial(_render_each, "<function_call> ", "", "", "arguments"),
    ),
    Syntax("llama3_tag", fixed_markers(CallMarker(read_python_tag, "<|python_tag|>")), render_llama),
    Syntax(
        "internlm2",
        fixed_markers(CallMarker(json_reader("<|action_end|>", then="<|plugin|>"), "<|action_start|>")),
        partial(_render_each, _INTERN, "<|action_end|>", "\n", "parameters"),
    ),
    Syntax("command_a", _COHERE, render_command_a, reasoning_marks=_THINKS),
    Syntax(
        "gigachat3",
        fixed_markers(CallMarker(json_reader(then="function call<|role_sep|>"), "<|message_sep|>")),
        partial(_render_each, _GIGA, "", "", "arguments"),
    ),
    Syntax(
        "gigachat31",
        fixed_markers(CallMarker(json_reader("<|message_sep|>"), "<|function_call|>")),
        partial(_render_each, "<|function_call|>", "", "", "arguments"),
    ),
    Syntax(
        "apertus",
        fixed_markers(CallMarker(json_reader("<|tools_suffix|>", keyed=True), "<|tools_prefix|>")),
        render_apertus,
    ),
)
