"""Kimi K2: each call is known by `functions.name:index`, which is its id and must come back to the model as it was."""

import re
from collections.abc import Sequence

from toolgate.conversation.ids import original
from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, without

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_WORD = re.compile(r"[^<>\s]*")


def _call(reading: Reading) -> Steps[bool]:
    """Reads one call behind the mark that begins it; False if it is none."""
    source = reading.source
    yield from source.blanks()
    id = yield from source.run(_WORD)
    yield from source.blanks()
    if not (yield from source.word(_ARGS)):
        return False
    name, _, index = id.rpartition(":")
    if not index.isdecimal() or not name:
        name = id
    return (yield from json_calls.arguments(reading, name, id, _CALL_END))


def _render(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [f"{_CALL}{_id(call, number)}{_ARGS}{arguments(call)}{_CALL_END}" for number, call in enumerate(calls)]
    return f"{_BEGIN}{''.join(each)}{_END}"


def _id(call: ToolCall, number: int) -> str:
    """The id that the model gave, or, where another made it, one such as the model would give."""
    own = original(call.id)
    mine = f"functions.{without(call.name, '<', '>', ' ')}:"
    return own if own.startswith(mine) and own[len(mine) :].isdecimal() else f"{mine}{number}"


_read = json_calls.marked(_BEGIN, _CALL, _call, _END)
SYNTAXES = (Syntax("kimi_k2", always(Opener(_read, _BEGIN), Opener(_read, _CALL)), _render),)
