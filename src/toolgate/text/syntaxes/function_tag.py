"""`<function=f>`: Qwen3-Coder and its kin write parameters behind it, Functionary v3.1 and Llama a JSON object."""

import re
from collections.abc import Sequence
from functools import partial

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import json_calls, tagged
from toolgate.text.reading import Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Opener, Syntax, always
from toolgate.text.writing import Tools, arguments, bare, members, without

OPENING = "<function="
_END = "</function>"
_NAME = re.compile(r"[^<>\n]*")
_PARAMETER = "<parameter="


def _key(reading: Reading) -> Steps[tuple[str, bool | None] | None]:
    if not (yield from reading.source.word(_PARAMETER)):
        return None
    name = yield from reading.source.run(_NAME)
    return (name, None) if (yield from reading.source.word(">")) else None


def _form(*stops: str) -> tagged.Form:
    return tagged.Form(_key, "</parameter>", _PARAMETER, (_END,), (_PARAMETER, _END, *stops), stops, framed=True)


_ALONE = _form(OPENING)


def function(reading: Reading, closer: str = "") -> Steps[bool]:
    """Reads one call behind `<function=`; False if it is none."""
    name = (yield from reading.source.run(_NAME)).strip()
    if not (yield from reading.source.word(">")):
        return False
    begun = reading.begin(name)
    if begun is None:
        return False
    yield from reading.source.blanks()
    if (yield from reading.source.peek()) != "{":
        yield from tagged.parameters(reading, begun, name, _form(OPENING, closer) if closer else _ALONE)
        return True
    yield from json_calls.argument_object(reading, begun, name, _END)
    yield from reading.source.blanks()
    yield from reading.source.word(_END)
    begun.end()
    return True


def functions(reading: Reading, closer: str) -> Steps[None]:
    """Reads calls one after another and the mark that closes them."""
    while (yield from reading.source.word(OPENING)):
        if not (yield from function(reading, closer)):
            return
        yield from reading.source.blanks()
    yield from reading.close(closer)


def _read(reading: Reading, _: str) -> Steps[None]:
    if (yield from function(reading)):
        yield from reading.close("</tool_call>")  # whose opening mark the model forgot


def _render_json(calls: Sequence[ToolCall], _: Tools) -> str:
    return "".join([f"{OPENING}{without(call.name, '>', '<')}>{arguments(call)}{_END}" for call in calls])


def render(opening: str, closing: str, qwen: bool, calls: Sequence[ToolCall], tools: Tools) -> str:
    """Writes the calls between the marks, line by line."""
    return "\n".join([f"{opening}\n{_written(call, tools, qwen)}\n{closing}" for call in calls])


def _written(call: ToolCall, tools: Tools, qwen: bool) -> str:
    lines = [f"{OPENING}{without(call.name, '>', '<')}>"]
    for key, value in members(call).items():
        text = without(bare(value, key, tools.get(call.name), python=not qwen or isinstance(value, bool)), *_MARKS)
        framed = f"\n{text}\n" if qwen or text.startswith(("\n", "\r\n")) else text
        lines.append(f"{_PARAMETER}{without(key, '>', '<', chr(10))}>{framed}</parameter>")
    return "\n".join([*lines, _END])


_MARKS = (_PARAMETER, "</parameter>")
OPENER = Opener(_read, OPENING)
SYNTAXES = (Syntax("functionary_v31", always(OPENER), _render_json),)
render_qwen = partial(render, "<tool_call>", "</tool_call>", True)
render_seed = partial(render, "<seed:tool_call>", "</seed:tool_call>", False)
