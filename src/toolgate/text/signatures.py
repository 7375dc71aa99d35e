"""Tools described for a model that reads text: by a short signature, or by parameters with their schema.

    search_files(pattern: string, limit?: integer) – Finds files by name.

What a signature cannot say it leaves out; the full schema says it. Knows no syntax and no template.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from toolgate.conversation.request import ToolDef
from toolgate.text.kinds import ARRAY, OBJECT, STRING, kind_of, kinds
from toolgate.wire.jsontext import encode

_DEEPEST = 2
_MOST_CHOICES = 12
_LONGEST_TYPE = 8000
_LONGEST_SUMMARY = 200
_SENTENCE = re.compile(r"(?<=[.!?。])\s")
_ORDER = ("string", "integer", "number", "boolean", "array", "object", "null")


class Parameter(Struct, frozen=True):
    """One parameter of a tool, in words."""

    name: str
    type: str
    required: bool
    description: str = ""


class Described(Struct, frozen=True):
    """A tool in words: `summary` is the first sentence of its description, `schema` its schema as JSON."""

    name: str
    description: str
    summary: str
    signature: str
    parameters: tuple[Parameter, ...]
    schema: str


def described(tool: ToolDef) -> Described:
    """The tool in all the words that a template may want."""
    description = (tool.description or "").strip()
    parameters = _parameters(tool)
    return Described(
        tool.name, description, summary(description), _signature(tool.name, parameters), parameters, _schema(tool)
    )


def signature(tool: ToolDef) -> str:
    """The tool in one line."""
    line, short = _signature(tool.name, _parameters(tool)), summary(tool.description or "")
    return f"{line} – {short}" if short else line


def summary(description: str) -> str:
    """The first sentence, cut if it is long."""
    first = " ".join(_SENTENCE.split(description.strip(), maxsplit=1)[0].split())
    return first if len(first) <= _LONGEST_SUMMARY else f"{first[: _LONGEST_SUMMARY - 1].rstrip()}…"


def sample(tool: ToolDef) -> dict[str, Any]:
    """Arguments as the tool might get them, for an example: the required ones, or the first if none is."""
    schema = tool.input_schema or {}
    properties = _properties(schema)
    required = _required(schema, properties) or list(properties)[:1]
    return {name: _sample(properties[name], schema, _DEEPEST) for name in required}


def _signature(name: str, parameters: tuple[Parameter, ...]) -> str:
    given = [f"{one.name}{'' if one.required else '?'}: {one.type}" for one in parameters]
    return f"{name}({', '.join(given)})"


def _parameters(tool: ToolDef) -> tuple[Parameter, ...]:
    schema = tool.input_schema or {}
    properties = _properties(schema)
    required = set(_required(schema, properties))
    types = _Types(schema)
    return tuple(
        [
            Parameter(name, types.named(one, _DEEPEST), name in required, _description(one))
            for name, one in sorted(properties.items(), key=lambda item: item[0] not in required)
        ]
    )


def _description(schema: Any) -> str:
    text = schema.get("description") if isinstance(schema, Mapping) else None
    return " ".join(text.split()) if isinstance(text, str) else ""


def _properties(schema: Any) -> Mapping[str, Any]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _required(schema: Any, properties: Mapping[str, Any]) -> list[str]:
    names = schema.get("required") if isinstance(schema, Mapping) else None
    said = {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
    return [name for name in properties if name in said]


class _Types:
    """The types of one schema in a word or two: each is put in words once, however often it is referred to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[tuple[int, int], str] = {}

    def named(self, schema: Any, depth: int) -> str:
        """The type, looking so deep into it."""
        schema = _resolved(schema, self._root)
        if not isinstance(schema, Mapping):
            return "any"
        key = (id(schema), depth)
        if key not in self._known:
            self._known[key] = self._type(schema, depth)
        return self._known[key]

    def _type(self, schema: Mapping[str, Any], depth: int) -> str:
        if "const" in schema:
            return _json(schema["const"])
        if isinstance(choices := schema.get("enum"), list) and 0 < len(choices) <= _MOST_CHOICES:
            return " | ".join([_json(one) for one in choices])
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list) and depth > 0:
                alternatives = _short(self.named(one, depth - 1) for one in schema[word])
                return "any" if alternatives is None else " | ".join(dict.fromkeys(alternatives))
        allowed = kinds(schema, self._root)
        if len(allowed) == len(_ORDER):
            return "any"
        named = [self._container(kind, schema, depth) for kind in _ORDER if kind in allowed]
        return " | ".join([kind for kind in named if kind != "integer" or "number" not in named])

    def _container(self, kind: str, schema: Mapping[str, Any], depth: int) -> str:
        if kind == ARRAY and depth > 0 and isinstance(schema.get("items"), Mapping):
            inner = self.named(schema["items"], depth - 1)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == OBJECT and depth > 0 and (properties := _properties(schema)):
            required = set(_required(schema, properties))
            members = _short(
                f"{name}{'' if name in required else '?'}: {self.named(one, depth - 1)}"
                for name, one in properties.items()
            )
            return kind if members is None else f"{{{', '.join(members)}}}"
        return kind


def _short(pieces: Iterable[str]) -> list[str] | None:
    """The pieces, or None if they are too long to be of use to anybody."""
    found: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _LONGEST_TYPE:
            return None
        found.append(piece)
    return found


def _resolved(schema: Any, root: Any) -> Any:
    for _ in range(_DEEPEST + 2):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        schema = _pointed(schema["$ref"], root)
    return {}


def _pointed(pointer: Any, root: Any) -> Any:
    """What a reference within the schema points to; anything elsewhere is not looked at."""
    if not isinstance(pointer, str) or not pointer.startswith("#/"):
        return {}
    found = root
    for step in pointer[2:].split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _sample(schema: Any, root: Any, depth: int) -> Any:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        return "text"
    for word in ("examples", "enum"):
        if isinstance(schema.get(word), list) and schema[word] and kind_of(schema[word][0]) in kinds(schema, root):
            return schema[word][0]
    allowed = kinds(schema, root)
    if STRING in allowed:
        return "text"
    kind = next((one for one in _ORDER if one in allowed), "null")
    return {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}.get(kind)


def _schema(tool: ToolDef) -> str:
    return _json(tool.input_schema or {"type": "object"})


def _json(value: Any) -> str:
    return encode(value).decode()
