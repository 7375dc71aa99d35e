"""Turn a type hint into JSON Schema for the model, and convert the model's values to the hinted type.

msgspec does both. This adds what it leaves out: refusing undeclared fields, accepting whole numbers written as 1.0, and
refusing keys that are not strings. Knows nothing of functions.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

_ROOT = "#/$defs/"


class UnsupportedTypeHint(Exception):
    """The hint cannot be a schema; the message tells the tool's author why."""


class TypeHintMismatch(Exception):
    """The value does not fit the hint; the message tells the model where and why."""


class HintSchema:
    """The schema and the conversion of one hint."""

    def __init__(self, hint: Any) -> None:
        """UnsupportedTypeHint if the hint cannot be a schema."""
        self._hint = hint
        try:
            _check_keys(inspect.type_info(hint))
            (root,), definitions = msgspec.json.schema_components([hint])
            msgspec.json.Decoder(hint)
        except (TypeError, ValueError, NameError) as error:
            raise UnsupportedTypeHint(str(error).split("\n")[0].rstrip(":")) from error
        # Definitions are inlined, as many models read no references; only recursive ones stay.
        recursive = {name for name in definitions if name in _reached(definitions[name], definitions)}
        flat: dict[str, Any] = _inlined(root, definitions, recursive)
        if recursive:
            flat["$defs"] = {name: _inlined(definitions[name], definitions, recursive) for name in sorted(recursive)}
        self.schema: dict[str, Any] = _closed(flat)

    def convert(self, value: Any) -> Any:
        """Convert a value to the hinted type; TypeHintMismatch if it does not fit."""
        try:
            converted = msgspec.convert(value, self._hint)
        except msgspec.ValidationError as error:
            try:  # again with 1.0 as 1: in JSON both are the same number
                converted = msgspec.convert(_with_integers(value), self._hint)
            except msgspec.ValidationError:
                raise TypeHintMismatch(str(error)) from None
        problem = _undeclared(value, self.schema, self.schema.get("$defs", {}), "$")
        if problem:
            raise TypeHintMismatch(problem)
        return converted


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list() | tuple():
            return [_with_integers(item) for item in value]
    return value


def _check_keys(kind: inspect.Type, seen: frozenset[int] = frozenset()) -> None:
    if isinstance(kind, inspect.DictType) and not isinstance(kind.key_type, inspect.StrType | inspect.AnyType):
        raise UnsupportedTypeHint("JSON objects have strings for keys, so a dict must be a dict[str, ...]")
    if id(kind) in seen:  # a type that contains itself
        return
    for name in kind.__struct_fields__:
        value = getattr(kind, name)
        for item in value if isinstance(value, tuple) else (value,):
            item = item.type if isinstance(item, inspect.Field) else item
            if isinstance(item, inspect.Type):
                _check_keys(item, seen | {id(kind)})


def _reached(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Return the names of all definitions that a schema refers to, directly or not."""
    reached: set[str] = set()
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case {"$ref": str() as ref, **rest}:
                name = ref.removeprefix(_ROOT)
                waiting.append(rest)
                if name not in reached:
                    reached.add(name)
                    waiting.append(definitions[name])
            case dict() as inner:
                waiting.extend(inner.values())
            case list() as items:
                waiting.extend(items)
    return reached


def _inlined(schema: Any, definitions: Mapping[str, Any], recursive: set[str]) -> Any:
    match schema:
        case {"$ref": str() as ref, **rest} if ref.removeprefix(_ROOT) not in recursive:
            return _inlined({**definitions[ref.removeprefix(_ROOT)], **rest}, definitions, recursive)
        case dict():
            return {name: _inlined(value, definitions, recursive) for name, value in schema.items()}
        case list():
            return [_inlined(item, definitions, recursive) for item in schema]
    return schema


def _closed(schema: Any) -> Any:
    """Close every object that declares fields to undeclared ones."""
    match schema:
        case {"type": "object", "properties": dict() as fields, **rest}:
            others = {name: _closed(value) for name, value in rest.items() if name != "additionalProperties"}
            closed = {"type": "object", "properties": {name: _closed(value) for name, value in fields.items()}}
            return {**closed, **others, "additionalProperties": False}
        case dict():
            return {name: _closed(value) for name, value in schema.items()}
        case list():
            return [_closed(item) for item in schema]
    return schema


def _undeclared(value: Any, schema: Any, definitions: Mapping[str, Any], path: str) -> str | None:
    """Describe the first field that the schema does not declare; the value otherwise fits it."""
    if not isinstance(value, (dict, list, tuple)) or not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix(_ROOT)]
    if "anyOf" in schema:
        branches = _possible_branches(value, schema["anyOf"], definitions)
        problems = [_undeclared(value, branch, definitions, path) for branch in branches]
        # One branch that declares all fields is enough.
        return None if None in problems or not problems else problems[0]
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        for name, item in value.items():
            kind = fields.get(name, schema.get("additionalProperties"))
            if kind is False:
                return f"Object contains unknown field `{name}` - at `{path}`"
            if problem := _undeclared(item, kind, definitions, f"{path}.{name}"):
                return problem
        return None
    first = schema.get("prefixItems", [])
    kinds = [*first, *[schema.get("items")] * (len(value) - len(first))]
    problems = [
        _undeclared(item, kind, definitions, f"{path}[{i}]")
        for i, (item, kind) in enumerate(zip(value, kinds, strict=False))
    ]
    return next(filter(None, problems), None)


def _possible_branches(value: Any, branches: list[Any], definitions: Mapping[str, Any]) -> list[Any]:
    """Return the branches of a union that an object or array may belong to; a tagged object to the one with its tag."""
    kind = "object" if isinstance(value, dict) else "array"
    possible = []
    for branch in branches:
        schema = definitions[branch["$ref"].removeprefix(_ROOT)] if "$ref" in branch else branch
        tags = {name: field["enum"] for name, field in schema.get("properties", {}).items() if "enum" in field}
        tagged = kind == "array" or all(value.get(name, allowed[0]) in allowed for name, allowed in tags.items())
        if schema.get("type", kind) == kind and "enum" not in schema and tagged:
            possible.append(schema)
    return possible
