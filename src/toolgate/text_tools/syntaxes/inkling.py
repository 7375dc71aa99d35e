"""Read and write the calls of Inkling: a message to a tool, whose content is a JSON object that names the tool again."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import json_calls
from toolgate.text_tools.parsing.call_rendering import Tools, call_object, free_of
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# <|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {"city": "Paris"}}<|end_message|>
_TO, _CONTENT, _END = "<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"
_WORD = re.compile(r"[^<>\s]*")


def read(state: ParserState, _: str) -> Parse[None]:
    yield from state.buffer.read_chars(_WORD)
    if (yield from state.buffer.accept(_CONTENT)):
        yield from json_calls.read_calls(state, _END)


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [(free_of(call.name, "<", ">", " "), call_object(call, arguments_key="args")) for call in calls]
    return "".join([f"{_TO}{name}{_CONTENT}{body}{_END}" for name, body in each])


SYNTAXES = (Syntax("inkling", fixed_markers(CallMarker(read, _TO)), render),)
