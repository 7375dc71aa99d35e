"""Read calls that are JSON objects with a name and arguments, and arguments that are a JSON object behind a name.

The keys have many names and come in any order; arguments that come before the name wait for it. Knows no marks but fences.
"""

import re
from collections.abc import Callable

import msgspec

from toolgate.conversation.arguments import NO_ARGUMENTS
from toolgate.text_tools.parsing.input_buffer import InputBuffer, Parse
from toolgate.text_tools.parsing.lenient_json import LenientJsonReader
from toolgate.text_tools.parsing.parser_state import CallSink, ParserState
from toolgate.text_tools.parsing.syntax import Read

# `{"name": …, "arguments": …}` is the commonest form; models mix up the keys of all formats that they were trained on.
NAME_KEYS = frozenset({"name", "tool_name", "function", "tool", "function_name", "recipient_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "params", "tool_input"})
ID_KEYS = frozenset({"id", "tool_call_id", "call_id"})
_CALL_KEYS = NAME_KEYS | ARGUMENT_KEYS | ID_KEYS | {"type"}
_LANGUAGE = re.compile(r"[a-zA-Z_]*")
_NOT_AN_OBJECT = "the arguments are not a JSON object"
_NOT_JSON = "the arguments are not valid JSON"


def read_calls(state: ParserState, *closers: str, in_text: bool = False, keyed: bool = False) -> Parse[None]:
    """Read an array of calls, or calls one after another, and then a closing mark if there is one.

    Calls `in_text` stand in plain text and must have a key for their arguments, too. `keyed` calls are objects whose one key
    is the name.
    """
    yield from state.buffer.read_blanks()
    fence = yield from _open_fence(state)

    def read_call() -> Parse[bool]:
        return _read_keyed_call(state, closers) if keyed else _CallObjectReader(state, in_text, closers).read()

    # An array has one call after another behind commas; without one, Llama writes `{…}; {…}` and MiniMax-M1 lines.
    if (yield from state.buffer.accept("[")):
        done = yield from _read_array(state, read_call)
    else:
        done = yield from _read_sequence(state, read_call)
    if done and fence:
        yield from state.accept_closing(fence)
    if done and closers:
        yield from state.accept_closing(*closers)


def _read_array(state: ParserState, read_call: Callable[[], Parse[bool]]) -> Parse[bool]:
    yield from state.buffer.read_blanks()
    while True:
        if not (yield from read_call()):
            return False
        yield from state.buffer.read_blanks()
        if not (yield from state.buffer.accept(",")):
            yield from state.buffer.accept("]")
            state.drop_markup()
            return True
        yield from state.buffer.read_blanks()


def _read_sequence(state: ParserState, read_call: Callable[[], Parse[bool]]) -> Parse[bool]:
    done = False
    while (yield from state.buffer.peek()) == "{":
        if not (yield from read_call()):
            return done
        done = True
        if not (yield from state.buffer.is_followed_by(0, ("{", ";", ","))) or state.buffer.exhausted:
            return True
        yield from state.buffer.read_blanks()
        if (yield from state.buffer.accept_any(";", ",")):
            yield from state.buffer.read_blanks()
    return done


class _CallObjectReader:
    """Reads one call object, whose members come in any order."""

    def __init__(self, state: ParserState, in_text: bool, closers: tuple[str, ...]) -> None:
        self._state = state
        self._buffer = state.buffer
        self._in_text = in_text
        self._closers = closers
        self._name: str | None = None
        self._id: str | None = None
        self._call: CallSink | None = None
        self._early_arguments: list[str] | None = None  # those that came before the name
        self._nested = False  # inside the object that OpenAI's format calls `function`

    def read(self) -> Parse[bool]:
        """Read the object; return False if it is no call."""
        whole = yield from self._members()
        # The call has begun where its arguments came behind its name; else it begins now that both are known.
        if self._call is None:
            if not whole or (self._in_text and self._early_arguments is None):
                return False
            self._call = self._state.begin_call(self._name, self._id) if self._name else None
            if self._call is None:
                return False
            self._call.raw("".join(self._early_arguments or ()))
        self._call.end()
        return True

    def _members(self) -> Parse[bool]:
        """Read the members of an object, and those of a `function` object inside it."""
        buffer = self._buffer
        if not (yield from buffer.accept("{")):
            return False
        while True:
            yield from buffer.read_blanks()
            if (yield from buffer.accept("}")):
                return True
            key = yield from _read_string(buffer)
            if key is None or not (yield from buffer.accept(":")) or (self._in_text and key not in _CALL_KEYS):
                return False
            yield from buffer.read_blanks()
            if not (yield from self._member(key)):
                return False
            yield from buffer.read_blanks()
            yield from buffer.accept(",")

    def _member(self, key: str) -> Parse[bool]:
        char = yield from self._buffer.peek()
        if key == "function" and char == "{" and not self._nested:
            self._nested = True
            return (yield from self._members())
        if key in NAME_KEYS and self._name is None:
            self._name = yield from _read_string(self._buffer)
            # Not a tool on offer: reading stops at once, so that the object streams on as text.
            return bool(self._name) and self._state.resolve_name(self._name or "") is not None
        if key in ARGUMENT_KEYS and self._call is None and self._early_arguments is None:
            return (yield from self._arguments())
        if key in ID_KEYS and char == '"':
            self._id = yield from _read_string(self._buffer)
            return self._id is not None
        return (yield from LenientJsonReader(self._buffer, lambda _: None).copy())

    def _arguments(self) -> Parse[bool]:
        if (yield from self._buffer.accept("null")):
            self._early_arguments = []
            return True
        if self._name is None:  # `{"arguments": {…}, "name": "f"}`: which tool is called is not known yet
            self._early_arguments = []
            return (yield from LenientJsonReader(self._buffer, self._early_arguments.append).copy())
        self._call = self._state.begin_call(self._name, self._id) if self._name else None
        if self._call is None:
            return False
        whole = yield from LenientJsonReader(self._buffer, self._call.raw).copy()
        if not whole:
            yield from self._state.copy_broken(self._call, self._name, _NOT_JSON, *self._closers)
        return whole


def _read_keyed_call(state: ParserState, closers: tuple[str, ...]) -> Parse[bool]:
    """Read an object whose one key is the name and whose value is the arguments."""
    buffer = state.buffer
    if not (yield from buffer.accept("{")):
        return False
    # Apertus writes `{"f": {"city": "Paris"}}`.
    yield from buffer.read_blanks()
    name = yield from _read_string(buffer)
    if not name or not (yield from buffer.accept(":")):
        return False
    call = state.begin_call(name)
    if call is None:
        return False
    if not (yield from LenientJsonReader(buffer, call.raw).copy()):
        yield from state.copy_broken(call, name, _NOT_JSON, *closers)
    yield from buffer.read_blanks()
    yield from buffer.accept("}")
    call.end()
    return True


def read_arguments(state: ParserState, name: str, id: str | None, *closers: str) -> Parse[bool]:
    """Begin a call, read its arguments as one JSON object, perhaps in a fence, and a closing mark if there is one."""
    call = state.begin_call(name, id)
    if call is None:
        return False
    yield from state.buffer.read_blanks()
    fence = yield from _open_fence(state)
    yield from read_argument_object(state, call, name, *closers)
    if fence:
        yield from state.buffer.read_blanks()
        yield from state.buffer.accept(fence)
    call.end()
    if closers:
        yield from state.accept_closing(*closers)
    return True


def marked_calls(begin: str, mark: str, call: Callable[[ParserState], Parse[bool]], end: str) -> Read:
    """Return a reader of calls that each follow a mark, between marks that begin and end them all; `begin` may be missing.

    `call` reads what follows a mark and returns whether that was a call.
    """

    def read(state: ParserState, matched: str) -> Parse[None]:
        buffer = state.buffer
        if matched == begin:
            yield from buffer.read_blanks()
            if not (yield from buffer.accept(mark)):
                return
        while (yield from call(state)):
            yield from buffer.read_blanks()
            if not (yield from buffer.accept(mark)):
                yield from state.accept_closing(end)
                return

    return read


def read_argument_object(state: ParserState, call: CallSink, name: str, *closers: str) -> Parse[None]:
    """Read the arguments of a call: an object, an object inside a string, or nothing at all."""
    yield from state.buffer.read_blanks()
    char = yield from state.buffer.peek()
    if not char and not state.cut:
        call.raw(NO_ARGUMENTS)
    elif char in ("{", '"') and char:
        if not (yield from LenientJsonReader(state.buffer, call.raw).copy()):
            yield from state.copy_broken(call, name, _NOT_JSON, *closers)
    elif char and not (closers and (yield from state.buffer.is_followed_by(0, closers))):
        yield from state.copy_broken(call, name, _NOT_AN_OBJECT, *closers)


def _open_fence(state: ParserState) -> Parse[str]:
    """Read a code fence and its language, and return the fence that closes it."""
    if not (yield from state.buffer.accept("```")):
        return ""
    yield from state.buffer.read_chars(_LANGUAGE)
    yield from state.buffer.read_blanks()
    return "```"


def _read_string(buffer: InputBuffer) -> Parse[str | None]:
    """Read a string and the blanks behind it; None if there is no string."""
    if (yield from buffer.peek()) not in ('"', "'"):
        return None
    pieces: list[str] = []
    if not (yield from LenientJsonReader(buffer, pieces.append).copy()):
        return None
    yield from buffer.read_blanks()
    try:
        return msgspec.json.decode("".join(pieces), type=str)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
