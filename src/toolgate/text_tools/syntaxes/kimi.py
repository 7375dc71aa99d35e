"""Read and write the calls of Kimi K2: a call's id is `functions.name:index` and must come back to the model unchanged."""

import re
from collections.abc import Sequence

from toolgate.conversation.call_ids import original_id
from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"city": "Paris"}
# <|tool_call_end|><|tool_calls_section_end|>
_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_WORD = re.compile(r"[^<>\s]*")


def read_call(state: ParserState) -> Parse[bool]:
    """Read one call behind the mark that begins it; return False if it is none."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    id = yield from buffer.read_chars(_WORD)
    yield from buffer.read_blanks()
    if not (yield from buffer.accept(_ARGS)):
        return False
    name, _, index = id.rpartition(":")
    if not index.isdecimal() or not name:
        name = id
    return (yield from json_calls.read_arguments(state, name, id, _CALL_END))


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    rendered: list[str] = []
    for number, call in enumerate(calls):
        prefix = f"functions.{free_of(call.name, '<', '>', ' ')}:"
        id = original_id(call.id)
        if not id.startswith(prefix) or not id[len(prefix) :].isdecimal():  # another model made the call
            id = f"{prefix}{number}"
        rendered.append(f"{_CALL}{id}{_ARGS}{argument_json(call)}{_CALL_END}")
    return f"{_BEGIN}{''.join(rendered)}{_END}"


read = json_calls.marked_calls(_BEGIN, _CALL, read_call, _END)
SYNTAXES = (Syntax("kimi_k2", fixed_markers(CallMarker(read, _BEGIN), CallMarker(read, _CALL)), render),)
