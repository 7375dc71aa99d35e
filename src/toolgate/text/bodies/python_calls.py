"""Calls written as Python does: `name(key=value, …)`, one after another or in a list; knows no marks around them.

Arguments without a key are not guessed at: what has them is not a call.
"""

import re

from toolgate.text.literal import Literal
from toolgate.text.reading import Reading
from toolgate.text.source import Steps

_NAME = re.compile(r"[\w.:/-]*")
_KEY = re.compile(r"[\w.$-]*")
_NOT_PYTHON = "the arguments are not keyword arguments with literal values"


def calls(reading: Reading, *closers: str) -> Steps[None]:
    """Reads a list of calls, or calls one after another, and then a closing word if there is one."""
    yield from reading.source.blanks()
    listed = yield from reading.source.word("[")
    done = False
    while (yield from call(reading, *closers)):
        done = True
        if not listed and not (yield from _another(reading)):
            break
        yield from reading.source.blanks()
        if listed and not (yield from reading.source.word(",")):
            yield from reading.source.word("]")
            reading.drop()
            break
        yield from reading.source.blanks()
    if done and closers:
        yield from reading.close(*closers)


def call(reading: Reading, *closers: str) -> Steps[bool]:
    """Reads one call; False if none comes next."""
    source = reading.source
    yield from source.blanks()
    name = yield from source.run(_NAME)
    if not name or reading.declared(name) is None or not (yield from source.word("(")):
        return False
    yield from source.blanks()
    key = None
    if not (yield from source.word(")")):
        key = yield from _key(reading)
        if not key:
            return False
    begun = reading.begin(name)
    if begun is None:
        return False
    while key:
        begun.key(key)
        yield from source.blanks()
        whole = yield from Literal(source, begun.raw, python=True).copy()
        key = (yield from _next_key(reading)) if whole else None
        if key is None:
            yield from reading.broken(begun, name, _NOT_PYTHON, *closers)
            begun.end()
            return True
    begun.end_members()
    begun.end()
    return True


def _key(reading: Reading) -> Steps[str | None]:
    key = yield from reading.source.run(_KEY)
    yield from reading.source.blanks()
    if not key or not (yield from reading.source.word("=")):
        return None
    return key if (yield from reading.source.peek()) != "=" else None


def _next_key(reading: Reading) -> Steps[str | None]:
    """Past a value: the next key, nothing where the call ends, None where neither is to be seen."""
    source = reading.source
    yield from source.blanks()
    if (yield from source.word(")")):
        return ""
    if not (yield from source.word(",")):
        return None
    yield from source.blanks()
    if (yield from source.word(")")):
        return ""
    return (yield from _key(reading))


def _another(reading: Reading) -> Steps[bool]:
    """Whether, behind a call that stands in no list, another may come: past commas, semicolons or blanks."""
    char = yield from reading.source.peek()
    if char in (",", ";") and char:
        reading.source.take(1)
    return char in (",", ";", "\n", "\r", " ") and char != ""
