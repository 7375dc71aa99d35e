"""Read calls that are written as in Python: `name(key=value, …)`, one after another or in a list. Knows no marks.

The names of positional arguments are not guessed: what has any is not a call.
"""

import re

from toolgate.text_tools.parsing.input_buffer import Parse
from toolgate.text_tools.parsing.lenient_json import LenientJsonReader
from toolgate.text_tools.parsing.parser_state import ParserState

# More than Python allows: names of tools have dots, dashes, slashes and namespaces such as `default_api:f`.
_NAME = re.compile(r"[\w.:/-]*")
_KEY = re.compile(r"[\w.$-]*")
_NOT_PYTHON = "the arguments are not keyword arguments with literal values"


def read_calls(state: ParserState, *closers: str) -> Parse[None]:
    """Read a list of calls, or calls one after another, and then a closing mark if there is one."""
    yield from state.buffer.read_blanks()
    listed = yield from state.buffer.accept("[")
    done = False
    while (yield from read_call(state, *closers)):
        done = True
        if not listed:
            char = yield from state.buffer.peek()
            if char not in (",", ";", "\n", "\r", " "):
                break
            if char in (",", ";"):
                state.buffer.take(1)
        yield from state.buffer.read_blanks()
        if listed and not (yield from state.buffer.accept(",")):
            yield from state.buffer.accept("]")
            state.drop_markup()
            break
        yield from state.buffer.read_blanks()
    if done and closers:
        yield from state.accept_closing(*closers)


def read_call(state: ParserState, *closers: str) -> Parse[bool]:
    """Read one call; return False if there is none."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    name = yield from buffer.read_chars(_NAME)
    if not name or state.resolve_name(name) is None or not (yield from buffer.accept("(")):
        return False
    yield from buffer.read_blanks()
    # The first key is read before the call begins: `f(x)` in prose is no call, while `f(x=1)` is one.
    key = None
    if not (yield from buffer.accept(")")):
        key = yield from _read_key(state)
        if not key:
            return False
    parsed = state.begin_call(name)
    if parsed is None:
        return False
    while key:
        parsed.key(key)
        yield from buffer.read_blanks()
        whole = yield from LenientJsonReader(buffer, parsed.raw, python=True).copy()
        key = (yield from _read_next_key(state)) if whole else None
        if key is None:
            yield from state.copy_broken(parsed, name, _NOT_PYTHON, *closers)
            parsed.end()
            return True
    parsed.end_members()
    parsed.end()
    return True


def _read_key(state: ParserState) -> Parse[str | None]:
    key = yield from state.buffer.read_chars(_KEY)
    yield from state.buffer.read_blanks()
    if not key or not (yield from state.buffer.accept("=")):
        return None
    return key if (yield from state.buffer.peek()) != "=" else None  # `f(a == b)` compares


def _read_next_key(state: ParserState) -> Parse[str | None]:
    """Return the next key behind a value, an empty string at the end of the call, or None if neither follows."""
    buffer = state.buffer
    yield from buffer.read_blanks()
    if (yield from buffer.accept(")")):
        return ""
    if not (yield from buffer.accept(",")):
        return None
    yield from buffer.read_blanks()
    if (yield from buffer.accept(")")):
        return ""
    return (yield from _read_key(state))
