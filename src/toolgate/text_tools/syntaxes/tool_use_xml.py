"""Read and write the calls of Cherry Studio: `<tool_use><name>f</name><arguments>{…}</arguments></tool_use>`."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, argument_json, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

_NAME = re.compile(r"[^<>]*")


def read(state: ParserState, _: str) -> Parse[None]:
    buffer = state.buffer
    yield from buffer.read_blanks()
    if not (yield from buffer.accept("<name>")):
        return
    name = (yield from buffer.read_chars(_NAME)).strip()
    if not (yield from buffer.accept("</name>")):
        return
    yield from buffer.read_blanks()
    if (yield from buffer.accept("<arguments>")):
        if (yield from json_calls.read_arguments(state, name, None, "</arguments>")):
            yield from state.accept_closing("</tool_use>")
    elif (yield from buffer.starts_with("</tool_use>")) and (parsed := state.begin_call(name)):
        parsed.end_members()
        parsed.end()
        yield from state.accept_closing("</tool_use>")


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    return "\n".join(
        [
            f"<tool_use>\n<name>{free_of(call.name, '<', '>')}</name>\n"
            f"<arguments>{argument_json(call)}</arguments>\n</tool_use>"
            for call in calls
        ]
    )


SYNTAXES = (Syntax("tool_use_xml", fixed_markers(CallMarker(read, "<tool_use>")), render),)
