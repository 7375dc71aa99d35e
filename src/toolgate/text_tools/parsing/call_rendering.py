"""Render arguments and calls as text: as JSON, as bare values, as Python. Shared by all syntaxes; knows no marks.

Numbers keep the spelling that they have in the call.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from toolgate.conversation.arguments import arguments_object, is_object, normalize_arguments
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.bare_values import parse_bare
from toolgate.text_tools.parsing.escape_json_string import quoted
from toolgate.text_tools.parsing.schema_types import STRING, ParameterTypes
from toolgate.text_tools.parsing.syntax import UnrenderableValue

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_TAG = re.compile(r"[^\s<>/&]+")

MAX_DEPTH = 100  # levels of nested arguments that are read and written where that takes recursion

Tools: TypeAlias = Mapping[str, ToolDef]


class NumberAsWritten(str):
    """A number, spelled as in the call."""

    __slots__ = ()


def argument_json(call: ToolCall) -> str:
    """Return the call's arguments as the JSON text of an object; what is no object is wrapped in one."""
    text = normalize_arguments(call.arguments)
    if is_object(text):
        return text
    return msgspec.json.encode(arguments_object(call.arguments)).decode()


def argument_values(call: ToolCall) -> dict[str, Any]:
    """Return the call's arguments by name, their numbers as `NumberAsWritten`."""
    found: dict[str, Any] = json.loads(argument_json(call), parse_int=NumberAsWritten, parse_float=NumberAsWritten)
    # Level by level, without recursion: arguments that are nested too deeply must not exhaust the stack.
    level: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        objects = [one.values() for one in level if isinstance(one, dict)]
        arrays = [one for one in level if isinstance(one, list)]
        level = [inner for values in (*objects, *arrays) for inner in values]
        if not level:
            return found
    raise UnrenderableValue(f"The arguments are nested deeper than {MAX_DEPTH} levels.")


def json_text(value: Any, indent: str = "", inner: str = "") -> str:
    """Render the value as JSON, in one line or, given an indentation, in many."""
    return _text(value, ("true", "false", "null"), quoted, indent, inner)


def python_text(value: Any, quote: Callable[[str], str] = quoted) -> str:
    """Render the value as a Python literal."""
    return _text(value, ("True", "False", "None"), quote, "", "")


def _text(value: Any, names: tuple[str, str, str], quote: Callable[[str], str], indent: str, inner: str) -> str:
    match value:
        case NumberAsWritten():
            return str(value)
        case str():
            return quote(value)
        case None:
            return names[2]
        case bool():
            return names[0] if value else names[1]
        case list():
            items = [_text(item, names, quote, indent, inner + indent) for item in value]
            return _container_text("[", items, "]", indent, inner)
        case dict():
            pairs = [
                f"{quote(key)}: {_text(item, names, quote, indent, inner + indent)}" for key, item in value.items()
            ]
            return _container_text("{", pairs, "}", indent, inner)
        case _:
            return str(value)


def _container_text(opening: str, items: list[str], closing: str, indent: str, inner: str) -> str:
    if not indent or not items:
        return f"{opening}{', '.join(items)}{closing}"
    between = f",\n{inner}{indent}"
    return f"{opening}\n{inner}{indent}{between.join(items)}\n{inner}{closing}"


def single_quoted(text: str) -> str:
    """Render the text as a string in single quotes, as Python prefers."""
    # The escapes of JSON are Python's as well; only the quotes differ.
    body = quoted(text)[1:-1].replace('\\"', '"').replace("'", "\\'")
    return f"'{body}'"


def ascii_text(text: str) -> str:
    """Escape everything beyond ASCII in a JSON text."""
    return _NOT_ASCII.sub(lambda char: json.dumps(char[0])[1:-1], text)


def bare_text(value: Any, key: str, types: ParameterTypes, python: bool = False) -> str:
    """Render a value whose type the schema gives; `UnrenderableValue` if it would be read back as another value."""
    allowed = types.of(key)
    # Between tags the string "5" looks like the number 5: what reads it back has only the schema to go by.
    if isinstance(value, str) and not isinstance(value, NumberAsWritten):
        if allowed != {STRING} and parse_bare(value, allowed) is not None:
            raise UnrenderableValue(f"The text of {key!r} would be read as another value than a string.")
        return str(value)
    written = python_text(value, single_quoted) if python and STRING not in allowed else json_text(value)
    # Read back as the parser will: a number in place of a declared boolean, for example, would become a string.
    read = parse_bare(written, allowed)
    if read is None or json.loads(read, parse_int=str, parse_float=str) != _plain(value):
        raise UnrenderableValue(f"The schema of {key!r} does not allow the value that it has.")
    return written


def _plain(value: Any) -> Any:
    match value:
        case NumberAsWritten():
            return str(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


def free_of(text: str, *marks: str) -> str:
    """Return the text, which must not contain any of the marks of the syntax; else `UnrenderableValue`."""
    for mark in marks:
        if mark in text:
            raise UnrenderableValue(f"The syntax has no way to write {mark!r} inside a value.")
    return text


def json_array(calls: "list[str]") -> str:
    """Join calls as the items of an array in one line."""
    return f"[{', '.join(calls)}]"


def call_object(call: ToolCall, name: str = "name", arguments_key: str = "arguments", **more: str) -> str:
    """Render a call as a JSON object of name and arguments, with the fields of `more` behind them."""
    rest = "".join([f", {quoted(key)}: {quoted(value)}" for key, value in more.items()])
    return f'{{"{name}": {quoted(call.name)}, "{arguments_key}": {argument_json(call)}{rest}}}'


def python_call(call: ToolCall, quote: Callable[[str], str] = quoted) -> str:
    """Render a call as in Python; `UnrenderableValue` if a parameter's name is no identifier there."""
    given = [f"{identifier(key)}={python_text(value, quote)}" for key, value in argument_values(call).items()]
    return f"{python_name(call.name)}({', '.join(given)})"


def mixed_call(call: ToolCall) -> str:
    """Render a call with strings and lists as in Python, but objects as JSON."""
    texts = {
        key: json_text(value) if isinstance(value, dict) else python_text(value, single_quoted)
        for key, value in argument_values(call).items()
    }
    given = [f"{identifier(key)}={text}" for key, text in texts.items()]
    return f"{python_name(call.name)}({', '.join(given)})"


def identifier(name: str) -> str:
    """Return the name if it can be a keyword argument; else `UnrenderableValue`."""
    if not re.fullmatch(r"[\w.$-]+", name):
        raise UnrenderableValue(f"{name!r} cannot be a keyword argument.")
    return name


def python_name(name: str) -> str:
    """Return the name if it can stand before parentheses; else `UnrenderableValue`."""
    if not re.fullmatch(r"[\w.:/-]+", name):
        raise UnrenderableValue(f"{name!r} cannot be called.")
    return name


def tag_name(name: str) -> str:
    """Return the name if it can be a tag; else `UnrenderableValue`."""
    if not _TAG.fullmatch(name):
        raise UnrenderableValue(f"{name!r} cannot be a tag.")
    return name
