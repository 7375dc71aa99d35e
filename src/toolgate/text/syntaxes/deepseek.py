"""DeepSeek V3, R1 and V3.1: calls between marks in full-width bars; the newer one has no fence around the arguments."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, without

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_WORD = re.compile(r"[^<>{}\s`]*")


def _call(reading: Reading) -> Steps[bool]:
    """Reads one call behind the mark that begins it; False if it is none."""
    source = reading.source
    yield from source.blanks()
    name = yield from source.run(_WORD)
    if not (yield from source.word(_SEP)):
        return False
    if name == "function" and not (yield from source.sees("{")):
        name = yield from source.run(_WORD)
    return (yield from json_calls.arguments(reading, name, None, _CALL_END))


def _v3(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [f"{_CALL}function{_SEP}{_name(call)}\n```json\n{arguments(call)}\n```{_CALL_END}" for call in calls]
    return f"{_BEGIN}{chr(10).join(each)}{_END}"


def _v31(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_BEGIN}{''.join([f'{_CALL}{_name(call)}{_SEP}{arguments(call)}{_CALL_END}' for call in calls])}{_END}"


def _name(call: ToolCall) -> str:
    return without(call.name, "<", ">", "{", "`", " ", "\n")


_read = json_calls.marked(_BEGIN, _CALL, _call, _END)
_OPENERS = always(Opener(_read, _BEGIN), Opener(_read, _CALL))
SYNTAXES = (Syntax("deepseek_v3", _OPENERS, _v3), Syntax("deepseek_v31", _OPENERS, _v31))
