"""Make grammars for the engine: one of some names, or JSON by a schema. Pure.

The engine ignores a grammar that it does not support, without an error. So unsupported keywords are removed here, and the
caller checks by the first characters of the output (`begins_like_json`) whether the grammar was applied.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# No whitespace, in which a small model may be caught; unknown keywords are ignored.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
# Groups with `(?` such as lookahead, back references and word boundaries, of which the engine supports few.
_BEYOND = re.compile(r"\(\?|\\[1-9]|\\[bB]")
_SHAPE = ("type", "enum", "const", "required", "minItems", "maxItems")
# A schema is the client's: beyond this depth any value is allowed.
_DEEPEST = 32


def one_of(names: Sequence[str]) -> str:
    """Return the grammar of exactly one of these names of letters, digits, `_` and `-`."""
    return "root ::= " + " | ".join([f'"{name}"' for name in names])


def arguments(schema: Mapping[str, Any] | None) -> Iterator[str]:
    """Return grammars of objects by the schema without unnamed fields; simpler ones follow in case the first is refused."""
    given = {"type": "object", **(schema or {"properties": {}})}
    supported = _supported(given, given, 0)
    yield _json(_closed(supported))
    yield _json(_closed(_plain(supported, 0)))
    yield _json({"type": "object"})


def value(schema: Mapping[str, Any] | None) -> Iterator[str]:
    """Return grammars of JSON by the schema, any object without one; simpler ones follow."""
    if schema is None:
        yield _json({"type": "object"})
        return
    supported = _supported(schema, schema, 0)
    yield _json(supported)
    yield _json(_plain(supported, 0))


def begins_like_json(text: str) -> bool:
    """Return whether the text begins like JSON."""
    return text[:1] in '{["-0123456789' or text.startswith(("true", "false", "null"))


def has_unsupported(schema: Mapping[str, Any] | None) -> bool:
    """Return whether part of the schema cannot become a grammar."""
    return schema is not None and _supported(schema, schema, 0) != schema


def _json(schema: Mapping[str, Any]) -> str:
    # The prefix makes the engine read the rest as a grammar of llguidance, and not as its own GBNF.
    return "%llguidance {}\nstart: %json " + json.dumps({**schema, "x-guidance": _COMPACT})


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without additional fields."""
    # Beside these keywords, fields may be named elsewhere in the schema, and closing it would forbid them.
    if "properties" in schema and not ({"anyOf", "oneOf", "allOf", "$ref", "patternProperties"} & set(schema)):
        return {**schema, "additionalProperties": False}
    return schema


def _supported(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    """Return the schema without broken references and unsupported patterns."""
    if isinstance(schema, list):
        return [_supported(one, root, depth + 1) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    if depth > _DEEPEST:
        return {}
    kept = {key: _supported(part, root, depth + 1) for key, part in schema.items()}
    pattern, target = kept.get("pattern"), kept.get("$ref")
    if isinstance(pattern, str) and _BEYOND.search(pattern):
        del kept["pattern"]
    if isinstance(target, str) and not _resolves(target, root):
        del kept["$ref"]
    return kept


def _resolves(target: str, root: Mapping[str, Any]) -> bool:
    """Return whether a reference points into the schema."""
    if not target.startswith("#"):
        return False
    place: Any = root
    for step in target[1:].split("/")[1:]:
        # A JSON pointer (RFC 6901) writes `/` as `~1` and `~` as `~0`.
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, Mapping) or name not in place:
            return False
        place = place[name]
    return True


def _plain(schema: Any, depth: int) -> dict[str, Any]:
    """Return the bare schema: types, names and choices."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return {}
    shape = {key: schema[key] for key in _SHAPE if key in schema}
    if isinstance(fields := schema.get("properties"), Mapping):
        shape["properties"] = {name: _plain(field, depth + 1) for name, field in fields.items()}
    if isinstance(items := schema.get("items"), Mapping):
        shape["items"] = _plain(items, depth + 1)
    return shape
