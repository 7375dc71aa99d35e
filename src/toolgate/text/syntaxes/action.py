"""`Action:` at the beginning of a line: ReAct prompts name a tool behind it, Command-R writes an array in a fence."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, json_text, members, without

_MARK, _INPUT = "Action:", "Action Input:"
_NAME = re.compile(r"[^\n\r]*")


def _read(reading: Reading, _: str) -> Steps[None]:
    source = reading.source
    yield from source.blanks()
    if (yield from source.sees("```")):
        yield from json_calls.calls(reading)
        return
    name = (yield from source.run(_NAME, 256)).strip().strip("`")
    if reading.declared(name) is None:
        return
    yield from source.blanks()
    if (yield from source.word(_INPUT)) and (yield from source.followed(0, ("{", "```"))):
        yield from json_calls.arguments(reading, name, None)


def _react(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{_MARK} {without(call.name, chr(10))}\n{_INPUT} {arguments(call)}\n" for call in calls])


def _command_r(calls: Sequence[ToolCall], _: Tools) -> str:
    objects = [{"tool_name": call.name, "parameters": members(call)} for call in calls]
    return f"{_MARK} ```json\n{json_text(objects, '    ')}```"


_OPENERS = always(Opener(_read, _MARK, at="line"))
SYNTAXES = (Syntax("react", _OPENERS, _react), Syntax("command_r", _OPENERS, _command_r))
