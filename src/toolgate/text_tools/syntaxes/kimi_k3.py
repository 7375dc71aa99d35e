"""Read and write the calls of Kimi K3 (XTML): tags made of special tokens; each argument has a type."""

import re
from collections.abc import Sequence

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.call_rendering import NumberAsWritten, Tools, argument_values, free_of, json_text
from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.parser_state import ParserState
from toolgate.text_tools.parsing.schema_types import json_type_of
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, fixed_markers

# <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>
# <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
# <|close|>call<|sep|><|close|>tools<|sep|>   (all without line breaks)
_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_CALL, _ARGUMENT = f"{_OPEN}call ", f"{_OPEN}argument "
_CALL_END, _ARGUMENT_END = f"{_CLOSE}call{_SEP}", f"{_CLOSE}argument{_SEP}"
_TOOLS, _TOOLS_END = f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}"
_HEADER = re.compile(r"[^<]*")
_MARKS = ('"', "<")


def read_key(state: ParserState) -> Parse[tuple[str, bool | None] | None]:
    if not (yield from state.buffer.accept(_ARGUMENT)):
        return None
    attributes = yield from _read_attributes(state)
    if "key" not in attributes:
        return None
    return attributes["key"], attributes["type"] == "string" if "type" in attributes else None


_TAGS = tagged.TagFormat(read_key, _ARGUMENT_END, _ARGUMENT, (_CALL_END,), (_ARGUMENT, _CALL_END))


def _read_attributes(state: ParserState) -> Parse[dict[str, str]]:
    """Read the rest of an opening tag."""
    header = yield from state.buffer.read_chars(_HEADER)
    if not (yield from state.buffer.accept(_SEP)):
        return {}
    return tagged.parse_attributes(header, escaped=False)


def read(state: ParserState, matched: str) -> Parse[None]:
    buffer = state.buffer
    alone = matched == _CALL
    while alone or (yield from buffer.accept(_CALL)):
        alone = False
        name = (yield from _read_attributes(state)).get("tool")
        parsed = state.begin_call(name) if name else None
        if not name or not parsed:
            return
        yield from tagged.read_parameters(state, parsed, name, _TAGS)
        yield from buffer.read_blanks()
    yield from state.accept_closing(_TOOLS_END)


def render(calls: Sequence[ToolCall], _: Tools) -> str:
    parts = [_TOOLS]
    for number, call in enumerate(calls, 1):
        parts.append(f'{_CALL}tool="{free_of(call.name, *_MARKS)}" index="{number}"{_SEP}')
        for key, value in argument_values(call).items():
            is_string = isinstance(value, str) and not isinstance(value, NumberAsWritten)
            kind = "number" if isinstance(value, NumberAsWritten) else json_type_of(value)
            text = free_of(str(value), _ARGUMENT, _ARGUMENT_END) if is_string else json_text(value)
            parts.append(f'{_ARGUMENT}key="{free_of(key, *_MARKS)}" type="{kind}"{_SEP}{text}{_ARGUMENT_END}')
        parts.append(_CALL_END)
    return "".join([*parts, _TOOLS_END])


SYNTAXES = (Syntax("kimi_k3", fixed_markers(CallMarker(read, _TOOLS), CallMarker(read, _CALL)), render),)
