"""Cherry Studio: `<tool_use><name>f</name><arguments>{…}</arguments></tool_use>`."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, without

_NAME = re.compile(r"[^<>]*")


def _read(reading: Reading, _: str) -> Steps[None]:
    source = reading.source
    yield from source.blanks()
    if not (yield from source.word("<name>")):
        return
    name = (yield from source.run(_NAME)).strip()
    if not (yield from source.word("</name>")):
        return
    yield from source.blanks()
    if (yield from source.word("<arguments>")):
        if (yield from json_calls.arguments(reading, name, None, "</arguments>")):
            yield from reading.close("</tool_use>")
    elif (yield from source.sees("</tool_use>")) and (begun := reading.begin(name)):
        begun.end_members()
        begun.end()
        yield from reading.close("</tool_use>")


def _render(calls: Sequence[ToolCall], _: Tools) -> str:
    return "\n".join(
        [
            f"<tool_use>\n<name>{without(call.name, '<', '>')}</name>\n"
            f"<arguments>{arguments(call)}</arguments>\n</tool_use>"
            for call in calls
        ]
    )


SYNTAXES = (Syntax("tool_use_xml", always(Opener(_read, "<tool_use>")), _render),)
