"""Calls written as JSON objects with a name and arguments, and arguments written as a JSON object behind a name.

The keys go by many names and come in any order; arguments that come before the name wait for it. Knows no marks but fences.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from toolgate.conversation.arguments import NO_ARGUMENTS
from toolgate.text.literal import Literal
from toolgate.text.reading import Call, Reading
from toolgate.text.source import Steps
from toolgate.text.syntax import Read

NAME_KEYS = frozenset({"name", "tool_name", "function", "tool", "function_name", "recipient_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "params", "tool_input"})
ID_KEYS = frozenset({"id", "tool_call_id", "call_id"})
_CALL_KEYS = NAME_KEYS | ARGUMENT_KEYS | ID_KEYS | {"type"}
_FENCE = re.compile(r"[a-zA-Z_]*")
_NOT_AN_OBJECT = "the arguments are not a JSON object"
_NOT_JSON = "the arguments are not valid JSON"

_Read: TypeAlias = Callable[[Reading, bool, tuple[str, ...]], Steps[bool]]


def calls(reading: Reading, *closers: str, wordy: bool = False, keyed: bool = False) -> Steps[None]:
    """Reads an array of calls, or calls one after another, and then a closing word if there is one.

    `wordy` calls stand in plain text and must name their arguments, too. `keyed` ones are objects of name and arguments.
    """
    yield from reading.source.blanks()
    fence = yield from _open_fence(reading)
    read = _keyed_call if keyed else _call
    if (yield from reading.source.word("[")):
        done = yield from _array(reading, read, wordy, closers)
    else:
        done = yield from _sequence(reading, read, wordy, closers)
    if done and fence:
        yield from reading.close(fence)
    if done and closers:
        yield from reading.close(*closers)


def _array(reading: Reading, read: _Read, wordy: bool, closers: tuple[str, ...]) -> Steps[bool]:
    yield from reading.source.blanks()
    while True:
        if not (yield from read(reading, wordy, closers)):
            return False
        yield from reading.source.blanks()
        if not (yield from reading.source.word(",")):
            yield from reading.source.word("]")
            reading.drop()
            return True
        yield from reading.source.blanks()


def _sequence(reading: Reading, read: _Read, wordy: bool, closers: tuple[str, ...]) -> Steps[bool]:
    done = False
    while (yield from reading.source.peek()) == "{":
        if not (yield from read(reading, wordy, closers)):
            return done
        done = True
        if not (yield from reading.source.followed(0, ("{", ";", ","))) or reading.source.over:
            return True
        yield from reading.source.blanks()
        if (yield from reading.source.one_of(";", ",")):
            yield from reading.source.blanks()
    return done


class _Object:
    """A call object being read."""

    def __init__(self, reading: Reading, wordy: bool, closers: tuple[str, ...]) -> None:
        self.reading = reading
        self.wordy = wordy
        self.closers = closers
        self.name: str | None = None
        self.id: str | None = None
        self.call: Call | None = None
        self.early: list[str] | None = None  # arguments that came before the name
        self.nested = False  # inside the object that OpenAI's format calls `function`

    def begin(self) -> bool:
        """Begins the call; False if the name is no tool's."""
        self.call = self.reading.begin(self.name, self.id) if self.name else None
        return self.call is not None


def _call(reading: Reading, wordy: bool, closers: tuple[str, ...]) -> Steps[bool]:
    """Reads one call object; False if it turned out to be none."""
    state = _Object(reading, wordy, closers)
    whole = yield from _members(state)
    if state.call is None:
        if not whole or (wordy and state.early is None) or not state.begin() or state.call is None:
            return False
        state.call.raw("".join(state.early or ()))
    state.call.end()
    return True


def _members(state: _Object) -> Steps[bool]:
    """Reads an object's members into the state, and those of a `function` object inside it."""
    source = state.reading.source
    if not (yield from source.word("{")):
        return False
    while True:
        yield from source.blanks()
        if (yield from source.word("}")):
            return True
        key = yield from _text(state.reading)
        if key is None or not (yield from source.word(":")) or (state.wordy and key not in _CALL_KEYS):
            return False
        yield from source.blanks()
        if not (yield from _member(state, key)):
            return False
        yield from source.blanks()
        yield from source.word(",")


