"""The schemas of a document as JSON Schema that stands alone. What is referred to goes into `$defs`, once.

Only keywords that are known are taken over: what could fetch something, or change what a reference means (`$id`,
`$dynamicRef`, `$schema`), stays behind. Knows nothing of operations.
"""

import re
from collections.abc import Mapping
from typing import Any

from toolgate.tools.sources.openapi.reference import References, Unusable, listed, mapped

MAX_NODES = 2000
MAX_DEPTH = 32
_AS_IS = frozenset(
    {
        *("type", "title", "description", "default", "examples", "deprecated", "format", "enum", "const", "pattern"),
        *("multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "maxLength", "minLength"),
        *("maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties"),
        *("required", "dependentRequired", "contentMediaType", "contentEncoding", "writeOnly"),
    }
)
_ONE = frozenset(
    {
        *("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
_TOO_LARGE = "its input is too large or too deeply nested to be shown to a model"
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


class TooLarge(Unusable):
    """More than a model should be shown."""


class Translation:
    """The schemas of one operation; `defs` collects what they refer to."""

    def __init__(self, references: References, nodes: int = MAX_NODES) -> None:
        """More than so many `nodes` are not translated."""
        self._references = references
        self._most = nodes
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, str]] = []
        self._nodes = 0
        self._flattened = 0
        self.defs: dict[str, Any] = {}

    def schema(self, node: Any, depth: int = 0) -> Any:
        """The schema in the words of JSON Schema 2020-12."""
        self._count(1)
        if depth > MAX_DEPTH:
            raise TooLarge(_TOO_LARGE)
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise Unusable("it has a schema that is none")
        told = self._keywords(node, depth)
        if "$ref" in node:
            told["$ref"] = self._reference(str(node["$ref"]))
        return _modern(told, node)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._most:
            raise TooLarge(_TOO_LARGE)

    def finish(self) -> None:
        """Translate what was referred to, the nearest first; what is then too much is left open to any value."""
        for name, pointer in self._pending:  # it grows on the way
            try:
                self.defs[name] = self.schema(self._references.target(pointer))
            except TooLarge:
                self.defs[name] = {"description": "Not shown here because it is too large."}

    def flat(self, node: Any, depth: int = 0) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """Properties and required names of an object that is nothing but its properties; None for anything else."""
        self._flattened += 1
        if self._flattened > self._most:
            raise TooLarge(_TOO_LARGE)
        node = self._references.follow(node)
        loose = node.get("additionalProperties", False) is not False
        if depth > 8 or loose or node.get("type", "object") != "object" or not _is_plain(node):
            return None
        properties, required = dict(mapped(node.get("properties"))), list(listed(node.get("required")))
        for part in listed(node.get("allOf")):
            inner = self.flat(part, depth + 1)
            if inner is None:
                return None
            properties |= inner[0]
            required += inner[1]
        writable = {name: one for name, one in properties.items() if not _is_read_only(one)}
        return writable, tuple(name for name in writable if name in required)

    def _keywords(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for word, value in node.items():
            if word in _AS_IS:
                self._count(_size(value))
                told[word] = value
            elif word in _ONE:
                told[word] = self.schema(value, depth + 1)
            elif word in _MANY and isinstance(value, list):
                told[word] = [self.schema(one, depth + 1) for one in value]
            elif word in _NAMED and isinstance(value, dict):
                told[word] = {
                    name: self.schema(one, depth + 1) for name, one in value.items() if not _is_read_only(one)
                }
            elif word == "$dynamicRef":
                raise Unusable("it has a schema with $dynamicRef")
        return told

    def _reference(self, pointer: str) -> str:
        if pointer not in self._names:
            name = _free(re.sub(r"[^A-Za-z0-9_.-]", "_", pointer.rpartition("/")[2])[:64] or "it", self.defs)
            self._references.target(pointer)  # or it would be found out too late
            self._names[pointer] = name
            self.defs[name] = True
            self._pending.append((name, pointer))
        return f"#/$defs/{self._names[pointer]}"


def _size(value: Any) -> int:
    """How many subschemas take as much room as a value that is taken over as it is."""
    if isinstance(value, str):
        return len(value) // 256
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        if len(value) > 8 * MAX_NODES:
            return MAX_NODES + 1
        return len(value) // 8 + sum([_size(one) for one in inner])
    return 0


def _free(name: str, taken: Mapping[str, Any]) -> str:
    count = 1
    while (name if count == 1 else f"{name}_{count}") in taken:
        count += 1
    return name if count == 1 else f"{name}_{count}"


def _is_plain(node: Mapping[str, Any]) -> bool:
    choices = ("oneOf", "anyOf", "not", "if", "patternProperties", "discriminator", "nullable", "propertyNames")
    return not any(node.get(word) for word in choices) and bool(node.get("properties") or node.get("allOf"))


def _is_read_only(node: Any) -> bool:
    return isinstance(node, dict) and node.get("readOnly") is True


def _modern(told: dict[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """What version 3.0 says in its own words."""
    for flag, bound in _BOUNDS:
        if isinstance(told.get(flag), bool) and told.pop(flag) and bound in told:
            told[flag] = told.pop(bound)
    if "required" in told:
        gone = {name for name, one in mapped(node.get("properties")).items() if _is_read_only(one)}
        told["required"] = [name for name in listed(told["required"]) if isinstance(name, str) and name not in gone]
    return _nullable(told) if node.get("nullable") is True else told


def _nullable(told: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in told or "type" not in told:
        return {"anyOf": [told, {"type": "null"}]}
    if isinstance(told.get("enum"), list) and None not in told["enum"]:
        told["enum"] = [*told["enum"], None]
    kinds = told["type"] if isinstance(told["type"], list) else [told["type"]]
    return {**told, "type": [*kinds, *(() if "null" in kinds else ("null",))]}
