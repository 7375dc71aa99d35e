"""Turn bare text into a JSON value of a type that the schema allows.

A string streams as it comes. Where the schema allows strings and other types, text waits only as long as it may still be one
of the others. Numbers and the like are short and wait for their end. Text that is of no allowed type becomes a string, so
that the validation of the arguments can report it; it is never changed until it fits.

Knows no syntax.
"""

import re

from toolgate.text_tools.parsing.input_buffer import InputBuffer
from toolgate.text_tools.parsing.lenient_json import LenientJsonReader, python_number
from toolgate.text_tools.parsing.parser_state import CallSink
from toolgate.text_tools.parsing.schema_types import ARRAY, BOOLEAN, INTEGER, NULL, NUMBER, OBJECT, STRING

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMERIC = re.compile(r"[-+.0-9eE]*")  # what may still become a number
_LITERALS = {"true": BOOLEAN, "false": BOOLEAN, "null": NULL}
_LOOSE_LITERALS = {
    "true": ("true", BOOLEAN),
    "false": ("false", BOOLEAN),
    "none": ("null", NULL),
    "null": ("null", NULL),
}
_LONGEST_SCALAR = 4096  # longer text is a string, so that it need not be joined and looked at again with every piece


class BareValueConverter:
    """One value of a call; `feed` it the text, then `end` it."""

    def __init__(self, call: CallSink, allowed: frozenset[str]) -> None:
        self._call = call
        self._allowed = allowed
        self._waiting: list[str] | None = None if allowed == {STRING} else []  # None once it is a string
        self._size = 0
        self._is_container = False
        if self._waiting is None:
            call.quote()

    def feed(self, piece: str) -> None:
        """Add text to the value."""
        if self._waiting is None:
            self._call.string(piece)
            return
        self._waiting.append(piece)
        self._size += len(piece)
        if STRING in self._allowed and not self._may_be_other_type():
            self._become_string()

    def end(self, is_string: bool = False) -> None:
        """End the value; `is_string` is set if its markup shows it to be a string."""
        if is_string:
            self._become_string()
        if self._waiting is None:
            self._call.quote()
            return
        json = parse_bare("".join(self._waiting), self._allowed)
        if json is None:
            self._become_string()
            self._call.quote()
        else:
            self._call.raw(json)

    def _become_string(self) -> None:
        if self._waiting is not None:
            self._call.quote()
            self._call.string("".join(self._waiting))
            self._waiting = None

    def _may_be_other_type(self) -> bool:
        """Return whether the text so far may be something other than a string."""
        if self._is_container:
            return True
        text = "".join(self._waiting or ()).strip()
        self._is_container = text[:1] in ("{", "[") and bool(self._allowed & {ARRAY, OBJECT})
        if self._is_container or self._size > _LONGEST_SCALAR:
            return self._is_container
        return any(word.startswith(text) for word, type_ in _LITERALS.items() if type_ in self._allowed) or (
            bool(self._allowed & {NUMBER, INTEGER}) and _NUMERIC.fullmatch(text) is not None
        )


def parse_bare(text: str, allowed: frozenset[str]) -> str | None:
    """Return the text as JSON of one of these types other than string; None if it is none of them."""
    bare = text.strip()
    if bare in _LITERALS and _LITERALS[bare] in allowed:
        return bare
    if allowed & {NUMBER, INTEGER} and _NUMBER.fullmatch(bare) and (number := _number(bare, allowed)):
        return number
    if bare[:1] in ("{", "[") and allowed & {ARRAY, OBJECT}:
        return as_json(bare) if (OBJECT if bare[0] == "{" else ARRAY) in allowed else None
    if STRING in allowed:
        return None
    # Where no string is allowed, other spellings can only mean one thing: "5" in quotes, Python's True, 1_000.
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'" and bare[1:-1] and '"' not in bare[1:-1]:
        return parse_bare(bare[1:-1], allowed)
    literal, type_ = _LOOSE_LITERALS.get(bare.lower(), ("", ""))
    if type_ in allowed:
        return literal
    written = python_number(bare) if allowed & {NUMBER, INTEGER} else None
    return _number(written, allowed) if written else None


def _number(text: str, allowed: frozenset[str]) -> str | None:
    """Return the number; where only integers are allowed, 2.0 becomes 2 and 2.5 becomes None."""
    if NUMBER in allowed or text.lstrip("-").isdecimal():
        return text  # as it is written: 1.50 and numbers beyond 2^53 reach the tool unchanged
    whole, dot, rest = text.partition(".")
    return whole if dot and not rest.strip("0") else None


def as_json(text: str) -> str | None:
    """Return the text as strict JSON, repaired where it can mean only one thing; None if it is no value."""
    buffer, pieces = InputBuffer(), list[str]()
    buffer.push(text)
    buffer.ended = True
    whole = LenientJsonReader(buffer, pieces.append, python=True).copy_whole() and not buffer.text[buffer.at :].strip()
    return "".join(pieces) if whole else None
