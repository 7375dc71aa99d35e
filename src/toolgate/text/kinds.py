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
_DEEPEST = 32
_KEYWORDS = {"properties": OBJECT, "additionalProperties": OBJECT, "items": ARRAY, "prefixItems": ARRAY}

Schema = Mapping[str, Any]


def parameter(schema: Any, name: str, root: Any = None) -> Any:
    """The schema of a member of an object; an empty one if it is not declared."""
    root = schema if root is None else root
    for part in _parts(schema, root, _DEEPEST):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
    for part in _parts(schema, root, _DEEPEST):
        if isinstance(part.get("additionalProperties"), Mapping):
            return part["additionalProperties"]
    return {}


def item(schema: Any, root: Any) -> Any:
    """The schema of the items of an array; an empty one if it is not declared."""
    for part in _parts(schema, root, _DEEPEST):
        if isinstance(part.get("items"), Mapping):
            return part["items"]
    return {}


def kinds(schema: Any, root: Any = None) -> frozenset[str]:
    """The types that the schema allows; all of them where it does not say."""
    return _kinds(schema, schema if root is None else root, _DEEPEST)


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


def _kinds(schema: Any, root: Any, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth < 0:
        return ANY
    found = _own_kinds(schema)
    if "$ref" in schema:
        found &= _kinds(_referred(schema["$ref"], root), root, depth - 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            found &= frozenset().union(*[_kinds(one, root, depth - 1) for one in schema[word]])
    for one in schema.get("allOf") or ():
        found &= _kinds(one, root, depth - 1)
    return (found | {NULL} if schema.get("nullable") is True else found) or ANY


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


def _parts(schema: Any, root: Any, depth: int) -> list[Schema]:
    """The schema and those that it refers to or is made of."""
    if not isinstance(schema, Mapping) or depth < 0:
        return []
    parts: list[Schema] = [schema]
    inner = [one for word in ("allOf", "anyOf", "oneOf") for one in schema.get(word) or ()]
    if "$ref" in schema:
        inner.append(_referred(schema["$ref"], root))
    for one in inner:
        parts += _parts(one, root, depth // 2)
    return parts


def _referred(pointer: Any, root: Any) -> Any:
    """What a reference within the schema points to."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
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
