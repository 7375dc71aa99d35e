"""Inkling: a message to a tool, whose content is a JSON object that names the tool again."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, call_object, without

_TO, _CONTENT, _END = "<|message_model|>", "<|content_invoke_tool_json|>", "<|end_message|>"
_WORD = re.compile(r"[^<>\s]*")


def _read(reading: Reading, _: str) -> Steps[None]:
    yield from reading.source.run(_WORD)
    if (yield from reading.source.word(_CONTENT)):
        yield from json_calls.calls(reading, _END)


def _render(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [(without(call.name, "<", ">", " "), call_object(call, arguments_key="args")) for call in calls]
    return "".join([f"{_TO}{name}{_CONTENT}{body}{_END}" for name, body in each])


SYNTAXES = (Syntax("inkling", always(Opener(_read, _TO)), _render),)
