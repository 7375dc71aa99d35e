"""Read and write the calls of MiniMax-M3: a token precedes every tag; objects are nested tags, arrays `item` tags."""

import re
from collections.abc import Sequence
from typing import Any

from toolgate.conversation.message import ToolCall
from toolgate.text_tools.call_formats import tagged
from toolgate.text_tools.parsing.bare_values import BareValueConverter, parse_bare
from toolgate.text_tools.parsing.call_rendering import (
    MAX_DEPTH,
    NumberAsWritten,
    Tools,
    argument_values,
    free_of,
    json_text,
    tag_name,
)
from toolgate.text_tools.parsing.escape_json_string import quoted
from toolgate.text_tools.parsing.input_buffer import Parse, word_set
from toolgate.text_tools.parsing.parser_state import CallSink, ParserState
from toolgate.text_tools.parsing.schema_types import ARRAY, OBJECT, STRING, ParameterTypes, types_of
from toolgate.text_tools.parsing.syntax import CallMarker, Syntax, UnrenderableValue, fixed_markers

# ]<]minimax[>[<tool_call>
# ]<]minimax[>[<invoke name="f">]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</tags>
# ]<]minimax[>[</invoke>
# ]<]minimax[>[</tool_call>
_NS = "]<]minimax[>["
_CALLS, _CALLS_END = f"{_NS}<tool_call>", f"{_NS}</tool_call>"
_INVOKE, _INVOKE_END = f"{_NS}<invoke", f"{_NS}</invoke>"
_TAG = re.compile(r"[^<>/]*")
_MARK = word_set(_NS)
_BROKEN = "the tags of the arguments do not match"


def read(state: ParserState, matched: str) -> Parse[None]:
    buffer = state.buffer
    yield from buffer.read_blanks()
    while (yield from buffer.accept(_INVOKE)):
        attributes = yield from tagged.read_tag_end(state)
        name = attributes.get("name") if attributes else None
        parsed = state.begin_call(name) if name else None
        if not parsed or not name:
            return
        whole = yield from _NestedTagReader(state, parsed).object(parsed.types.root, _INVOKE_END)
        if not whole:
            yield from state.copy_broken(parsed, name, _BROKEN, _INVOKE_END)
            yield from buffer.accept(_INVOKE_END)
        parsed.end()
        yield from buffer.read_blanks()
    yield from state.accept_closing(_CALLS_END)


class _NestedTagReader:
    """Reads nested tags and writes them as JSON."""

    def __init__(self, state: ParserState, call: CallSink) -> None:
        self._buffer = state.buffer
        self._call = call
        self._types = call.types
        self._depth = 0

    def object(self, schema: Any, end: str) -> Parse[bool]:
        """Read members up to the mark that ends them; return False if their tags do not match."""
        first = True
        self._call.raw("{")
        while True:
            yield from self._buffer.read_blanks()
            if (yield from self._buffer.accept(end)):
                self._call.raw("}")
                return True
            tag = yield from self._open()
            if tag is None:
                return False
            self._call.raw(f"{'' if first else ','}{quoted(tag)}:")
            first = False
            if not (yield from self._value(self._types.parameter(schema, tag), f"{_NS}</{tag}>")):
                return False

    def _array(self, schema: Any, end: str) -> Parse[bool]:
        first = True
        self._call.raw("[")
        while True:
            yield from self._buffer.read_blanks()
            if (yield from self._buffer.accept(end)):
                self._call.raw("]")
                return True
            if (yield from self._open()) != "item":
                return False
            self._call.raw("" if first else ",")
            first = False
            if not (yield from self._value(self._types.item(schema), f"{_NS}</item>")):
                return False

    def _open(self) -> Parse[str | None]:
        if not (yield from self._buffer.accept(f"{_NS}<")):
            return None
        tag = yield from self._buffer.read_chars(_TAG)
        return tag if tag and (yield from self._buffer.accept(">")) else None

    def _value(self, schema: Any, end: str) -> Parse[bool]:
        allowed = self._types.allowed(schema)
        nested = yield from self._buffer.is_followed_by(0, (f"{_NS}<",))
        nested = nested and not (yield from self._buffer.is_followed_by(0, (f"{_NS}</",)))
        if nested or (STRING not in allowed and allowed <= {ARRAY, OBJECT}):
            is_array = ARRAY in allowed
            if is_array == (OBJECT in allowed):  # the schema allows both or neither: the name of the tag decides
                is_array = yield from self._buffer.is_followed_by(0, (f"{_NS}<item>",))
            yield from self._buffer.read_blanks()
            self._depth += 1
            if self._depth > MAX_DEPTH:
                return False
            whole = yield from (self._array if is_array else self.object)(schema, end)
            self._depth -= 1
            return whole
        written = BareValueConverter(self._call, allowed)
        if not (yield from self._buffer.copy_until(_MARK, written.feed)) or not (yield from self._buffer.accept(end)):
            return False
        written.end()
        return True


def render(calls: Sequence[ToolCall], tools: Tools) -> str:
    lines = [_CALLS]
    for call in calls:
        types = types_of(tools.get(call.name))
        body = _render_members(argument_values(call), types.root, types)
        lines.append(f'{_INVOKE} name="{free_of(call.name, *tagged.MARKUP)}">{body}{_INVOKE_END}')
    return "\n".join([*lines, _CALLS_END])


def _render_members(value: dict[str, Any], schema: Any, types: ParameterTypes) -> str:
    return "".join(
        [
            f"{_NS}<{tag_name(key)}>{_render_value(inner, types.parameter(schema, key), types)}{_NS}</{tag_name(key)}>"
            for key, inner in value.items()
        ]
    )


def _render_value(value: Any, schema: Any, types: ParameterTypes) -> str:
    allowed = types.allowed(schema)
    match value:
        case dict():
            # An empty object is written as nothing between its tags, like an empty array or an empty string.
            if (not value and allowed != {OBJECT}) or OBJECT not in allowed:
                raise UnrenderableValue("An empty object cannot be distinguished from an empty string here.")
            return _render_members(value, schema, types)
        case list():
            if (not value and allowed != {ARRAY}) or ARRAY not in allowed:
                raise UnrenderableValue("An empty array cannot be distinguished from an empty string here.")
            return "".join([f"{_NS}<item>{_render_value(one, types.item(schema), types)}{_NS}</item>" for one in value])
        case str() if not isinstance(value, NumberAsWritten):
            if allowed <= {ARRAY, OBJECT} or (allowed != {STRING} and parse_bare(value, allowed) is not None):
                raise UnrenderableValue("The text would be read as another value than a string.")
            return free_of(value, _NS)
        case _:
            if allowed <= {STRING, ARRAY, OBJECT} or parse_bare(json_text(value), allowed) != json_text(value):
                raise UnrenderableValue("The schema does not allow this value.")
            return json_text(value)


SYNTAXES = (Syntax("minimax_m3", fixed_markers(CallMarker(read, _CALLS)), render),)
