"""Parse the arguments of a call and check them against the tool's schema before anything runs.

No argument is ever guessed, completed or dropped: the model receives a precise error instead.
"""

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Any

import jsonschema_rs
import msgspec
from msgspec import Struct

from toolgate.tools.schema_check import DRAFT_7, closed_schema
from toolgate.tools.schema_complexity import SchemaComplexity, SchemaTooComplex
from toolgate.tools.tool import InvalidArguments, ServerToolDefinition

MAX_ARGUMENTS = 256 * 1024
# The validator recurses into the arguments, and its stack is finite.
MAX_DEPTH = 128
# Subschemas that may be tried on one call's arguments; a million of them take some 20 ms.
MAX_EVALUATIONS = 2_000_000

_MAX_CACHED_BYTES = 32 * 1024 * 1024
_MAX_ERRORS = 5
# Evaluations times characters up to which errors are listed. Each error copies its value, so that a list of
# all errors can take gigabytes where the check itself takes little.
_MAX_ERROR_WORK = 2_000_000
_MAX_BACKTRACKS = 10_000
_PATTERN_BYTES = 256 * 1024
# Characters of arguments above which a thread parses them, so that the event loop goes on.
_MAX_ON_LOOP = 16 * 1024


class _Compiled(Struct, frozen=True):
    """The validator of a schema, what checking costs, and how large the validator is."""

    schema: Mapping[str, Any]
    validator: jsonschema_rs.Validator
    cost: SchemaComplexity
    size: int


