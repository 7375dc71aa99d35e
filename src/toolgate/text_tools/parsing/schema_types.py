"""Find the JSON types that a schema allows for a parameter. Knows no text."""

from collections.abc import Mapping
from typing import Any

from toolgate.conversation.request import ToolDef

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
# Keywords that imply a type where a schema names none.
_KEYWORDS = {"properties": OBJECT, "additionalProperties": OBJECT, "items": ARRAY, "prefixItems": ARRAY}

Schema = Mapping[str, Any]


# Stands for every missing schema; one object, because results are cached by the identity of a schema.
_UNDECLARED: Schema = {}


class ParameterTypes:
    """The types that the parts of one tool's schema allow; cached, so that each part is read once.

    All schemas that are passed in must be parts of the root or come from here.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        # By `id`: dicts have no hash, and a schema lives as long as the root that holds it.
        self._members: dict[int, tuple[Schema, Any]] = {}
        self._items: dict[int, Any] = {}
        self._cache: dict[int, frozenset[str]] = {}
        self._references: dict[str, frozenset[str]] = {}
        self._pending: dict[str, frozenset[str]] = {}  # references that are being resolved, or depend on such a one
        self._cycles = 0  # how often a reference came back to one of them

    def of(self, name: str) -> frozenset[str]:
        """Return the types that a parameter may have; all of them if the schema names none."""
        return self.allowed(self.parameter(self.root, name))

    def parameter(self, schema: Any, name: str) -> Any:
        """Return the schema of a member of an object; an empty one if it is not declared."""
        known = self._members.get(id(schema))
        if known is None:
            known = self._members[id(schema)] = _members(_parts(schema, self.root, set()))
        properties, additional = known
        return properties.get(name, additional)

    def item(self, schema: Any) -> Any:
        """Return the schema of the items of an array; an empty one if it is not declared."""
        if id(schema) not in self._items:
            parts = _parts(schema, self.root, set())
            found = [part["items"] for part in parts if isinstance(part.get("items"), Mapping)]
            self._items[id(schema)] = found[0] if found else _UNDECLARED
        return self._items[id(schema)]

    def allowed(self, schema: Any) -> frozenset[str]:
        """Return the types that the schema allows; all of them if it names none."""
        known = self._cache.get(id(schema))
        if known is None:
            known = self._cache[id(schema)] = self._find_allowed(schema) or ANY
        return known

    def _find_allowed(self, schema: Any) -> frozenset[str]:
        if not isinstance(schema, Mapping):
            return ANY
        found = _own_types(schema)
        if isinstance(pointer := schema.get("$ref"), str):
            found &= self._types_of_reference(pointer)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                found &= frozenset().union(*[self._find_allowed(one) for one in schema[keyword]])
        for one in _list_at(schema, "allOf"):
            found &= self._find_allowed(one)
        return found | {NULL} if schema.get("nullable") is True else found  # a keyword of OpenAPI 3.0

    def _types_of_reference(self, pointer: str) -> frozenset[str]:
        """Return the types of what is referred to; a reference that comes back to itself adds nothing.

        Inside such a cycle a result depends on where the cycle was entered, so it is cached only until that is left.
        """
        if pointer in self._references:
            return self._references[pointer]
        if pointer in self._pending:
            self._cycles += 1
            return self._pending[pointer]
        outermost, cycles = not self._pending, self._cycles
        self._pending[pointer] = frozenset()
        found = self._find_allowed(_resolve(pointer, self.root))
        if outermost or cycles == self._cycles:
            self._references[pointer] = found
            del self._pending[pointer]
        else:
            self._pending[pointer] = found
        if outermost:
            self._pending.clear()
        return found


def types_of(tool: ToolDef | None) -> ParameterTypes:
    """Return the types of a tool's parameters; any type if there is no tool, or no schema."""
    return ParameterTypes(tool.input_schema if tool else None)


def allowed_types(schema: Any, root: Any) -> frozenset[str]:
    """Return the types that one part of a schema allows; `ParameterTypes` is for more than one."""
    return ParameterTypes(root).allowed(schema)


def json_type_of(value: Any) -> str:
    """Return the type of a JSON value."""
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


def _own_types(schema: Schema) -> frozenset[str]:
    named = schema.get("type")
    if isinstance(named, (str, list)):
        stated = frozenset([named] if isinstance(named, str) else [one for one in named if isinstance(one, str)])
        return stated | {INTEGER} if NUMBER in stated else stated
    if isinstance(schema.get("enum"), list):
        return frozenset([json_type_of(value) for value in schema["enum"]])
    if "const" in schema:
        return frozenset({json_type_of(schema["const"])})
    implied = frozenset([type_ for keyword, type_ in _KEYWORDS.items() if keyword in schema])
    return implied or ANY


def _members(parts: list[Schema]) -> tuple[Schema, Any]:
    """Return the properties that the parts declare, the first of each name, and the schema of all others."""
    declared = [part["properties"] for part in parts if isinstance(part.get("properties"), Mapping)]
    properties = {name: one for some in reversed(declared) for name, one in some.items()}
    additional = [one for part in parts if isinstance(one := part.get("additionalProperties"), Mapping)]
    return properties, additional[0] if additional else _UNDECLARED


def _parts(schema: Any, root: Any, seen: set[str]) -> list[Schema]:
    """Return the schema and those that it refers to or is composed of, each reference once."""
    if not isinstance(schema, Mapping):
        return []
    parts: list[Schema] = [schema]
    inner = [one for keyword in ("allOf", "anyOf", "oneOf") for one in _list_at(schema, keyword)]
    if isinstance(pointer := schema.get("$ref"), str) and pointer not in seen:
        seen.add(pointer)
        inner.append(_resolve(pointer, root))
    for one in inner:
        parts += _parts(one, root, seen)
    return parts


def _list_at(schema: Schema, keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _resolve(pointer: str, root: Any) -> Any:
    """Return what a reference within the schema points to."""
    if not pointer.startswith("#"):
        return _UNDECLARED
    found = root
    for step in pointer[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and len(step) < 6 and int(step) < len(found):
            found = found[int(step)]
        else:
            return _UNDECLARED
    return found
