"""Functionary v3.2: `>>>name`, a line break and arguments; `>>>all` is followed by text."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, without

_MARK = ">>>"
_NAME = re.compile(r"[^\s<>{}]*")


def _read(reading: Reading, _: str) -> Steps[None]:
    source = reading.source
    while True:
        name = yield from source.run(_NAME)
        if not (yield from source.one_of("\r\n", "\n")):
            return
        if name == "all":
            reading.drop()
            return
        if not (yield from source.followed(0, ("{",))) or not (yield from json_calls.arguments(reading, name, None)):
            return
        yield from source.blanks()
        if not (yield from source.word(_MARK)):
            return


def _render(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{_MARK}{without(call.name, '<', '>', '{', ' ')}\n{arguments(call)}" for call in calls])


SYNTAXES = (Syntax("functionary_v32", always(Opener(_read, _MARK, at="line")), _render),)
