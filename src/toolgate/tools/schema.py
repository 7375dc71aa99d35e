"""Whether a tool's JSON Schema is one, decided without network, files or long thought.

A schema comes from whoever calls us. Its `$schema` may name any address and is looked at only if it is a published draft's;
size, nesting and the work it may cause are bounded before the validator sees it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import jsonschema_rs
import msgspec

from toolgate.tools.schema_cost import SchemaCost, TooComplex

MAX_BYTES = 64 * 1024
MAX_DEPTH = 64
_REMEMBERED = 64 * 1024
"""Schemas, of 32 bytes and a short sentence each."""

_SAID = ("additionalProperties", "unevaluatedProperties")
_ELSEWHERE = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas")
"""Where fields may be declared beside `properties`."""

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


class SchemaCheck:
    """Says what is wrong with a schema; remembers those seen, since clients send the same tools with every request.

    Threads may share one, so that a schema which a thread has checked costs the event loop no more than a digest.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, str] = OrderedDict()  # empty for a good one

    def complaint(self, schema: Mapping[str, Any]) -> str | None:
        """What is wrong, in words that complete "the schema …", or None."""
        try:
            key = msgspec.json.encode(schema)
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is no character"
        if len(key) > MAX_BYTES:
            return f"is larger than {MAX_BYTES} bytes"
        digest = blake2b(key, digest_size=32).digest()
        found = self._seen.get(digest)
        if found is None:
            found = self._seen[digest] = _complaint(schema) or ""
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return found or None


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that arguments are checked against: fields that nobody declared are refused."""
    known = {name: value for name, value in schema.items() if name != "$schema" or value in DRAFTS}
    if not any(word in known for word in _SAID):
        if not any(word in known for word in _ELSEWHERE):
            known |= {"additionalProperties": False} if "properties" in known else {}
        elif b'"properties":' in msgspec.json.encode(known):  # where no field is declared at all, any is welcome
            known["unevaluatedProperties"] = False
    return known


def _complaint(schema: Mapping[str, Any]) -> str | None:
    if _depth(schema, MAX_DEPTH) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels"
    if schema.get("type", "object") != "object":
        return f"must describe an object, not {schema['type']!r}"
    plain = {name: value for name, value in schema.items() if name != "$schema" or value in DRAFTS}
    first = _invalid(plain)
    # Without a word about the draft, what either of the two in use accepts is good.
    if first is not None and ("$schema" in plain or _invalid({**plain, "$schema": DRAFT_7})):
        return first
    try:
        SchemaCost(closed(schema))
    except TooComplex as reason:
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
    """How deep it is nested, not looking much further than the limit."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if limit < 0:
        return 1
    return 1 + max([_depth(item, limit - 1) for item in inner if isinstance(item, (dict, list))], default=0)
