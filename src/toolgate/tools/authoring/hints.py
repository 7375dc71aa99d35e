"""A type hint as two things that agree: the JSON Schema a model reads and the conversion of what it then writes.

msgspec makes both. What it leaves open is closed here: fields nobody declared, whole numbers written as 1.0,
and keys that are not strings. Knows nothing of functions.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

_ROOT = "#/$defs/"


class BadHint(Exception):
    """The hint cannot be a schema; the message says why, in words for the tool's author."""


class Misfit(Exception):
    """The value does not fit the hint; the message says where and why, in words for the model."""


class Shape:
    """What one hint accepts."""

    def __init__(self, hint: Any) -> None:
        """BadHint if no schema can be made of it."""
        self._hint = hint
        try:
            _only_string_keys(inspect.type_info(hint))
            (root,), definitions = msgspec.json.schema_components([hint])
            msgspec.json.Decoder(hint)
        except (TypeError, ValueError, NameError) as error:
            raise BadHint(str(error).split("\n")[0].rstrip(":")) from error
        self.schema: dict[str, Any] = _closed(_flat(root, definitions))

    def convert(self, value: Any) -> Any:
        """The value in the hinted types, or Misfit."""
        try:
            converted = msgspec.convert(value, self._hint)
        except msgspec.ValidationError as error:
            converted = self._retried(value, error)
        complaint = _undeclared(value, self.schema, self.schema.get("$defs", {}), "$")
        if complaint:
            raise Misfit(complaint)
        return converted

    def _retried(self, value: Any, error: msgspec.ValidationError) -> Any:
        """JSON does not tell 1.0 from 1, so neither may we."""
        try:
            return msgspec.convert(_whole(value), self._hint)
        except msgspec.ValidationError:
            raise Misfit(str(error)) from None


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _whole(item) for name, item in value.items()}
        case list() | tuple():
            return [_whole(item) for item in value]
    return value


def _only_string_keys(kind: inspect.Type, seen: frozenset[int] = frozenset()) -> None:
    if isinstance(kind, inspect.DictType) and not isinstance(kind.key_type, inspect.StrType | inspect.AnyType):
        raise BadHint("JSON objects have strings for keys, so a dict must be a dict[str, ...]")
    if id(kind) in seen:
        return
    for inner in _inner(kind):
        _only_string_keys(inner, seen | {id(kind)})


def _inner(kind: inspect.Type) -> list[inspect.Type]:
    found: list[inspect.Type] = []
    for name in kind.__struct_fields__:
        value = getattr(kind, name)
        for item in value if isinstance(value, tuple) else (value,):
            item = item.type if isinstance(item, inspect.Field) else item
            if isinstance(item, inspect.Type):
                found.append(item)
    return found


def _flat(root: dict[str, Any], definitions: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema with its definitions in place, as many models read no references; only recursion keeps them."""
    recursive = {name for name in definitions if name in _reached(definitions[name], definitions)}
    flat: dict[str, Any] = _inlined(root, definitions, recursive)
    if recursive:
        flat["$defs"] = {name: _inlined(definitions[name], definitions, recursive) for name in sorted(recursive)}
    return flat


def _reached(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
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
    """The schema with every object that has declared fields closed to others."""
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
    """A complaint about the first field that the schema does not declare; the value otherwise fits it."""
    if not isinstance(value, (dict, list, tuple)) or not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix(_ROOT)]
    if "anyOf" in schema:
        told = [
            _undeclared(value, branch, definitions, path) for branch in _fitting(value, schema["anyOf"], definitions)
        ]
        return None if None in told or not told else told[0]
    if isinstance(value, dict):
        return _undeclared_field(value, schema, definitions, path)
    first = schema.get("prefixItems", [])
    kinds = [*first, *[schema.get("items")] * (len(value) - len(first))]
    told = [
        _undeclared(item, kind, definitions, f"{path}[{i}]")
        for i, (item, kind) in enumerate(zip(value, kinds, strict=False))
    ]
    return next(filter(None, told), None)


def _undeclared_field(
    value: dict[str, Any], schema: dict[str, Any], definitions: Mapping[str, Any], path: str
) -> str | None:
    fields = schema.get("properties", {})
    for name, item in value.items():
        kind = fields.get(name, schema.get("additionalProperties"))
        if kind is False:
            return f"Object contains unknown field `{name}` - at `{path}`"
        told = _undeclared(item, kind, definitions, f"{path}.{name}")
        if told:
            return told
    return None


def _fitting(value: Any, branches: list[Any], definitions: Mapping[str, Any]) -> list[Any]:
    """The branches of a union that a container may belong to; a tagged object belongs to the one with its tag."""
    wanted = "object" if isinstance(value, dict) else "array"
    fitting = []
    for branch in branches:
        schema = definitions[branch["$ref"].removeprefix(_ROOT)] if "$ref" in branch else branch
        tags = {name: field["enum"] for name, field in schema.get("properties", {}).items() if "enum" in field}
        tagged = wanted == "array" or all(value.get(name, allowed[0]) in allowed for name, allowed in tags.items())
        if schema.get("type", wanted) == wanted and "enum" not in schema and tagged:
            fitting.append(schema)
    return fitting
