"""Translate the schemas of a document into self-contained JSON Schema, with referenced ones in `$defs`.

Only known keywords are copied: those that could fetch something or change the meaning of a reference (`$id`,
`$dynamicRef`, `$schema`) are left out. Knows nothing of operations.
"""

import re
from collections.abc import Mapping
from typing import Any

from toolgate.tools.sources.openapi.reference import DocumentReferences, UnusableOperation, listed, mapped

MAX_NODES = 2000
MAX_DEPTH = 32
# Properties and required names that are collected for one body, those of `allOf` each time that they are named.
_MAX_FLATTENED = 4 * MAX_NODES
# Keywords by what they hold: plain values, one schema, a list of schemas, schemas by name.
_COPIED = frozenset(
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
# With one of these, an object is no plain list of fields.
_CHOICES = ("oneOf", "anyOf", "not", "if", "patternProperties", "discriminator", "nullable", "propertyNames")
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
_TOO_LARGE = "its input is too large or too deeply nested to be shown to a model"
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


class SchemaTooLarge(UnusableOperation):
    """The schema is larger than a model should be shown."""


class OpenApiSchemaTranslator:
    """The schemas of one operation; `defs` collects what they refer to."""

    def __init__(self, references: DocumentReferences, nodes: int = MAX_NODES) -> None:
        """`nodes` limits how many subschemas are translated."""
        self._references = references
        self._limit = nodes
        self._names: dict[str, str] = {}
        self._pending: list[tuple[str, str]] = []
        self._nodes = 0
        self._flattened = 0
        self.defs: dict[str, Any] = {}

    def schema(self, node: Any, depth: int = 0) -> Any:
        """Translate a schema into JSON Schema 2020-12."""
        self._count(1)
        if depth > MAX_DEPTH:
            raise SchemaTooLarge(_TOO_LARGE)
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UnusableOperation("it has a malformed schema")
        translated = self._keywords(node, depth)
        if "$ref" in node:
            translated["$ref"] = self._reference(str(node["$ref"]))
        for flag, bound in _BOUNDS:  # version 3.0 has flags where JSON Schema has numbers
            if isinstance(translated.get(flag), bool) and translated.pop(flag) and bound in translated:
                translated[flag] = translated.pop(bound)
        if "required" in translated:
            # What is read-only is left out of requests, even if the document requires it.
            left_out = {name for name, one in mapped(node.get("properties")).items() if _is_read_only(one)}
            required = [name for name in listed(translated["required"]) if isinstance(name, str)]
            translated["required"] = [name for name in required if name not in left_out]
        if node.get("nullable") is not True:  # a keyword of version 3.0; later ones have the type "null"
            return translated
        if "$ref" in translated or "type" not in translated:
            return {"anyOf": [translated, {"type": "null"}]}
        if isinstance(translated.get("enum"), list) and None not in translated["enum"]:
            translated["enum"] = [*translated["enum"], None]
        kinds = translated["type"] if isinstance(translated["type"], list) else [translated["type"]]
        return {**translated, "type": [*kinds, *(() if "null" in kinds else ("null",))]}

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._limit:
            raise SchemaTooLarge(_TOO_LARGE)

    def finish(self) -> None:
        """Translate what was referred to, the nearest first; a schema that is then too large accepts any value."""
        for name, pointer in self._pending:  # it grows meanwhile
            try:
                self.defs[name] = self.schema(self._references.target(pointer))
            except SchemaTooLarge:
                self.defs[name] = {"description": "Not shown here because it is too large."}

    def flat(self, node: Any, depth: int = 0) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """Return the properties and required names of a plain object; None for any other schema."""
        node = self._references.follow(node)
        # Counted first: many operations may refer to one body, which may refer many times to one large object.
        self._flattened += 1 + len(mapped(node.get("properties"))) + len(listed(node.get("required")))
        if self._flattened > _MAX_FLATTENED:
            raise SchemaTooLarge(_TOO_LARGE)
        is_open = node.get("additionalProperties", False) is not False
        if depth > 8 or is_open or node.get("type", "object") != "object" or any(node.get(word) for word in _CHOICES):
            return None
        if not (node.get("properties") or node.get("allOf")):
            return None
        properties = dict(mapped(node.get("properties")))
        required = {name for name in listed(node.get("required")) if isinstance(name, str)}
        for part in listed(node.get("allOf")):
            inner = self.flat(part, depth + 1)
            if inner is None:
                return None
            properties |= inner[0]
            required.update(inner[1])
        writable = {name: one for name, one in properties.items() if not _is_read_only(one)}
        return writable, tuple(name for name in writable if name in required)

    def _keywords(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        translated: dict[str, Any] = {}
        for word, value in node.items():
            if word in _COPIED:
                self._count(_size(value))
                translated[word] = value
            elif word in _ONE:
                translated[word] = self.schema(value, depth + 1)
            elif word in _MANY and isinstance(value, list):
                translated[word] = [self.schema(one, depth + 1) for one in value]
            elif word in _NAMED and isinstance(value, dict):
                self._count(sum(map(_size, value)))
                translated[word] = {
                    name: self.schema(one, depth + 1) for name, one in value.items() if not _is_read_only(one)
                }
            elif word == "$dynamicRef":
                raise UnusableOperation("it has a schema with $dynamicRef")
        return translated

    def _reference(self, pointer: str) -> str:
        if pointer not in self._names:
            plain = re.sub(r"[^A-Za-z0-9_.-]", "_", pointer.rpartition("/")[2])[:64] or "it"
            name, count = plain, 1
            while name in self.defs:
                count += 1
                name = f"{plain}_{count}"
            self._references.target(pointer)  # raises while the operation can still be refused
            self._names[pointer] = name
            self.defs[name] = True  # translated by `finish`, because a schema may refer to itself
            self._pending.append((name, pointer))
        return f"#/$defs/{self._names[pointer]}"


def _size(value: Any) -> int:
    """Estimate how many subschemas take as much space as a value that is copied."""
    if isinstance(value, str):
        return len(value) // 256
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        if len(value) > 8 * MAX_NODES:
            return MAX_NODES + 1
        keys = value if isinstance(value, dict) else ()
        return len(value) // 8 + sum(map(_size, keys)) + sum([_size(one) for one in inner])
    return 0


def _is_read_only(node: Any) -> bool:
    return isinstance(node, dict) and node.get("readOnly") is True
