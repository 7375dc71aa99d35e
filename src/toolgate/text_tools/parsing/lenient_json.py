"""Copy one value that a model wrote as JSON, or nearly so, as valid JSON while it comes.

Valid JSON passes unchanged, including blanks and the spelling of numbers. What is not valid, but can mean only one thing, is
repaired on the way and noted in `fixes`: Python's `True`, `None`, tuples and quotes, keys without quotes, a comma too many,
line breaks and lone backslashes in strings. `NaN` and `Infinity` become strings, which the validation of the arguments may
refuse or accept. Anything else is no value, and the reader returns False.

What is valid and not nested deeply is copied by one regular expression (possessive, hence linear); the rest is read token by
token.
"""

import re
from typing import Literal as Choice
from typing import TypeAlias

from toolgate.text_tools.parsing.escape_json_string import escaped
from toolgate.text_tools.parsing.input_buffer import InputBuffer, Parse, TextSink, word_set

# A possessive group, `(?:…)*+`, keeps half of an iteration that failed before Python 3.11.4: hence atomic ones.
# `\ud83d\ude00` is one character; half of such a pair is not valid in a string.
_SURROGATE_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = rf'(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_SURROGATE_PAIR})'
_CLEAN = rf'[^"\\\x00-\x1f]*+(?>(?:\\{_ESCAPE}[^"\\\x00-\x1f]*+)*)'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_BLANK = r"[ \t\r\n]*+"
_PAIR = rf'"{_CLEAN}"{_BLANK}:{_BLANK}'


def _around(value: str) -> str:
    """Return the pattern of a scalar, or of a container of such values."""
    # A comma must be followed by another member, and the last member by the closing bracket: `{"a":1,}` is no match.
    members = rf"(?>(?:{_PAIR}{value}{_BLANK}(?:,{_BLANK}(?=\")|(?=\}})))*)"
    items = rf"(?>(?:{value}{_BLANK}(?:,{_BLANK}(?=[^\]])|(?=\])))*)"
    return rf"(?:{_SCALAR}|\{{{_BLANK}{members}\}}|\[{_BLANK}{items}\])"


_SCALAR = rf'(?:"{_CLEAN}"|{_NUMBER}|true|false|null)'
_SIMPLE = _around(_around(_SCALAR))  # the outer levels of deeper ones are read token by token
# A whole container; and as many complete items or members of an open one as have come, each with its comma.
_CONTAINER = re.compile(rf"(?=[\[{{]){_around(_SIMPLE)}")
_ITEMS = re.compile(rf"(?>(?:{_BLANK}{_SIMPLE}{_BLANK},(?={_BLANK}[^ \t\r\n\])}}]))+)")
_MEMBERS = re.compile(rf"(?>(?:{_BLANK}{_PAIR}{_SIMPLE}{_BLANK},(?={_BLANK}[^ \t\r\n\])}}]))+)")
# What can be copied inside a string in these quotes as it is. In single quotes, escapes go through `_escape` one by one.
_INSIDE = {'"': re.compile(_CLEAN), "'": re.compile(r"[^'\"\\\x00-\x1f]*+")}
_TOKEN = re.compile(r"[-+.\w]*")
# Keys without quotes: `{key: 1}`. A syntax with quotes of its own, such as Gemma's, has keys with blanks in them.
_BARE_KEY = re.compile(r"[^\s:,{}\[\]()\"'<>]*")
_LOOSE_KEY = re.compile(r"[^:,{}\[\]]*")
_SURROGATES = re.compile(rf"\\{_SURROGATE_PAIR}")
_OCTAL = re.compile(r"[0-7]{1,3}")
_JSON_NUMBER = re.compile(_NUMBER)
_PYTHON_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:_[0-9]+)*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_MAX_DEPTH = 400  # levels of nesting; JSON decoders give up a little later
_LONGEST_NUMBER = 1 << 20  # characters; what is longer is no value
_State: TypeAlias = Choice["value", "after", "broken"]  # a value must follow, a value was read, or it cannot be read
_JSON_LITERALS = frozenset({"true", "false", "null"})
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
# Escapes of Python that JSON does not have; a backslash before a line break joins the lines.
_ESCAPES = {"a": "\a", "v": "\v", "\n": "", "'": "'"}
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}

QUOTES_FIX = "single quotes became double quotes"
WORDS_FIX = "Python's True, False and None became true, false and null"
COMMA_FIX = "a comma before a closing bracket was removed"
KEYS_FIX = "keys were put in quotes"
BREAKS_FIX = "line breaks and other control characters in strings were escaped"
ESCAPES_FIX = "backslashes that begin no JSON escape were doubled or replaced by what they mean in Python"
NUMBERS_FIX = "numbers were written as JSON requires"
SURROGATES_FIX = "halves of characters were replaced by U+FFFD"
FINITE_FIX = "NaN and Infinity, which JSON does not have, were put in quotes"
TUPLES_FIX = "parentheses became brackets"


