"""What an answer is bound to: the arguments as they were shown, the tool as it was defined, the policy in force.

Two texts that mean the same call have one canonical form: keys sorted, blanks gone, numbers kept as they were written.
Text with two meanings has none.
"""

import json
from decimal import Decimal, DecimalException
from hashlib import sha256
from typing import Any, NoReturn

import msgspec

from toolgate.tools.tool import ToolSpec

_encode = msgspec.json.Encoder(decimal_format="number", order="sorted").encode


class Ambiguous(Exception):
    """The arguments are not one JSON object that everybody reads alike; the text says why."""


def canonical(text: str) -> str:
    """The arguments in their one form; Ambiguous if a person could be shown one thing and the tool do another."""
    try:
        return _encode(meant(text)).decode()
    except UnicodeEncodeError:
        raise Ambiguous("they hold half of a surrogate pair") from None
    except RecursionError:
        raise Ambiguous("they are nested too deeply") from None


def meant(text: str) -> dict[str, Any]:
    """The object that the text means, numbers as they were written; Ambiguous if readers could differ."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_float=Decimal, parse_constant=_refuse)
    except RecursionError:
        raise Ambiguous("they are nested too deeply") from None
    except (ValueError, DecimalException) as error:
        raise Ambiguous(f"they are not readable JSON: {error}") from None
    if type(value) is not dict:
        raise Ambiguous("they are no object")
    return value


def spec_digest(spec: ToolSpec) -> str:
    """What the tool says of itself, in 32 characters: any change of its definition changes them."""
    said = (spec.name, spec.source, spec.origin, spec.description, spec.input_schema, spec.output_schema)
    return _digest(_encode((*said, spec.annotations, spec.approval)))


def call_digest(caller: str, tool: str, arguments: str, spec: str, policy: str) -> str:
    """The one call that an answer is good for; `arguments` are canonical."""
    return _digest(_encode((caller, tool, arguments, spec, policy)))


def _digest(said: bytes) -> str:
    return sha256(said).hexdigest()[:32]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Ambiguous("a key stands twice in one object")
    return value


def _refuse(name: str) -> NoReturn:
    raise Ambiguous(f"{name} is no JSON number")
