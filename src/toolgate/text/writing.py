"""What the writers of all syntaxes share: arguments as text, as members, as Python; knows no marks.

Numbers keep the spelling in which the call has them.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from toolgate.conversation.arguments import as_object, is_object, settled
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.kinds import STRING, kinds, parameter
from toolgate.text.strings import quoted
from toolgate.text.syntax import Unsayable
from toolgate.text.values import typed

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")

_TAG = re.compile(r"[^\s<>/&]+")

DEEPEST = 100
"""Levels of arguments that are read and written where that takes recursion."""

Tools: TypeAlias = Mapping[str, ToolDef]


class Spelt(str):
    """A number as it is written."""

    __slots__ = ()


def arguments(call: ToolCall) -> str:
    """The call's arguments as the JSON text of an object; what is no object is kept under one telling key."""
    text = settled(call.arguments)
    if is_object(text):
        return text
    return msgspec.json.encode(as_object(call.arguments)).decode()


def members(call: ToolCall) -> dict[str, Any]:
    """The call's arguments by name, their numbers as `Spelt`."""
    found: dict[str, Any] = json.loads(arguments(call), parse_int=Spelt, parse_float=Spelt)
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        level = [inner for one in level if isinstance(one, (dict, list)) for inner in _inside(one)]
        if not level:
            return found
    raise Unsayable(f"The arguments are nested deeper than {DEEPEST} levels.")


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def json_text(value: Any, indent: str = "", inner: str = "") -> str:
    """The value as JSON, in one line or, given what to indent by, in many."""
    return _text(value, ("true", "false", "null"), quoted, indent, inner)


def python_text(value: Any, quote: Callable[[str], str] = quoted) -> str:
    """The value as Python writes it."""
    return _text(value, ("True", "False", "None"), quote, "", "")


def _text(value: Any, names: tuple[str, str, str], quote: Callable[[str], str], indent: str, inner: str) -> str:
    match value:
        case Spelt():
            return str(value)
        case str():
            return quote(value)
        case None:
            return names[2]
        case bool():
            return names[0] if value else names[1]
        case list():
            items = [_text(item, names, quote, indent, inner + indent) for item in value]
            return _listed("[", items, "]", indent, inner)
        case dict():
            pairs = [
                f"{quote(key)}: {_text(item, names, quote, indent, inner + indent)}" for key, item in value.items()
            ]
            return _listed("{", pairs, "}", indent, inner)
        case _:
            return str(value)


def _listed(opening: str, items: list[str], closing: str, indent: str, inner: str) -> str:
    if not indent or not items:
        return f"{opening}{', '.join(items)}{closing}"
    between = f",\n{inner}{indent}"
    return f"{opening}\n{inner}{indent}{between.join(items)}\n{inner}{closing}"


def single_quoted(text: str) -> str:
    """The text as a string in single quotes, the way Python prefers."""
    body = quoted(text)[1:-1].replace('\\"', '"').replace("'", "\\'")
    return f"'{body}'"


def ascii_text(text: str) -> str:
    """JSON text with everything beyond ASCII escaped."""
    return _NOT_ASCII.sub(lambda char: json.dumps(char[0])[1:-1], text)


def bare(value: Any, key: str, tool: ToolDef | None, python: bool = False) -> str:
    """The text that tells this value where types come from the schema; `Unsayable` if it would be read as another."""
    schema = tool.input_schema if tool else None
    allowed = kinds(parameter(schema, key), schema)
    if isinstance(value, str) and not isinstance(value, Spelt):
        if allowed != {STRING} and typed(value, allowed) is not None:
            raise Unsayable(f"The text of {key!r} would be read as another value than a string.")
        return str(value)
    written = python_text(value, single_quoted) if python and STRING not in allowed else json_text(value)
    read = typed(written, allowed)
    if read is None or json.loads(read, parse_int=str, parse_float=str) != _plain(value):
        raise Unsayable(f"The schema of {key!r} does not allow the value that it has.")
    return written


def _plain(value: Any) -> Any:
    match value:
        case Spelt():
            return str(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


def without(text: str, *marks: str) -> str:
    """The text, if none of the marks of the syntax stands in it; else `Unsayable`."""
    for mark in marks:
        if mark in text:
            raise Unsayable(f"The syntax has no way to write {mark!r} inside a value.")
    return text


def listed(calls: "list[str]") -> str:
    """Calls as the items of an array in one line."""
    return f"[{', '.join(calls)}]"


def call_object(call: ToolCall, name: str = "name", arguments_key: str = "arguments", **more: str) -> str:
    """A call as a JSON object of name and arguments; `more` stands behind them."""
    rest = "".join([f", {quoted(key)}: {quoted(value)}" for key, value in more.items()])
    return f'{{"{name}": {quoted(call.name)}, "{arguments_key}": {arguments(call)}{rest}}}'


def python_call(call: ToolCall, quote: Callable[[str], str] = quoted) -> str:
    """A call as Python writes it; `Unsayable` if a parameter's name is no name there."""
    given = [f"{identifier(key)}={python_text(value, quote)}" for key, value in members(call).items()]
    return f"{python_name(call.name)}({', '.join(given)})"


def mixed_call(call: ToolCall) -> str:
    """A call whose strings and lists are Python's, but whose objects are JSON."""
    given = [f"{identifier(key)}={_mixed(value)}" for key, value in members(call).items()]
    return f"{python_name(call.name)}({', '.join(given)})"


def _mixed(value: Any) -> str:
    return json_text(value) if isinstance(value, dict) else python_text(value, single_quoted)


def identifier(name: str) -> str:
    """The name, if it can be a keyword."""
    if not re.fullmatch(r"[\w.$-]+", name):
        raise Unsayable(f"{name!r} cannot be a keyword.")
    return name


def python_name(name: str) -> str:
    """The name, if it can stand before parentheses."""
    if not re.fullmatch(r"[\w.:/-]+", name):
        raise Unsayable(f"{name!r} cannot be called.")
    return name


def tag_name(name: str) -> str:
    """The name, if it can be a tag."""
    if not _TAG.fullmatch(name):
        raise Unsayable(f"{name!r} cannot be a tag.")
    return name
