"""Compute the digests that an approval is bound to: the arguments as shown, the tool as defined, the policy in force.

Two texts that mean the same call have one canonical form: keys sorted, spaces removed, numbers as they were written.
A text that parsers could read in two ways has none.
"""

import json
from decimal import Decimal, DecimalException
from hashlib import sha256
from typing import Any, NoReturn

import msgspec

from toolgate.tools.tool import ServerToolDefinition

# Numbers are parsed to Decimal and written as they were, so that 1e400 or 0.1 with thirty digits stay what they are.
_encode = msgspec.json.Encoder(decimal_format="number", order="sorted").encode


class AmbiguousArguments(Exception):
    """The arguments are not a JSON object that every parser reads alike; the text is the reason."""


def canonical_arguments(text: str) -> str:
    """Encode the arguments in their canonical form.

    Raises AmbiguousArguments if a person could be shown one thing and the tool do another.
    """
    try:
        return _encode(parse_arguments(text)).decode()
    except UnicodeEncodeError:
        raise AmbiguousArguments("they contain half of a surrogate pair") from None
    except RecursionError:
        raise AmbiguousArguments("they are nested too deeply") from None


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments, numbers as they were written; AmbiguousArguments if parsers could differ."""

    def refuse_constant(name: str) -> NoReturn:
        raise AmbiguousArguments(f"{name} is no JSON number")

    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_float=Decimal, parse_constant=refuse_constant)
    except RecursionError:
        raise AmbiguousArguments("they are nested too deeply") from None
    except (ValueError, DecimalException) as error:
        raise AmbiguousArguments(f"they are not readable JSON: {error}") from None
    if type(value) is not dict:
        raise AmbiguousArguments("they are no object")
    return value


def spec_digest(spec: ServerToolDefinition) -> str:
    """Digest the definition of a tool: any change of its fields, or of where its calls go, changes the digest."""
    defined = (spec.name, spec.source, spec.origin, spec.description, spec.input_schema, spec.output_schema)
    target = () if spec.target is None else (spec.target,)  # without one, the digest is that of earlier versions
    return _digest(_encode((*defined, spec.annotations, spec.approval, *target)))


def call_digest(caller: str, tool: str, arguments: str, spec: str, policy: str) -> str:
    """Digest the one call that an approval is good for; `arguments` are canonical."""
    return _digest(_encode((caller, tool, arguments, spec, policy)))


def _digest(encoded: bytes) -> str:
    return sha256(encoded).hexdigest()[:32]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    # Of two equal keys one parser takes the first and another the last: a person would see one, the tool get the other.
    if len(value) != len(pairs):
        raise AmbiguousArguments("a key stands twice in one object")
    return value
