"""Malformed arguments, mended where they can mean only one thing, and the words to ask again with where they cannot.

A repair is honest: it tells what was changed, and it never invents a value. Brackets are closed only for a model that
stopped by itself, behind a value that is whole; a string, a key or a comma at the end shows that something is missing.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from toolgate.conversation.arguments import is_object, settled
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text.kinds import ANY, kinds
from toolgate.text.literal import Literal
from toolgate.text.source import Source
from toolgate.text.writing import json_text, members

MOST = 1 << 20
"""Characters that are looked at; longer arguments are not worth mending."""

FENCE_FIX = "the code fence around the arguments was removed"
CLOSERS_FIX = "missing closing brackets were added"
SURPLUS_FIX = "surplus closing brackets were removed"
WRAPPER_FIX = "the arguments were taken out of a wrapper"

_FENCE = re.compile(r"```[a-zA-Z_]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_WRAPPERS = ("arguments", "parameters", "args", "input", "params")
_EXCERPT = 24


class Repair(Struct, frozen=True):
    """Arguments that are a JSON object now, and what was done to them, in words."""

    arguments: str
    fixes: tuple[str, ...] = ()


def repair(arguments: str, *, cut: bool = True) -> Repair | None:
    """The arguments as a JSON object; None if that would take a guess. `cut` unless the model stopped by itself."""
    text = settled(arguments)
    if is_object(text):
        return Repair(text)
    fixes: list[str] = []
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip()
        fixes.append(FENCE_FIX)
    if not text.startswith("{") or len(text) > MOST:
        return None
    mended = _mended(text, fixes, cut)
    return Repair(mended, tuple(fixes)) if mended is not None and is_object(mended) else None


def unwrapped(arguments: str, tool: ToolDef) -> Repair | None:
    """The object inside `{"arguments": {…}}` and the like, where the tool has no parameter of that name; None otherwise."""
    declared = (tool.input_schema or {}).get("properties")
    if not isinstance(declared, Mapping) or not is_object(settled(arguments)):
        return None
    match list(members(ToolCall("", tool.name, arguments)).items()):
        case [(str(name), dict(inner))] if name in _WRAPPERS and name not in declared:
            return Repair(json_text(inner), (WRAPPER_FIX,))
    return None


def complaint(name: str, arguments: str, tool: ToolDef | None = None, reason: str = "") -> str:
    """What to tell a model whose call cannot be run: what is wrong, where, and what is wanted."""
    wrong = reason or _fault(arguments)
    wanted = f" {_wanted(tool)}" if tool else ""
    return (
        f"Your call of {name} was not run, because {wrong}. "
        f"Write the whole call again in the same format, with nothing left out.{wanted}"
    )


def _mended(text: str, fixes: list[str], cut: bool) -> str | None:
    """The text as JSON, if it can be mended; adds to the fixes."""
    source, pieces = Source(), list[str]()
    source.push(text)
    source.ended = True
    literal = Literal(source, pieces.append)
    whole = _run(literal)
    fixes += literal.fixes
    rest = source.text[source.at :].strip()
    if whole and rest and not rest.strip("}] \n\t\r"):
        fixes.append(SURPLUS_FIX)
        return "".join(pieces)
    if whole or rest or cut or not literal.past_value:
        return "".join(pieces) if whole and not rest else None
    fixes.append(CLOSERS_FIX)
    return "".join([*pieces, *["}" if closer == "}" else "]" for closer in reversed(literal.open)]])


def _run(literal: Literal) -> bool:
    copying = literal.copy()
    try:
        next(copying)
    except StopIteration as stop:
        return bool(stop.value)
    raise AssertionError("a source that has ended keeps no reader waiting")


def _fault(arguments: str) -> str:
    """What is wrong with the arguments, and where."""
    text = settled(arguments)
    try:
        found: Any = json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _EXCERPT) : error.pos + _EXCERPT]
        return f"its arguments are not valid JSON: {error.msg.lower()} at character {error.pos + 1}, near {near!r}"
    except RecursionError:
        return "its arguments are nested too deeply"
    kind = "array" if isinstance(found, list) else "single value"
    return f"its arguments are a JSON {kind} and not an object" if not isinstance(found, dict) else "it is incomplete"


def _wanted(tool: ToolDef) -> str:
    """The parameters of a tool in one sentence."""
    schema = tool.input_schema or {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return (
            f"{tool.name} takes no arguments: write an empty object."
            if schema
            else "Its arguments are one JSON object."
        )
    required = schema.get("required") or ()
    each = [
        f"{name} ({_kind(one, schema)}{', required' if name in required else ''})" for name, one in properties.items()
    ]
    return f"Its arguments are: {', '.join(each)}."


def _kind(schema: Any, root: Any) -> str:
    allowed = kinds(schema, root)
    return "any" if allowed == ANY else " or ".join(sorted(allowed - ({"integer"} if "number" in allowed else set())))
