"""MiniMax-M3: every tag stands behind a token of its own; objects nest as tags, arrays are tags called `item`."""

import re
from collections.abc import Sequence
from typing import Any

from toolgate.conversation.message import ToolCall
from toolgate.text.bodies import tagged
from toolgate.text.kinds import ARRAY, OBJECT, STRING, item, kinds, parameter
from toolgate.text.reading import Call, Reading
from toolgate.text.source import Steps, words
from toolgate.text.strings import quoted
from toolgate.text.syntax import Opener, Syntax, Unsayable, always
from toolgate.text.values import Value, typed
from toolgate.text.writing import DEEPEST, Spelt, Tools, json_text, members, tag_name, without

_NS = "]<]minimax[>["
_CALLS, _CALLS_END = f"{_NS}<tool_call>", f"{_NS}</tool_call>"
_INVOKE, _INVOKE_END = f"{_NS}<invoke", f"{_NS}</invoke>"
_TAG = re.compile(r"[^<>/]*")
_MARK = words(_NS)
_BROKEN = "the tags of the arguments do not match"


def _read(reading: Reading, opened: str) -> Steps[None]:
    source = reading.source
    yield from source.blanks()
    while (yield from source.word(_INVOKE)):
        attributes = yield from tagged.header(reading)
        name = attributes.get("name") if attributes else None
        begun = reading.begin(name) if name else None
        if not begun or not name:
            return
        schema = begun.tool.input_schema if begun.tool else {}
        whole = yield from _Members(reading, begun, schema or {}).object(schema or {}, _INVOKE_END)
        if not whole:
            yield from reading.broken(begun, name, _BROKEN, _INVOKE_END)
            yield from source.word(_INVOKE_END)
        begun.end()
        yield from source.blanks()
    yield from reading.close(_CALLS_END)


class _Members:
    """Reads nested tags as JSON."""

    def __init__(self, reading: Reading, call: Call, root: Any) -> None:
        self._source = reading.source
        self._call = call
        self._root = root
        self._depth = 0

    def object(self, schema: Any, end: str) -> Steps[bool]:
        """Reads members up to the mark that ends them; False if their tags do not match."""
        first = True
        self._call.raw("{")
        while True:
            yield from self._source.blanks()
            if (yield from self._source.word(end)):
                self._call.raw("}")
                return True
            tag = yield from self._open()
            if tag is None:
                return False
            self._call.raw(f"{'' if first else ','}{quoted(tag)}:")
            first = False
            if not (yield from self._value(parameter(schema, tag, self._root), f"{_NS}</{tag}>")):
                return False

    def _array(self, schema: Any, end: str) -> Steps[bool]:
        first = True
        self._call.raw("[")
        while True:
            yield from self._source.blanks()
            if (yield from self._source.word(end)):
                self._call.raw("]")
                return True
            if (yield from self._open()) != "item":
                return False
            self._call.raw("" if first else ",")
            first = False
            if not (yield from self._value(item(schema, self._root), f"{_NS}</item>")):
                return False

    def _open(self) -> Steps[str | None]:
        if not (yield from self._source.word(f"{_NS}<")):
            return None
        tag = yield from self._source.run(_TAG)
        return tag if tag and (yield from self._source.word(">")) else None

    def _value(self, schema: Any, end: str) -> Steps[bool]:
        allowed = kinds(schema, self._root)
        nested = yield from self._source.followed(0, (f"{_NS}<",))
        nested = nested and not (yield from self._source.followed(0, (f"{_NS}</",)))
        if nested or (STRING not in allowed and allowed <= {ARRAY, OBJECT}):
            is_array = yield from self._is_array(allowed)
            yield from self._source.blanks()
            self._depth += 1
            if self._depth > DEEPEST:
                return False
            whole = yield from (self._array if is_array else self.object)(schema, end)
            self._depth -= 1
            return whole
        written = Value(self._call, allowed)
        if not (yield from self._source.until(_MARK, written.feed)) or not (yield from self._source.word(end)):
            return False
        written.end()
        return True

    def _is_array(self, allowed: frozenset[str]) -> Steps[bool]:
        """Whether the tags that come next are items: by the schema or, where it allows both, by their name."""
        if (ARRAY in allowed) != (OBJECT in allowed):
            return ARRAY in allowed
        return (yield from self._source.followed(0, (f"{_NS}<item>",)))


def _render(calls: Sequence[ToolCall], tools: Tools) -> str:
    lines = [_written(call, tools) for call in calls]
    return "\n".join([_CALLS, *lines, _CALLS_END])


def _written(call: ToolCall, tools: Tools) -> str:
    tool = tools.get(call.name)
    schema = (tool.input_schema if tool else None) or {}
    body = _tags(members(call), schema, schema)
    return f'{_INVOKE} name="{without(call.name, *tagged.MARKUP)}">{body}{_INVOKE_END}'


def _tags(value: dict[str, Any], schema: Any, root: Any) -> str:
    return "".join(
        [
            f"{_NS}<{tag_name(key)}>{_text(inner, parameter(schema, key, root), root)}{_NS}</{tag_name(key)}>"
            for key, inner in value.items()
        ]
    )


def _text(value: Any, schema: Any, root: Any) -> str:
    allowed = kinds(schema, root)
    match value:
        case dict():
            if (not value and allowed != {OBJECT}) or OBJECT not in allowed:
                raise Unsayable("An empty object cannot be told from an empty string here.")
            return _tags(value, schema, root)
        case list():
            if (not value and allowed != {ARRAY}) or ARRAY not in allowed:
                raise Unsayable("An empty array cannot be told from an empty string here.")
            return "".join([f"{_NS}<item>{_text(one, item(schema, root), root)}{_NS}</item>" for one in value])
        case str() if not isinstance(value, Spelt):
            if allowed <= {ARRAY, OBJECT} or (allowed != {STRING} and typed(value, allowed) is not None):
                raise Unsayable("The text would be read as another value than a string.")
            return without(value, _NS)
        case _:
            if allowed <= {STRING, ARRAY, OBJECT} or typed(json_text(value), allowed) != json_text(value):
                raise Unsayable("The schema does not allow this value.")
            return json_text(value)


SYNTAXES = (Syntax("minimax_m3", always(Opener(_read, _CALLS)), _render),)
