"""Bare text becomes a JSON value of the type that the schema asks for.

A string streams as it comes. Where the schema allows strings beside other types, text waits only as long as it could still
be one of those. Numbers and the like are short and wait for their end. What is not of the type asked for becomes a string,
so that whoever checks the arguments can say what is wrong with it; it is never bent until it fits.

Knows no syntax.
"""

import re

from toolgate.text.kinds import ARRAY, BOOLEAN, INTEGER, NULL, NUMBER, OBJECT, STRING
from toolgate.text.literal import Literal, python_number
from toolgate.text.reading import Call
from toolgate.text.source import Source

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMERIC = re.compile(r"[-+.0-9eE]*")
_WORDS = {"true": BOOLEAN, "false": BOOLEAN, "null": NULL}
_LOOSE = {"true": ("true", BOOLEAN), "false": ("false", BOOLEAN), "none": ("null", NULL), "null": ("null", NULL)}
_LONGEST_SCALAR = 4096


class Value:
    """One value being written to a call; `feed` it the text and `end` it."""

    def __init__(self, call: Call, allowed: frozenset[str]) -> None:
        self._call = call
        self._allowed = allowed
        self._waiting: list[str] | None = None if allowed == {STRING} else []
        self._size = 0
        self._container = False
        if self._waiting is None:
            call.quote()

    def feed(self, piece: str) -> None:
        """More text of the value."""
        if self._waiting is None:
            self._call.string(piece)
            return
        self._waiting.append(piece)
        self._size += len(piece)
        if STRING in self._allowed and not self._undecided():
            self._become_string()

    def end(self, is_string: bool = False) -> None:
        """The value is over; `is_string` says that its form showed it to be a string."""
        if is_string:
            self._become_string()
        if self._waiting is None:
            self._call.quote()
            return
        text = "".join(self._waiting)
        written = typed(text, self._allowed)
        if written is None:
            self._become_string()
            self._call.quote()
        else:
            self._call.raw(written)

    def _become_string(self) -> None:
        if self._waiting is not None:
            self._call.quote()
            self._call.string("".join(self._waiting))
            self._waiting = None

    def _undecided(self) -> bool:
        """Whether the text so far may be something other than a string."""
        if self._container:
            return True
        text = "".join(self._waiting or ()).strip()
        self._container = text[:1] in ("{", "[") and bool(self._allowed & {ARRAY, OBJECT})
        if self._container or self._size > _LONGEST_SCALAR:
            return self._container
        return any(word.startswith(text) for word, kind in _WORDS.items() if kind in self._allowed) or (
            bool(self._allowed & {NUMBER, INTEGER}) and _NUMERIC.fullmatch(text) is not None
        )


def typed(text: str, allowed: frozenset[str]) -> str | None:
    """The text as JSON of one of these types other than string; None if it is none of them."""
    bare = text.strip()
    if bare in _WORDS and _WORDS[bare] in allowed:
        return bare
    if allowed & {NUMBER, INTEGER} and _NUMBER.fullmatch(bare) and (number := _number(bare, allowed)):
        return number
    if bare[:1] in ("{", "[") and allowed & {ARRAY, OBJECT}:
        return _container(bare, allowed)
    return None if STRING in allowed else _loosely(bare, allowed)


def _number(text: str, allowed: frozenset[str]) -> str | None:
    """The number; where only whole ones are wanted, one that is whole is written so."""
    if NUMBER in allowed or text.lstrip("-").isdecimal():
        return text
    whole, dot, rest = text.partition(".")
    return whole if dot and not rest.strip("0") else None


def _loosely(text: str, allowed: frozenset[str]) -> str | None:
    """What a model means where no string is wanted: Python's words, numbers in quotes or oddly spelt."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[1:-1] and '"' not in text[1:-1]:
        return typed(text[1:-1], allowed)
    word, kind = _LOOSE.get(text.lower(), ("", ""))
    if kind in allowed:
        return word
    number = python_number(text) if allowed & {NUMBER, INTEGER} else None
    return _number(number, allowed) if number else None


def _container(text: str, allowed: frozenset[str]) -> str | None:
    """An array or object, if it is one from end to end."""
    written, kind = as_json(text), OBJECT if text[0] == "{" else ARRAY
    return written if kind in allowed else None


def as_json(text: str) -> str | None:
    """The text as strict JSON, mended where it can mean only one thing; None if it is no value."""
    source, pieces = Source(), list[str]()
    source.push(text)
    source.ended = True
    copying = Literal(source, pieces.append, python=True).copy()
    try:
        next(copying)
    except StopIteration as stop:
        whole = stop.value and not source.text[source.at :].strip()
        return "".join(pieces) if whole else None
    raise AssertionError("a source that has ended keeps no reader waiting")
