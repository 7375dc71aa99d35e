"""Solar Open: every piece of a call, its id included, stands behind a mark of its own."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, without

_BEGIN, _END = "<|tool_calls|>", "<|calls|>"
_CALL, _NAME, _ARGS, _CALL_END = (f"<|tool_call:{kind}|>" for kind in ("begin", "name", "args", "end"))
_WORD = re.compile(r"[^<>\s]*")


def _read(reading: Reading, _: str) -> Steps[None]:
    source = reading.source
    yield from source.blanks()
    while (yield from source.word(_CALL)):
        id = yield from source.run(_WORD)
        if not (yield from source.word(_NAME)):
            return
        name = yield from source.run(_WORD)
        if not (yield from source.word(_ARGS)):
            return
        if not (yield from json_calls.arguments(reading, name, id or None, _CALL_END)):
            return
        yield from source.blanks()
    yield from reading.close(_END)


def _render(calls: Sequence[ToolCall], _: Tools) -> str:
    each = [
        f"{_CALL}{without(call.id, '<', '>', ' ')}{_NAME}{without(call.name, '<', '>', ' ')}"
        f"{_ARGS}{arguments(call)}{_CALL_END}"
        for call in calls
    ]
    return f"{_BEGIN}{''.join(each)}{_END}"


SYNTAXES = (Syntax("solar_open", always(Opener(_read, _BEGIN)), _render),)
