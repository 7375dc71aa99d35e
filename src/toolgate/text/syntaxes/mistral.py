"""Mistral's `[TOOL_CALLS]`: an array of calls, or a name, perhaps an id, and arguments, by tokenizer version."""

import re
from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, call_object, listed, without

_MARK, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_WORD = re.compile(r"[^\[\]{}\s]*")


def _read(reading: Reading, _: str) -> Steps[None]:
    source = reading.source
    yield from source.blanks()
    if (yield from source.peek()) in ("[", "{"):
        yield from json_calls.calls(reading)
        return
    name = yield from source.run(_WORD)
    id = (yield from source.run(_WORD)) if (yield from source.word(_ID)) else None
    marked = yield from source.word(_ARGS)
    yield from source.blanks()
    if marked or (yield from source.sees("{")):
        yield from json_calls.arguments(reading, name, id)


def _array(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_MARK}{listed([call_object(call, id=call.id) for call in calls])}"


def _each(id_mark: str, arguments_mark: str, calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join(
        [
            f"{_MARK}{without(call.name, '[', '{', ' ')}{id_mark and id_mark + without(call.id, '[', ' ')}"
            f"{arguments_mark}{arguments(call)}"
            for call in calls
        ]
    )


_OPENERS = always(Opener(_read, _MARK))
SYNTAXES = (
    Syntax("mistral_array", _OPENERS, _array),
    Syntax("mistral_args", _OPENERS, partial(_each, "", _ARGS)),
    Syntax("mistral_callid", _OPENERS, partial(_each, _ID, _ARGS)),
    Syntax("mistral_brace", _OPENERS, partial(_each, "", "")),
)
