"""The arguments of a call, read and checked against the tool's schema before anything runs.

No argument is ever guessed, completed or dropped: what does not fit goes back to the model in precise words.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Any

import jsonschema_rs
import msgspec
from msgspec import Struct

from toolgate.tools.schema import DRAFT_7, closed
from toolgate.tools.schema_cost import SchemaCost, TooComplex
from toolgate.tools.tool import BadArguments, ToolSpec

LONGEST = 256 * 1024
MAX_DEPTH = 128
MAX_EVALUATIONS = 2_000_000
"""Subschemas that may be tried on one call's arguments; a million of them take some 20 ms."""

_REMEMBERED_BYTES = 32 * 1024 * 1024
_SHOWN = 5
_EXPLAINED = 2_000_000  # each error copies what it is about: evaluations times characters for which errors are listed
_BACKTRACKS = 10_000
_PATTERN_BYTES = 256 * 1024
_AT_ONCE = 16 * 1024  # characters of arguments that the loop reads itself


class _Compiled(Struct, frozen=True):
    """A schema ready to be checked against, what it costs, and how large it is."""

    schema: Mapping[str, Any]
    validator: jsonschema_rs.Validator
    cost: SchemaCost
    size: int


class ArgumentCheck:
    """Checks arguments; keeps the compiled schemas of the tool definitions it has met last."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[int, _Compiled] = OrderedDict()
        self._size = 0

    async def read(self, spec: ToolSpec, text: str) -> dict[str, Any]:
        """The arguments in the text; BadArguments says what is wrong with them. What may take long runs in a thread."""
        known = self._known(spec)
        if known is not None and len(text) <= _AT_ONCE and _evaluations(known.cost, text) <= MAX_EVALUATIONS // 10:
            return _read(spec, known, text)
        if known is None:
            known = await asyncio.to_thread(_compile, spec)
            self._remember(known)
        return await asyncio.to_thread(_read, spec, known, text)

    def _known(self, spec: ToolSpec) -> _Compiled | None:
        found = self._compiled.get(id(spec.input_schema))
        return found if found is not None and found.schema is spec.input_schema else None

    def _remember(self, compiled: _Compiled) -> None:
        old = self._compiled.pop(id(compiled.schema), None)
        self._compiled[id(compiled.schema)] = compiled
        self._size += compiled.size - (old.size if old is not None else 0)
        while self._size > _REMEMBERED_BYTES and len(self._compiled) > 1:
            self._size -= self._compiled.popitem(last=False)[1].size


def _read(spec: ToolSpec, compiled: _Compiled, text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise BadArguments(f"The arguments of {spec.name} are longer than {LONGEST} characters; nothing was run.")
    arguments = _object(spec, text)
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deeper(arguments, MAX_DEPTH):
        raise BadArguments(f"The arguments of {spec.name} are nested deeper than {MAX_DEPTH} levels; nothing was run.")
    evaluations = _evaluations(compiled.cost, text)
    if evaluations > MAX_EVALUATIONS:
        evaluations = compiled.cost.evaluations(arguments, MAX_EVALUATIONS)
    if evaluations > MAX_EVALUATIONS:
        raise BadArguments(
            f"Checking the arguments of {spec.name} against its schema would take too long; nothing was run. "
            "Shorter or less deeply nested arguments can be checked."
        )
    if not compiled.validator.is_valid(arguments):
        raise BadArguments(
            f"The arguments of {spec.name} do not fit its schema; nothing was run:\n{_explained(compiled, arguments, text)}"
        )
    return arguments


def _evaluations(cost: SchemaCost, text: str) -> int:
    """An upper limit that takes no time to find; where it says too much, counting may say less."""
    if cost.recursive or cost.backtracks:
        return MAX_EVALUATIONS + 1
    values = 1 + text.count(",") + text.count("[") + text.count("{") + len(text) // 64
    return cost.width * values


def _explained(compiled: _Compiled, arguments: Mapping[str, Any], text: str) -> str:
    """What is wrong; of large arguments, or after much work, only what can be seen at once."""
    most = _EXPLAINED // len(text)
    if compiled.cost.evaluations(arguments, most) > most:
        required, fields = compiled.schema.get("required"), compiled.schema.get("properties")
        missing = [name for name in required if name not in arguments] if isinstance(required, list) else []
        strange = [name for name in arguments if name not in fields] if isinstance(fields, dict) else []
        seen = [f"- {name!r} is required" for name in missing] + [
            f"- {name[:80]!r} is not declared" for name in strange
        ]
        return "\n".join([*seen[:_SHOWN], "- there is too much of them to say where everything is wrong"])
    errors = [
        f"- {_place(error)[:300]}: {error.message[:300]}"
        for error in islice(compiled.validator.iter_errors(arguments), _SHOWN + 1)
    ]
    return "\n".join([*errors[:_SHOWN], *(["- and more"] if len(errors) > _SHOWN else [])])


def _compile(spec: ToolSpec) -> _Compiled:
    """A validator that opens nothing and takes no long thought; fields that nobody declared are refused."""
    schema = closed(spec.input_schema)
    try:
        cost = SchemaCost(schema)
    except TooComplex as reason:
        raise BadArguments(f"{spec.name} cannot be called: its schema {reason}; nothing was run.") from None
    size = len(msgspec.json.encode(schema)) * 8 + cost.patterns * _PATTERN_BYTES
    failure = ""
    # Patterns that look around cannot be matched in linear time: they give up soon instead.
    for patterns in (
        jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
        jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACKS, size_limit=_PATTERN_BYTES),
    ):
        for draft in ({}, {"$schema": DRAFT_7}) if "$schema" not in schema else ({},):
            try:
                validator = jsonschema_rs.validator_for({**schema, **draft}, pattern_options=patterns, offline=True)
                return _Compiled(spec.input_schema, validator, cost, size)
            except (ValueError, jsonschema_rs.ReferencingError) as error:
                failure = failure or str(error).partition("\n")[0][:200]
    raise BadArguments(f"{spec.name} cannot be called: its schema cannot be checked ({failure}); nothing was run.")


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


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
