"""Read and write Mistral's `[TOOL_CALLS]`: an array, or a name, perhaps an id, and arguments, by tokenizer version."""

import re
from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, call_object, free_of, json_array
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# v3:  [TOOL_CALLS][{"name": "f", "arguments": {"city": "Paris"}, "id": "call00000"}]
# v11: [TOOL_CALLS]f[CALL_ID]call00000[ARGS]{"city": "Paris"}
# v13: [TOOL_CALLS]f[ARGS]{"city": "Paris"}
_MARK, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_WORD = re.compile(r"[^\[\]{}\s]*")


def read(state: ParserState, _: str) -> Parse[None]:
    buffer = state.buffer
    yield from buffer.read_blanks()
    if (yield from buffer.peek()) in ("[", "{"):
        yield from json_calls.read_calls(state)
        return
    name = yield from buffer.read_chars(_WORD)
    id = (yield from buffer.read_chars(_WORD)) if (yield from buffer.accept(_ID)) else None
    marked = yield from buffer.accept(_ARGS)
    yield from buffer.read_blanks()
    if marked or (yield from buffer.starts_with("{")):
        yield from json_calls.read_arguments(state, name, id)


def render_array(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_MARK}{json_array([call_object(call, id=call.id) for call in calls])}"


def _render_each(id_mark: str, arguments_mark: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join(
        [
            f"{_MARK}{free_of(call.name, '[', '{', ' ')}{id_mark and id_mark + free_of(call.id, '[', ' ')}"
            f"{arguments_mark}{argument_json(call)}"
            for call in calls
        ]
    )


_MARKERS = fixed_markers(CallMarker(read, _MARK))
SYNTAXES = (
    Syntax("mistral_array", _MARKERS, render_array),
    Syntax("mistral_args", _MARKERS, partial(_render_each, "", _ARGS)),
    Syntax("mistral_callid", _MARKERS, partial(_render_each, _ID, _ARGS)),
    Syntax("mistral_brace", _MARKERS, partial(_render_each, "", "")),
)
