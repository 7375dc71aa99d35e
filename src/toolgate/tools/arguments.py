"""The arguments of a call, read and checked against the tool's schema before anything runs.

No argument is ever guessed, completed or dropped: what does not fit goes back to the model in precise words.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import msgspec

from toolgate.tools.schema import DRAFT_7, DRAFTS
from toolgate.tools.tool import BadArguments, ToolSpec

LONGEST = 256 * 1024
_REMEMBERED = 8192
_SHOWN = 5
_BACKTRACKS = 10_000
_SAID = ("additionalProperties", "unevaluatedProperties")
_ELSEWHERE = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas")
"""Where fields may be declared beside `properties`."""


class ArgumentCheck:
    """Checks arguments; keeps the compiled schema of each tool definition it has met."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[int, tuple[Mapping[str, Any], jsonschema_rs.Validator]] = OrderedDict()

    def read(self, spec: ToolSpec, text: str) -> dict[str, Any]:
        """The arguments in the text; BadArguments says what is wrong with them."""
        if len(text) > LONGEST:
            raise BadArguments(f"The arguments of {spec.name} are longer than {LONGEST} characters; nothing was run.")
        arguments = _object(spec, text)
        complaints = [
            f"- {_place(error)}: {error.message[:300]}" for error in self._validator(spec).iter_errors(arguments)
        ]
        if complaints:
            shown = "\n".join([*complaints[:_SHOWN], *(["- and more"] if len(complaints) > _SHOWN else [])])
            raise BadArguments(f"The arguments of {spec.name} do not fit its schema; nothing was run:\n{shown}")
        return arguments

    def _validator(self, spec: ToolSpec) -> jsonschema_rs.Validator:
        schema = spec.input_schema
        key = id(schema)
        found = self._compiled.get(key)
        if found is None or found[0] is not schema:
            found = self._compiled[key] = (schema, _compile(spec))
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        return found[1]


def _compile(spec: ToolSpec) -> jsonschema_rs.Validator:
    """A validator that opens nothing and takes no long thought; fields that nobody declared are refused."""
    closed = {name: value for name, value in spec.input_schema.items() if name != "$schema" or value in DRAFTS}
    if not any(word in closed for word in _SAID):
        if not any(word in closed for word in _ELSEWHERE):
            closed |= {"additionalProperties": False} if "properties" in closed else {}
        elif b'"properties":' in msgspec.json.encode(closed):  # where no field is declared at all, any is welcome
            closed["unevaluatedProperties"] = False
    failure = ""
    # Patterns that look around cannot be matched in linear time: they give up soon instead.
    for patterns in (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS)):
        for draft in ({}, {"$schema": DRAFT_7}) if "$schema" not in closed else ({},):
            try:
                return jsonschema_rs.validator_for({**closed, **draft}, pattern_options=patterns, offline=True)
            except (ValueError, jsonschema_rs.ReferencingError) as error:
                failure = failure or str(error).partition("\n")[0][:200]
    raise BadArguments(f"{spec.name} cannot be called: its schema cannot be checked ({failure}); nothing was run.")


def _object(spec: ToolSpec, text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.ValidationError:
        value = _with_large_numbers(spec, text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _not_json(spec, str(error)) from None
    if type(value) is not dict:
        raise BadArguments(f"The arguments of {spec.name} must be one JSON object; nothing was run.")
    return value


def _with_large_numbers(spec: ToolSpec, text: str) -> Any:
    """JSON whose numbers no machine type holds."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _not_json(spec, str(error)) from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _not_json(spec: ToolSpec, why: str) -> BadArguments:
    return BadArguments(f"The arguments of {spec.name} are not valid JSON ({why[:200]}); nothing was run.")


def _place(error: jsonschema_rs.ValidationError) -> str:
    return "/".join([str(step) for step in error.instance_path]) or "the arguments"
