"""Check that a tool's input schema is valid JSON Schema, without network or files and in bounded time.

Schemas come from clients and foreign servers. A `$schema` counts only if it is the address of a published draft; size,
nesting and the work that a schema may cause are bounded before the validator sees it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import jsonschema_rs
import msgspec

from toolgate.tools.schema_complexity import SchemaComplexity, SchemaTooComplex

MAX_BYTES = 64 * 1024
MAX_DEPTH = 64
# Schemas whose results are cached, each as 32 bytes and a short sentence.
_MAX_CACHED = 64 * 1024

_CLOSING = ("additionalProperties", "unevaluatedProperties")
# Keywords under which fields may be declared beside `properties`.
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas")

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFTS = frozenset(
    {
        DRAFT_7,
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)


class ToolSchemaValidator:
    """Checks schemas and caches the results, since clients send the same tools with every request.

    Threads may share one, so that a schema which a thread has checked costs the event loop no more than a digest.
    """

    def __init__(self) -> None:
        self._results: OrderedDict[bytes, str] = OrderedDict()  # by digest; empty for a valid schema

    def problem(self, schema: Mapping[str, Any]) -> str | None:
        """Return what is wrong, as the rest of a sentence that begins with "the schema …"; None if nothing is."""
        try:
            key = msgspec.json.encode(schema)
        except UnicodeEncodeError:
            return "contains half of a surrogate pair, which is no character"
        if len(key) > MAX_BYTES:
            return f"is larger than {MAX_BYTES} bytes"
        digest = blake2b(key, digest_size=32).digest()
        found = self._results.get(digest)
        if found is None:
            found = self._results[digest] = _problem(schema) or ""
            if len(self._results) > _MAX_CACHED:
                self._results.popitem(last=False)
        return found or None


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make the schema that arguments are checked against: it refuses undeclared fields."""
    known = {name: value for name, value in schema.items() if name != "$schema" or value in DRAFTS}
    if not any(word in known for word in _CLOSING):
        # `additionalProperties` sees the `properties` beside it alone, and would refuse fields that `allOf` declares.
        # `unevaluatedProperties` sees all of them and costs more, so that it is used only where that matters.
        if not any(word in known for word in _COMBINING):
            known |= {"additionalProperties": False} if "properties" in known else {}
        elif b'"properties":' in msgspec.json.encode(known):  # a schema that declares no field at all accepts any
            known["unevaluatedProperties"] = False
    return known


def _problem(schema: Mapping[str, Any]) -> str | None:
    # First, because all checks that follow recurse into the schema.
    if _depth(schema, MAX_DEPTH) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if schema.get("type", "object") != "object":
        return f"must describe an object, not {schema['type']!r}"
    plain = {name: value for name, value in schema.items() if name != "$schema" or value in DRAFTS}
    first = _invalid(plain)
    # Without a `$schema`, what either of the two drafts in use accepts is valid.
    if first is not None and ("$schema" in plain or _invalid({**plain, "$schema": DRAFT_7})):
        return first
    try:
        SchemaComplexity(closed_schema(schema))
    except SchemaTooComplex as reason:
        return str(reason)
    return None


def _invalid(schema: Mapping[str, Any]) -> str | None:
    try:
        jsonschema_rs.meta.validate(dict(schema))
    except jsonschema_rs.ValidationError as error:
        place = "".join([f"/{step}" for step in error.instance_path])
        return f"is not valid JSON Schema at {place or 'its root'}: {error.message[:200]}"
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        return f"is not valid JSON Schema: {str(error)[:200]}"
    return None


def _depth(value: Any, limit: int) -> int:
    """Measure how deep a value is nested, not much further than the limit."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if limit < 0:
        return 1
    return 1 + max([_depth(item, limit - 1) for item in inner if isinstance(item, (dict, list))], default=0)
