"""Read and write the calls of Functionary v3.2: `>>>name`, a line break and arguments; text follows `>>>all`."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# >>>all\nLet me look.>>>f\n{"city": "Paris"}
_MARK = ">>>"
_NAME = re.compile(r"[^\s<>{}]*")


def read(state: ParserState, _: str) -> Parse[None]:
    buffer = state.buffer
    while True:
        name = yield from buffer.read_chars(_NAME)
        if not (yield from buffer.accept_any("\r\n", "\n")):
            return
        if name == "all":
            state.drop_markup()
            return
        if not (yield from buffer.is_followed_by(0, ("{",))) or not (
            yield from json_calls.read_arguments(state, name, None)
        ):
            return
        yield from buffer.read_blanks()
        if not (yield from buffer.accept(_MARK)):
            return


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{_MARK}{free_of(call.name, '<', '>', '{', ' ')}\n{argument_json(call)}" for call in calls])


SYNTAXES = (Syntax("functionary_v32", fixed_markers(CallMarker(read, _MARK, at="line")), render),)
