"""The forms to which the engine holds what is written: one of some words, or JSON by a schema. Pure.

The engine lets everything through when it cannot understand a form, without saying so: what it cannot understand is taken
out here, and whoever reads what was written looks at how it begins.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
"""Blanks are where a small model loses itself; what is not known is left out of account."""

_BEYOND = re.compile(r"\(\?|\\[1-9]|\\[bB]")
_SHAPE = ("type", "enum", "const", "required", "minItems", "maxItems")
_DEEPEST = 32


def one_of(words: Sequence[str]) -> str:
    """Exactly one of these words, which are letters, digits, `_` and `-`."""
    return "root ::= " + " | ".join([f'"{word}"' for word in words])


def arguments(schema: Mapping[str, Any] | None) -> Iterator[str]:
    """JSON objects by the schema, without a field that it does not name; then plainer forms, should the first not hold."""
    given = {"type": "object", **(schema or {"properties": {}})}
    held = _held(given, given, 0)
    yield _json(_closed(held))
    yield _json(_closed(_plain(held, 0)))
    yield _json({"type": "object"})


def value(schema: Mapping[str, Any] | None) -> Iterator[str]:
    """JSON by the schema, any object if there is none; then plainer forms."""
    if schema is None:
        yield _json({"type": "object"})
        return
    held = _held(schema, schema, 0)
    yield _json(held)
    yield _json(_plain(held, 0))


def is_begun(text: str) -> bool:
    """Whether this is how JSON begins, rather than words of somebody whom no form holds."""
    return text[:1] in '{["-0123456789' or text.startswith(("true", "false", "null"))


def unheld(schema: Mapping[str, Any] | None) -> bool:
    """Whether something in the schema cannot be made into a form."""
    return schema is not None and _held(schema, schema, 0) != schema


def _json(schema: Mapping[str, Any]) -> str:
    return "%llguidance {}\nstart: %json " + json.dumps({**schema, "x-guidance": _COMPACT})


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same without room for fields that nobody asked for."""
    if "properties" in schema and not ({"anyOf", "oneOf", "allOf", "$ref", "patternProperties"} & set(schema)):
        return {**schema, "additionalProperties": False}
    return schema


def _held(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """The schema without references that lead nowhere and patterns that the engine does not know."""
    if isinstance(schema, list):
        return [_held(one, root, depth + 1) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    if depth > _DEEPEST:
        return {}
    kept = {key: _held(part, root, depth + 1) for key, part in schema.items()}
    pattern, target = kept.get("pattern"), kept.get("$ref")
    if isinstance(pattern, str) and _BEYOND.search(pattern):
        del kept["pattern"]
    if isinstance(target, str) and not _leads(target, root):
        del kept["$ref"]
    return kept


def _leads(target: str, root: Mapping[str, Any]) -> bool:
    """Whether a reference leads to a place within the schema."""
    if not target.startswith("#"):
        return False
    place: Any = root
    for step in target[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, Mapping) or name not in place:
            return False
        place = place[name]
    return True


def _plain(schema: Any, depth: int) -> dict[str, Any]:
    """The bare shape: types, names and choices."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return {}
    shape = {key: schema[key] for key in _SHAPE if key in schema}
    if isinstance(fields := schema.get("properties"), Mapping):
        shape["properties"] = {name: _plain(field, depth + 1) for name, field in fields.items()}
    if isinstance(items := schema.get("items"), Mapping):
        shape["items"] = _plain(items, depth + 1)
    return shape
