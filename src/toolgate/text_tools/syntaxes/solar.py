"""Read and write the calls of Solar Open: a mark precedes every piece of a call, its id included."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# <|tool_calls|><|tool_call:begin|>call00000<|tool_call:name|>f<|tool_call:args|>{"city": "Paris"}<|tool_call:end|>
# <|calls|>
_BEGIN, _END = "<|tool_calls|>", "<|calls|>"
_CALL, _NAME, _ARGS, _CALL_END = (f"<|tool_call:{kind}|>" for kind in ("begin", "name", "args", "end"))
_WORD = re.compile(r"[^<>\s]*")


def read(state: ParserState, _: str) -> Parse[None]:
    buffer = state.buffer
    yield from buffer.read_blanks()
    while (yield from buffer.accept(_CALL)):
        id = yield from buffer.read_chars(_WORD)
        if not (yield from buffer.accept(_NAME)):
            return
        name = yield from buffer.read_chars(_WORD)
        if not (yield from buffer.accept(_ARGS)):
            return
        if not (yield from json_calls.read_arguments(state, name, id or None, _CALL_END)):
            return
        yield from buffer.read_blanks()
    yield from state.accept_closing(_END)


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [
        f"{_CALL}{free_of(call.id, '<', '>', ' ')}{_NAME}{free_of(call.name, '<', '>', ' ')}"
        f"{_ARGS}{argument_json(call)}{_CALL_END}"
        for call in calls
    ]
    return f"{_BEGIN}{''.join(each)}{_END}"


SYNTAXES = (Syntax("solar_open", fixed_markers(CallMarker(read, _BEGIN)), render),)
