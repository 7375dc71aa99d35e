"""Repair malformed arguments where they can mean only one thing, and describe what is wrong where they cannot.

A repair reports what was changed, and it never invents a value. Brackets are closed only for a model that stopped by itself,
behind a complete value; a string, a key or a comma at the end shows that something is missing.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from toolgate.conversation.arguments import is_object, normalize_arguments
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.call_rendering import argument_values, json_text
from toolgate.text_tools.parsing.input_buffer import InputBuffer
from toolgate.text_tools.parsing.lenient_json import LenientJsonReader
from toolgate.text_tools.parsing.schema_types import ANY, INTEGER, NUMBER, ParameterTypes

# Characters of arguments that are repaired: that goes token by token in Python, while the event loop waits.
LONGEST_REPAIRED = 1 << 20

FENCE_FIX = "the code fence around the arguments was removed"
CLOSERS_FIX = "missing closing brackets were added"
SURPLUS_FIX = "surplus closing brackets were removed"
WRAPPER_FIX = "the arguments were taken out of a wrapper"

_FENCE = re.compile(r"```[a-zA-Z_]*[ \t]*\r?\n(.*?)```", re.DOTALL)
# Some models put the arguments into an object of this name, as the format of a call has it around them.
_WRAPPERS = ("arguments", "parameters", "args", "input", "params")
_EXCERPT = 24  # characters on each side of an error that the model is shown


class RepairedArguments(Struct, frozen=True):
    """Arguments that are a JSON object now, and what was changed."""

    arguments: str
    fixes: tuple[str, ...] = ()


def repair(arguments: str, *, cut: bool = True) -> RepairedArguments | None:
    """Return the arguments as a JSON object; None if that takes a guess. `cut` is false if the model stopped by itself."""
    text = normalize_arguments(arguments)
    if is_object(text):
        return RepairedArguments(text)
    fixes: list[str] = []
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip()
        fixes.append(FENCE_FIX)
    if not text.startswith("{") or len(text) > LONGEST_REPAIRED:
        return None
    buffer, pieces = InputBuffer(), list[str]()
    buffer.push(text)
    buffer.ended = True
    reader = LenientJsonReader(buffer, pieces.append)
    whole = reader.copy_whole()
    fixes += reader.fixes
    rest = buffer.text[buffer.at :].strip()
    if whole and rest and not rest.strip("}] \n\t\r"):  # one bracket too many, behind a complete object
        fixes.append(SURPLUS_FIX)
    elif not whole and not rest and not cut and reader.past_value:
        fixes.append(CLOSERS_FIX)
        pieces += ["}" if closer == "}" else "]" for closer in reversed(reader.open)]  # a tuple's `)` became `]`
    elif not whole or rest:
        return None
    repaired = "".join(pieces)
    return RepairedArguments(repaired, tuple(fixes)) if is_object(repaired) else None


def unwrap(arguments: str, tool: ToolDef) -> RepairedArguments | None:
    """Return the object inside `{"arguments": {…}}` and the like, if the tool has no parameter of that name."""
    declared = (tool.input_schema or {}).get("properties")
    if not isinstance(declared, Mapping) or not is_object(normalize_arguments(arguments)):
        return None
    match list(argument_values(ToolCall("", tool.name, arguments)).items()):
        case [(str(name), dict(inner))] if name in _WRAPPERS and name not in declared:
            return RepairedArguments(json_text(inner), (WRAPPER_FIX,))
    return None


def describe_problem(name: str, arguments: str, tool: ToolDef | None = None, reason: str = "") -> str:
    """Return the message to a model whose call cannot be run: what is wrong, where, and what the tool takes."""
    problem = reason or _find_problem(arguments)
    parameters = f" {_describe_parameters(tool)}" if tool else ""
    return (
        f"Your call of {name} was not run, because {problem}. "
        f"Write the whole call again in the same format, with nothing left out.{parameters}"
    )


def _find_problem(arguments: str) -> str:
    """Return what is wrong with the arguments, and where."""
    text = normalize_arguments(arguments)
    try:
        found: Any = json.loads(text, parse_int=str, parse_float=str)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - _EXCERPT) : error.pos + _EXCERPT]
        return f"its arguments are not valid JSON: {error.msg.lower()} at character {error.pos + 1}, near {near!r}"
    except RecursionError:
        return "its arguments are nested too deeply"
    kind = "array" if isinstance(found, list) else "single value"
    return f"its arguments are a JSON {kind} and not an object" if not isinstance(found, dict) else "it is incomplete"


def _describe_parameters(tool: ToolDef) -> str:
    """Return the parameters of a tool in one sentence."""
    schema = tool.input_schema or {}
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return (
            f"{tool.name} takes no arguments: write an empty object."
            if schema
            else "Its arguments are one JSON object."
        )
    required, types = schema.get("required") or (), ParameterTypes(schema)
    described: list[str] = []
    for name, one in properties.items():
        allowed = types.allowed(one)
        if NUMBER in allowed:  # includes integers, which need not be named beside it
            allowed -= {INTEGER}
        type_names = "any" if types.allowed(one) == ANY else " or ".join(sorted(allowed))
        described.append(f"{name} ({type_names}{', required' if name in required else ''})")
    return f"Its arguments are: {', '.join(described)}."