class ArgumentValidator:
    """Checks arguments, and caches the compiled schemas of the tools that were called last."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[int, _Compiled] = OrderedDict()
        self._size = 0

    async def read(self, spec: ServerToolDefinition, text: str) -> dict[str, Any]:
        """Parse and check the arguments, in a thread if that may take long; InvalidArguments names the mistakes."""
        # The id of the schema is a key without the cost of a digest. It can be used again by another object,
        # so that the schema itself is compared, too.
        compiled = self._compiled.get(id(spec.input_schema))
        if compiled is None or compiled.schema is not spec.input_schema:
            compiled = await asyncio.to_thread(_compile, spec)
            old = self._compiled.pop(id(compiled.schema), None)
            self._compiled[id(compiled.schema)] = compiled
            self._size += compiled.size - (old.size if old is not None else 0)
            while self._size > _MAX_CACHED_BYTES and len(self._compiled) > 1:
                self._size -= self._compiled.popitem(last=False)[1].size
        elif len(text) <= _MAX_ON_LOOP and _evaluations(compiled.cost, text) <= MAX_EVALUATIONS // 10:
            return _parse(spec, compiled, text)
        return await asyncio.to_thread(_parse, spec, compiled, text)


def _parse(spec: ServerToolDefinition, compiled: _Compiled, text: str) -> dict[str, Any]:
    if len(text) > MAX_ARGUMENTS:
        raise InvalidArguments(
            f"The arguments of {spec.name} are longer than {MAX_ARGUMENTS} characters; nothing was run."
        )
    arguments = _object(spec, text)
    # Few arguments have so many brackets, and the others cannot be too deep.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        level: list[Any] = [arguments]
        for _ in range(MAX_DEPTH):
            below = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
            level = [inner for inner in below if isinstance(inner, (dict, list))]
        if level:
            raise InvalidArguments(
                f"The arguments of {spec.name} are nested deeper than {MAX_DEPTH} levels; nothing was run."
            )
    # The exact count walks through the arguments, so that it is made only where the estimate is too high.
    evaluations = _evaluations(compiled.cost, text)
    if evaluations > MAX_EVALUATIONS:
        evaluations = compiled.cost.evaluations(arguments, MAX_EVALUATIONS)
    if evaluations > MAX_EVALUATIONS:
        raise InvalidArguments(
            f"Checking the arguments of {spec.name} against its schema would take too long; nothing was run. "
            "Shorter or less deeply nested arguments can be checked."
        )
    if not compiled.validator.is_valid(arguments):
        raise InvalidArguments(
            f"The arguments of {spec.name} do not fit its schema; nothing was run:\n{_errors(compiled, arguments, text)}"
        )
    return arguments


def _evaluations(cost: SchemaComplexity, text: str) -> int:
    """Estimate the evaluations from above at no cost; counting them exactly may give less."""
    if cost.recursive or cost.backtracks:  # then no width holds for every value
        return MAX_EVALUATIONS + 1
    # Every value but the first follows a comma or an opening bracket. Long text counts as more than one value,
    # because patterns read all of it.
    values = 1 + text.count(",") + text.count("[") + text.count("{") + len(text) // 64
    return cost.width * values


def _errors(compiled: _Compiled, arguments: Mapping[str, Any], text: str) -> str:
    """List what is wrong; where listing all would take long, only missing and undeclared fields."""
    limit = _MAX_ERROR_WORK // len(text)
    if compiled.cost.evaluations(arguments, limit) > limit:
        required, fields = compiled.schema.get("required"), compiled.schema.get("properties")
        missing = [name for name in required if name not in arguments] if isinstance(required, list) else []
        undeclared = [name for name in arguments if name not in fields] if isinstance(fields, dict) else []
        errors = [f"- {name!r} is required" for name in missing]
        errors += [f"- {name[:80]!r} is not declared" for name in undeclared]
        return "\n".join([*errors[:_MAX_ERRORS], "- there is too much of them to say where everything is wrong"])
    errors = []
    for error in islice(compiled.validator.iter_errors(arguments), _MAX_ERRORS + 1):
        path = "/".join([str(step) for step in error.instance_path]) or "the arguments"
        errors.append(f"- {path[:300]}: {error.message[:300]}")
    return "\n".join([*errors[:_MAX_ERRORS], *(["- and more"] if len(errors) > _MAX_ERRORS else [])])


def _compile(spec: ServerToolDefinition) -> _Compiled:
    """Compile a validator that opens no files or connections, takes bounded time and refuses undeclared fields."""
    schema = closed_schema(spec.input_schema)
    try:
        cost = SchemaComplexity(schema)
    except SchemaTooComplex as reason:
        raise InvalidArguments(f"{spec.name} cannot be called: its schema {reason}; nothing was run.") from None
    # An estimate: the compiled schema takes several times the memory of its JSON.
    size = len(msgspec.json.encode(schema)) * 8 + cost.patterns * _PATTERN_BYTES
    failure = ""
    # Patterns with look-around cannot be matched in linear time; their backtracking is limited instead.
    for patterns in (
        jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
        jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS, size_limit=_PATTERN_BYTES),
    ):
        # Without a `$schema` the newest draft is tried first; `"items": [...]`, for one, is valid in draft 7 alone.
        for draft in ({}, {"$schema": DRAFT_7}) if "$schema" not in schema else ({},):
            try:
                validator = jsonschema_rs.validator_for({**schema, **draft}, pattern_options=patterns, offline=True)
                return _Compiled(spec.input_schema, validator, cost, size)
            except (ValueError, jsonschema_rs.ReferencingError) as error:
                failure = failure or str(error).partition("\n")[0][:200]
    raise InvalidArguments(f"{spec.name} cannot be called: its schema cannot be checked ({failure}); nothing was run.")


def _object(spec: ServerToolDefinition, text: str) -> dict[str, Any]:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    def refuse_constant(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def finite(number: str) -> float:
        if math.isinf(value := float(number)):  # which would be encoded as null for the tool
            raise ValueError(f"{number[:40]} is beyond the range of numbers")
        return value

    try:
        try:
            value = msgspec.json.decode(text)
        except msgspec.ValidationError:  # a number that no machine type can hold; Python's integers can
            value = json.loads(text, parse_float=finite, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        why = str(error)[:200]
        raise InvalidArguments(f"The arguments of {spec.name} are not valid JSON ({why}); nothing was run.") from None
    if type(value) is not dict:
        raise InvalidArguments(f"The arguments of {spec.name} must be one JSON object; nothing was run.")
    return value
