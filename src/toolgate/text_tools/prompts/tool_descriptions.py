"""Describe tools for a model that reads text: by a short signature, or by parameters with their schema.

    search_files(pattern: string, limit?: integer) – Finds files by name.

A signature leaves out what it cannot express; the full schema has it. Knows no syntax and no template.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from toolgate.conversation.request import ToolDef
from toolgate.text_tools.parsing.schema_types import ARRAY, OBJECT, STRING, ParameterTypes, allowed_types, json_type_of
from toolgate.wire.jsontext import encode

_MAX_DEPTH = 2  # levels of nested types in a signature
_MAX_CHOICES = 12  # values of an `enum` in a signature; of a longer one the type is named
_LONGEST_TYPE = 8000  # characters
_LONGEST_SUMMARY = 200  # characters
_SENTENCE = re.compile(r"(?<=[.!?。])\s")
_ORDER = ("string", "integer", "number", "boolean", "array", "object", "null")


class PromptParameter(Struct, frozen=True):
    """The description of one parameter of a tool."""

    name: str
    type: str
    required: bool
    description: str = ""


class ToolDescription(Struct, frozen=True):
    """The description of a tool; `summary` is the first sentence of `description`, `schema` the schema as JSON."""

    name: str
    description: str
    summary: str
    signature: str
    parameters: tuple[PromptParameter, ...]
    schema: str


def describe_tool(tool: ToolDef) -> ToolDescription:
    """Return all that a template may use to describe the tool."""
    description = (tool.description or "").strip()
    parameters = _parameters(tool)
    schema = _json(tool.input_schema or {"type": "object"})
    line = _signature(tool.name, parameters)
    return ToolDescription(tool.name, description, summary(description), line, parameters, schema)


def signature(tool: ToolDef) -> str:
    """Describe the tool in one line."""
    line, short = _signature(tool.name, _parameters(tool)), summary(tool.description or "")
    return f"{line} – {short}" if short else line


def summary(description: str) -> str:
    """Return the first sentence, cut if it is long."""
    first = " ".join(_SENTENCE.split(description.strip(), maxsplit=1)[0].split())
    return first if len(first) <= _LONGEST_SUMMARY else f"{first[: _LONGEST_SUMMARY - 1].rstrip()}…"


def sample(tool: ToolDef) -> dict[str, Any]:
    """Return example arguments of the tool: the required ones, or the first if none is required."""
    schema = tool.input_schema or {}
    properties = _properties(schema)
    required = _required(schema, properties) or list(properties)[:1]
    return {name: _sample(properties[name], schema) for name in required}


def _signature(name: str, parameters: tuple[PromptParameter, ...]) -> str:
    given = [f"{one.name}{'' if one.required else '?'}: {one.type}" for one in parameters]
    return f"{name}({', '.join(given)})"


def _parameters(tool: ToolDef) -> tuple[PromptParameter, ...]:
    schema = tool.input_schema or {}
    properties = _properties(schema)
    required = set(_required(schema, properties))
    types = _TypeNames(schema)
    described: list[PromptParameter] = []
    for name, one in sorted(properties.items(), key=lambda item: item[0] not in required):
        text = one.get("description") if isinstance(one, Mapping) else None
        description = " ".join(text.split()) if isinstance(text, str) else ""
        described.append(PromptParameter(name, types.name_of(one, _MAX_DEPTH), name in required, description))
    return tuple(described)


def _properties(schema: Any) -> Mapping[str, Any]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _required(schema: Any, properties: Mapping[str, Any]) -> list[str]:
    names = schema.get("required") if isinstance(schema, Mapping) else None
    required = {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return [name for name in properties if name in required]


class _TypeNames:
    """Names the types in one schema; each is named once, however often it is referred to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._allowed = ParameterTypes(root).allowed
        self._cache: dict[tuple[int, int], str] = {}

    def name_of(self, schema: Any, depth: int) -> str:
        """Return the name of a type, down to this depth."""
        schema = _resolved(schema, self._root)
        if not isinstance(schema, Mapping):
            return "any"
        # Hundreds of properties may refer to the same large definition.
        key = (id(schema), depth)
        if key not in self._cache:
            self._cache[key] = self._type(schema, depth)
        return self._cache[key]

    def _type(self, schema: Mapping[str, Any], depth: int) -> str:
        if "const" in schema:
            return _json(schema["const"])
        if isinstance(choices := schema.get("enum"), list) and 0 < len(choices) <= _MAX_CHOICES:
            return " | ".join([_json(one) for one in choices])
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list) and depth > 0:
                alternatives = _short(self.name_of(one, depth - 1) for one in schema[word])
                return "any" if alternatives is None else " | ".join(dict.fromkeys(alternatives))
        allowed = self._allowed(schema)
        if len(allowed) == len(_ORDER):
            return "any"
        names = [self._container(kind, schema, depth) for kind in _ORDER if kind in allowed]
        return " | ".join([kind for kind in names if kind != "integer" or "number" not in names])

    def _container(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        if kind == ARRAY and depth > 0 and isinstance(schema.get("items"), Mapping):
            inner = self.name_of(schema["items"], depth - 1)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == OBJECT and depth > 0 and (properties := _properties(schema)):
            required = set(_required(schema, properties))
            members = _short(
                f"{name}{'' if name in required else '?'}: {self.name_of(one, depth - 1)}"
                for name, one in properties.items()
            )
            return kind if members is None else f"{{{', '.join(members)}}}"
        return kind


def _short(pieces: Iterable[str]) -> list[str] | None:
    """Return the pieces, or None if they are too long together to be useful."""
    found: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _LONGEST_TYPE:
            return None
        found.append(piece)
    return found


def _resolved(schema: Any, root: Any) -> Any:
    for _ in range(_MAX_DEPTH + 2):  # a reference may lead to another, or back to itself
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        pointer = schema["$ref"]
        if not isinstance(pointer, str) or not pointer.startswith("#/"):  # it is not within this schema
            return {}
        schema = root
        for step in pointer[2:].split("/"):
            schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return {}


def _sample(schema: Any, root: Any) -> Any:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return "text"
    for word in ("examples", "enum"):
        # Some schemas have examples of another type than they allow, which a model must not copy.
        if (
            isinstance(schema.get(word), list)
            and schema[word]
            and json_type_of(schema[word][0]) in allowed_types(schema, root)
        ):
            return schema[word][0]
    allowed = allowed_types(schema, root)
    if STRING in allowed:
        return "text"
    kind = next((one for one in _ORDER if one in allowed), "null")
    return {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}.get(kind)


def _json(value: Any) -> str:
    return encode(value).decode()