class LenientJsonReader:
    """Copies values from a buffer; `fixes` lists the repairs. With `python`, backslashes mean what they do there.

    `quote_mark` is another quote around strings, within which nothing is escaped; keys may then contain blanks.
    """

    def __init__(self, buffer: InputBuffer, out: TextSink, *, python: bool = False, quote_mark: str = "") -> None:
        self.fixes: list[str] = []
        self.open: list[str] = []  # the closing brackets of the open containers
        self.past_value = False  # whether the last thing read was a complete value
        self._buffer = buffer
        self._out = out
        self._python = python
        self._quote_mark = quote_mark
        self._bare_key = _LOOSE_KEY if quote_mark else _BARE_KEY

    def copy(self) -> Parse[bool]:
        """Copy the value that comes next; return False if it is none or ends too soon, having copied what was valid."""
        self.open = []
        state: _State = "value"  # a loop over states instead of recursion, which deep nesting would exhaust
        while state != "broken":
            self.past_value = state == "after"
            if state == "value":
                state = yield from self._value()
            elif not self.open:
                return True
            else:
                state = yield from self._after_value()
        return False

    def copy_whole(self) -> bool:
        """Copy a value from a buffer that has ended."""
        try:
            next(self.copy())
        except StopIteration as stop:
            return bool(stop.value)
        raise AssertionError("a reader waits for more text after the end")

    def _value(self) -> Parse[_State]:
        blanks = yield from self._buffer.read_blanks()
        if self.open:  # before the outermost value, blanks are not part of it
            self._out(blanks)
        char = yield from self._buffer.peek()
        if char not in _CLOSERS:
            return "after" if (yield from self._scalar(char)) else "broken"
        if whole := _CONTAINER.match(self._buffer.text, self._buffer.at):
            self._out(self._buffer.take(len(whole[0])))
            return "after"
        if len(self.open) == _MAX_DEPTH:
            return "broken"
        self._buffer.take(1)
        if char == "(":
            self._note_fix(TUPLES_FIX)
        self._out("{" if char == "{" else "[")
        self.open.append(_CLOSERS[char])
        blanks = yield from self._buffer.read_blanks()
        self._out(blanks)
        if (yield from self._buffer.accept(self.open[-1])):
            return self._close()
        return (yield from self._member())

    def _member(self) -> Parse[_State]:
        """Copy simple members or items with one match, then the key of the next member."""
        buffer = self._buffer
        simple = (_MEMBERS if self.open[-1] == "}" else _ITEMS).match(buffer.text, buffer.at)
        if simple:
            self._out(buffer.take(simple.end() - buffer.at))
            self._out((yield from buffer.read_blanks()))
        if self.open[-1] == "}" and not (yield from self._key()):
            return "broken"
        return "value"

    def _after_value(self) -> Parse[_State]:
        """Close the container behind a value, or go on to its next member."""
        blanks = yield from self._buffer.read_blanks()
        if (yield from self._buffer.accept(self.open[-1])):
            self._out(blanks)
            return self._close()
        if not (yield from self._buffer.accept(",")):
            self._out(blanks)
            return "broken"
        self.past_value = False
        more = yield from self._buffer.read_blanks()
        if (yield from self._buffer.accept(self.open[-1])):
            self._note_fix(COMMA_FIX)
            self._out(blanks + more)
            return self._close()
        self._out(f"{blanks},{more}")
        return (yield from self._member())

    def _close(self) -> _State:
        self._out("}" if self.open.pop() == "}" else "]")
        return "after"

    def _key(self) -> Parse[bool]:
        char = yield from self._buffer.peek()
        if char in ('"', "'") or (
            self._quote_mark and (yield from self._buffer.lookahead(len(self._quote_mark))) == self._quote_mark
        ):
            if not (yield from self._string(char)):
                return False
        else:
            key = yield from self._buffer.read_chars(self._bare_key)
            if not key:
                return False
            self._note_fix(KEYS_FIX)
            self._out(f'"{escaped(key)}"')
        blanks = yield from self._buffer.read_blanks()
        if not (yield from self._buffer.accept(":")):
            self._out(blanks)
            return False
        self._out(f"{blanks}:")
        return True

    def _scalar(self, char: str) -> Parse[bool]:
        if char in ('"', "'") and char:
            return (yield from self._string(char))
        if self._quote_mark and char == self._quote_mark[0]:
            return (yield from self._string(char))
        token = yield from self._buffer.read_chars(_TOKEN, _LONGEST_NUMBER)
        if token in _JSON_LITERALS or _JSON_NUMBER.fullmatch(token):
            self._out(token)
        elif token in _PYTHON_LITERALS:
            self._note_fix(WORDS_FIX)
            self._out(_PYTHON_LITERALS[token])
        elif (number := python_number(token)) is not None:
            self._note_fix(NUMBERS_FIX)
            self._out(number)
        elif word := _NOT_FINITE.get(token.lstrip("+-").lower()):
            self._note_fix(FINITE_FIX)
            self._out(f'"{"-" if token.startswith("-") else ""}{word}"')
        else:
            self._out(token)  # copied nevertheless: the arguments are passed on as the model wrote them
            return False
        return True

    def _note_fix(self, fix: str) -> None:
        if fix not in self.fixes:
            self.fixes.append(fix)

    def _string(self, quote: str) -> Parse[bool]:
        if self._quote_mark and quote == self._quote_mark[0]:
            return (yield from self._marked_string())
        if quote == "'":
            self._note_fix(QUOTES_FIX)
        buffer = self._buffer
        if self._python and (yield from buffer.lookahead(3)) == quote * 3:
            return (yield from self._triple_quoted(quote * 3))
        buffer.take(1)
        self._out('"')
        while True:
            found = _INSIDE[quote].match(buffer.text, buffer.at)
            if found and found.end() > buffer.at:
                self._out(buffer.take(found.end() - buffer.at))
            char = yield from buffer.peek()
            if not char:
                return False
            if char == quote:
                buffer.take(1)
                self._out('"')
                return True
            if char == "\\":
                yield from self._escape()
            elif char < " " or char == '"':  # a control character, or a double quote in single ones
                if char < " ":
                    self._note_fix(BREAKS_FIX)
                self._out(escaped(buffer.take(1)))

    def _escape(self) -> Parse[None]:
        """Copy a backslash and what it escapes."""
        kind = (yield from self._buffer.lookahead(2))[1:]
        digits = (yield from self._buffer.lookahead(2 + _HEX.get(kind, 0)))[2:]
        if kind == "u" and _is_hex(digits, 4):
            if not 0xD800 <= int(digits, 16) < 0xE000:
                self._out(self._buffer.take(6))
            elif _SURROGATES.fullmatch((yield from self._buffer.lookahead(12))):
                self._out(self._buffer.take(12))
            else:  # half of a surrogate pair, which no text can contain
                self._note_fix(SURROGATES_FIX)
                self._buffer.take(6)
                self._out("\\ufffd")
        elif kind and kind in '"\\/bfnrt':
            self._out(self._buffer.take(2))
        elif kind in _HEX and (self._python or kind == "x") and _is_hex(digits, _HEX[kind]):
            self._replace(2 + len(digits), _character(int(digits, 16)))
        elif kind and kind in _ESCAPES and (self._python or kind == "'"):
            self._replace(2, _ESCAPES[kind])
        elif self._python and kind and kind in "01234567":
            octal = _OCTAL.match((yield from self._buffer.lookahead(4)), 1)
            self._replace(1 + len(octal[0]) if octal else 2, _character(int(octal[0], 8)) if octal else "")
        else:  # a lone backslash, as in a path or a regular expression
            self._replace(1, "\\")

    def _replace(self, count: int, by: str) -> None:
        self._note_fix(ESCAPES_FIX)
        self._buffer.take(count)
        self._out(escaped(by))

    def _triple_quoted(self, quotes: str) -> Parse[bool]:
        self._buffer.take(3)
        self._out('"')
        stops = word_set(quotes, "\\")
        while True:
            stop = yield from self._buffer.copy_until(stops, lambda piece: self._out(escaped(piece)))
            if stop == "\\":
                yield from self._escape()
                continue
            if not stop:
                return False
            # A quote may stand before the three that end the string.
            while (yield from self._buffer.lookahead(4)) == quotes + quotes[0]:
                self._out(escaped(self._buffer.take(1)))
            self._buffer.take(3)
            self._out('"')
            return True

    def _marked_string(self) -> Parse[bool]:
        if not (yield from self._buffer.accept(self._quote_mark)):
            return False
        self._out('"')
        if not (
            yield from self._buffer.copy_until(word_set(self._quote_mark), lambda piece: self._out(escaped(piece)))
        ):
            return False
        self._buffer.take(len(self._quote_mark))
        self._out('"')
        return True


def _is_hex(digits: str, count: int) -> bool:
    return len(digits) == count and all(digit in "0123456789abcdefABCDEF" for digit in digits)


def _character(code: int) -> str:
    return chr(code) if code < 0x110000 else "\ufffd"


def python_number(token: str) -> str | None:
    """Return a number that is written as in Python, or carelessly, as JSON; None if it is none."""
    if not any(digit in "0123456789" for digit in token) or not _PYTHON_NUMBER.fullmatch(token):
        return None
    text = token.replace("_", "").removeprefix("+")
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, dot, rest = text.partition(".")
    if not whole and dot:
        whole = "0"
    if dot and not rest[:1].isdigit():
        rest = "0" + rest
    number = f"{sign}{whole}{dot}{rest}"
    return number if _JSON_NUMBER.fullmatch(number) else None