def _member(state: _Object, key: str) -> Steps[bool]:
    char = yield from state.reading.source.peek()
    if key == "function" and char == "{" and not state.nested:
        state.nested = True
        return (yield from _members(state))
    if key in NAME_KEYS and state.name is None:
        state.name = yield from _text(state.reading)
        return not (not state.name or state.reading.declared(state.name) is None)
    if key in ARGUMENT_KEYS and state.call is None and state.early is None:
        return (yield from _arguments(state))
    if key in ID_KEYS and char == '"':
        state.id = yield from _text(state.reading)
        return state.id is not None
    return (yield from Literal(state.reading.source, lambda _: None).copy())


def _arguments(state: _Object) -> Steps[bool]:
    reading = state.reading
    if (yield from reading.source.word("null")):
        state.early = []
        return True
    if state.name is None:
        state.early = []
        return (yield from Literal(reading.source, state.early.append).copy())
    if not state.begin() or state.call is None:
        return False
    whole = yield from Literal(reading.source, state.call.raw).copy()
    if not whole:
        yield from reading.broken(state.call, state.name, _NOT_JSON, *state.closers)
    return whole


def _keyed_call(reading: Reading, wordy: bool, closers: tuple[str, ...]) -> Steps[bool]:
    """Reads an object whose one key is the name and whose value is the arguments."""
    source = reading.source
    if not (yield from source.word("{")):
        return False
    yield from source.blanks()
    name = yield from _text(reading)
    if not name or not (yield from source.word(":")):
        return False
    call = reading.begin(name)
    if call is None:
        return False
    if not (yield from Literal(source, call.raw).copy()):
        yield from reading.broken(call, name, _NOT_JSON, *closers)
    yield from source.blanks()
    yield from source.word("}")
    call.end()
    return True


def arguments(reading: Reading, name: str, id: str | None, *closers: str) -> Steps[bool]:
    """Begins a call, reads its arguments as one JSON object, perhaps in a fence, and a closing word if there is one."""
    call = reading.begin(name, id)
    if call is None:
        return False
    yield from reading.source.blanks()
    fence = yield from _open_fence(reading)
    yield from argument_object(reading, call, name, *closers)
    if fence:
        yield from reading.source.blanks()
        yield from reading.source.word(fence)
    call.end()
    if closers:
        yield from reading.close(*closers)
    return True


def marked(begin: str, mark: str, call: Callable[[Reading], Steps[bool]], end: str) -> Read:
    """Reads calls that stand behind a mark each, between words that begin and end all of them; the first may be left out.

    `call` reads what stands behind a mark and says whether that was a call.
    """

    def read(reading: Reading, opened: str) -> Steps[None]:
        source = reading.source
        if opened == begin:
            yield from source.blanks()
            if not (yield from source.word(mark)):
                return
        while (yield from call(reading)):
            yield from source.blanks()
            if not (yield from source.word(mark)):
                yield from reading.close(end)
                return

    return read


def argument_object(reading: Reading, call: Call, name: str, *closers: str) -> Steps[None]:
    """Reads the arguments of a call that has begun: an object, one inside a string, or nothing at all."""
    yield from reading.source.blanks()
    char = yield from reading.source.peek()
    if not char and not reading.cut:
        call.raw(NO_ARGUMENTS)
    elif char in ("{", '"') and char:
        if not (yield from Literal(reading.source, call.raw).copy()):
            yield from reading.broken(call, name, _NOT_JSON, *closers)
    elif char and not (yield from _at_end(reading, closers)):
        yield from reading.broken(call, name, _NOT_AN_OBJECT, *closers)


def _at_end(reading: Reading, closers: tuple[str, ...]) -> Steps[bool]:
    return (yield from reading.source.followed(0, closers)) if closers else False


def _open_fence(reading: Reading) -> Steps[str]:
    """Reads a code fence and its language; returns the fence that closes it."""
    if not (yield from reading.source.word("```")):
        return ""
    yield from reading.source.run(_FENCE)
    yield from reading.source.blanks()
    return "```"


def _text(reading: Reading) -> Steps[str | None]:
    """Reads a string and the blanks behind it; None if none comes next."""
    if (yield from reading.source.peek()) not in ('"', "'"):
        return None
    pieces: list[str] = []
    if not (yield from Literal(reading.source, pieces.append).copy()):
        return None
    yield from reading.source.blanks()
    try:
        return msgspec.json.decode("".join(pieces), type=str)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
