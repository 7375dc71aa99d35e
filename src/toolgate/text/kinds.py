"""Which JSON types a schema allows for a parameter, as far as it says so; knows no text."""

from collections.abc import Mapping
from typing import Any

STRING, NUMBER, INTEGER, BOOLEAN, NULL, ARRAY, OBJECT = [
    "string",
    "number",
    "integer",
    "boolean",
    "null",
    "array",
    "object",
]
ANY = frozenset({STRING, NUMBER, INTEGER, BOOLEAN, NULL, ARRAY, OBJECT})
_KEYWORDS = {"properties": OBJECT, "additionalProperties": OBJECT, "items": ARRAY, "prefixItems": ARRAY}

Schema = Mapping[str, Any]


def parameter(schema: Any, name: str, root: Any = None) -> Any:
    """The schema of a member of an object; an empty one if it is not declared."""
    root = schema if root is None else root
    for part in _parts(schema, root, set()):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
    for part in _parts(schema, root, set()):
        if isinstance(part.get("additionalProperties"), Mapping):
            return part["additionalProperties"]
    return {}


def item(schema: Any, root: Any) -> Any:
    """The schema of the items of an array; an empty one if it is not declared."""
    for part in _parts(schema, root, set()):
        if isinstance(part.get("items"), Mapping):
            return part["items"]
    return {}


def kinds(schema: Any, root: Any = None) -> frozenset[str]:
    """The types that the schema allows; all of them where it does not say."""
    return _kinds(schema, schema if root is None else root, {}) or ANY


def kind_of(value: Any) -> str:
    """The type of a JSON value."""
    match value:
        case None:
            return NULL
        case bool():
            return BOOLEAN
        case str():
            return STRING
        case int():
            return INTEGER
        case list() | tuple():
            return ARRAY
        case Mapping():
            return OBJECT
        case _:
            return NUMBER


def _kinds(schema: Any, root: Any, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """The types, looking up each reference once, however often it is made; one that comes back to itself adds nothing."""
    if not isinstance(schema, Mapping):
        return ANY
    found = _own_kinds(schema)
    if isinstance(pointer := schema.get("$ref"), str):
        if pointer not in known:
            known[pointer] = frozenset()
            known[pointer] = _kinds(_referred(pointer, root), root, known)
        found &= known[pointer]
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            found &= frozenset().union(*[_kinds(one, root, known) for one in schema[word]])
    for one in _listed(schema, "allOf"):
        found &= _kinds(one, root, known)
    return found | {NULL} if schema.get("nullable") is True else found


def _own_kinds(schema: Schema) -> frozenset[str]:
    named = schema.get("type")
    if isinstance(named, (str, list)):
        stated = frozenset([named] if isinstance(named, str) else [one for one in named if isinstance(one, str)])
        return stated | {INTEGER} if NUMBER in stated else stated
    if isinstance(schema.get("enum"), list):
        return frozenset([kind_of(value) for value in schema["enum"]])
    if "const" in schema:
        return frozenset({kind_of(schema["const"])})
    implied = frozenset([kind for word, kind in _KEYWORDS.items() if word in schema])
    return implied or ANY


def _parts(schema: Any, root: Any, seen: set[str]) -> list[Schema]:
    """The schema and those that it refers to or is made of, each reference once."""
    if not isinstance(schema, Mapping):
        return []
    parts: list[Schema] = [schema]
    inner = [one for word in ("allOf", "anyOf", "oneOf") for one in _listed(schema, word)]
    if isinstance(pointer := schema.get("$ref"), str) and pointer not in seen:
        seen.add(pointer)
        inner.append(_referred(pointer, root))
    for one in inner:
        parts += _parts(one, root, seen)
    return parts


def _listed(schema: Schema, word: str) -> list[Any]:
    found = schema.get(word)
    return found if isinstance(found, list) else []


def _referred(pointer: str, root: Any) -> Any:
    """What a reference within the schema points to."""
    if not pointer.startswith("#"):
        return {}
    found = root
    for step in pointer[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return {}
    return found
