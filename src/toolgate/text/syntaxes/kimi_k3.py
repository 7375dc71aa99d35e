"""Kimi K3 (XTML): tags made of special tokens; each argument says its type."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import tagged
from toolgate.text.kinds import kind_of
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Spelt, Tools, json_text, members, without

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_CALL, _ARGUMENT = f"{_OPEN}call ", f"{_OPEN}argument "
_CALL_END, _ARGUMENT_END = f"{_CLOSE}call{_SEP}", f"{_CLOSE}argument{_SEP}"
_TOOLS, _TOOLS_END = f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}"
_HEADER = re.compile(r"[^<]*")
_MARKS = ('"', "<")


def _key(reading: Reading) -> Steps[tuple[str, bool | None] | None]:
    if not (yield from reading.source.word(_ARGUMENT)):
        return None
    attributes = yield from _attributes(reading)
    if "key" not in attributes:
        return None
    return attributes["key"], attributes["type"] == "string" if "type" in attributes else None


_FORM = tagged.Form(_key, _ARGUMENT_END, _ARGUMENT, (_CALL_END,), (_ARGUMENT, _CALL_END))


def _attributes(reading: Reading) -> Steps[dict[str, str]]:
    """Reads the rest of an opening tag."""
    header = yield from reading.source.run(_HEADER)
    if not (yield from reading.source.word(_SEP)):
        return {}
    return tagged.attributes(header, escaped=False)


def _read(reading: Reading, opened: str) -> Steps[None]:
    source = reading.source
    alone = opened == _CALL
    while alone or (yield from source.word(_CALL)):
        alone = False
        name = (yield from _attributes(reading)).get("tool")
        begun = reading.begin(name) if name else None
        if not name or not begun:
            return
        yield from tagged.parameters(reading, begun, name, _FORM)
        yield from source.blanks()
    yield from reading.close(_TOOLS_END)


def _render(calls: Sequence[ToolCall], _: Tools) -> str:
    return f"{_TOOLS}{''.join([_written(call, number) for number, call in enumerate(calls, 1)])}{_TOOLS_END}"


def _written(call: ToolCall, number: int) -> str:
    parts = [f'{_CALL}tool="{without(call.name, *_MARKS)}" index="{number}"{_SEP}']
    for key, value in members(call).items():
        is_string = isinstance(value, str) and not isinstance(value, Spelt)
        kind = "number" if isinstance(value, Spelt) else kind_of(value)
        text = without(str(value), _ARGUMENT, _ARGUMENT_END) if is_string else json_text(value)
        parts.append(f'{_ARGUMENT}key="{without(key, *_MARKS)}" type="{kind}"{_SEP}{text}{_ARGUMENT_END}')
    return "".join([*parts, _CALL_END])


SYNTAXES = (Syntax("kimi_k3", always(Opener(_read, _TOOLS), Opener(_read, _CALL)), _render),)
