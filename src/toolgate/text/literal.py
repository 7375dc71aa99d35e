"""One value, written by a model as JSON or nearly so, copied out as JSON while it comes.

What is JSON passes untouched, blanks and spelling of numbers included. What is not, but can mean only one thing, is mended
on the way and noted in `fixes`: Python's `True`, `None`, tuples and quotes, keys without quotes, a comma too many, line
breaks and lone backslashes in strings. `NaN` and `Infinity` become strings, for whoever checks the arguments to refuse or
accept. Anything else is no value, and the caller is told so.

What is well-formed and not nested deeply is copied by one regular expression (possessive, hence linear); the rest goes token
by token.
"""

import re
from typing import Literal as Choice
from typing import TypeAlias

from toolgate.text.source import Out, Source, Steps, words
from toolgate.text.strings import escaped

# A possessive group, `(?:…)*+`, keeps half of an iteration that failed before Python 3.11.4: hence atomic ones.
_PAIR_OF_HALVES = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = rf'(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_PAIR_OF_HALVES})'
_CLEAN = rf'[^"\\\x00-\x1f]*+(?>(?:\\{_ESCAPE}[^"\\\x00-\x1f]*+)*)'
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_BLANK = r"[ \t\r\n]*+"
_PAIR = rf'"{_CLEAN}"{_BLANK}:{_BLANK}'


def _around(value: str) -> str:
    """The pattern of a scalar, or of a container of such values."""
    members = rf"(?>(?:{_PAIR}{value}{_BLANK}(?:,{_BLANK}(?=\")|(?=\}})))*)"
    items = rf"(?>(?:{value}{_BLANK}(?:,{_BLANK}(?=[^\]])|(?=\])))*)"
    return rf"(?:{_SCALAR}|\{{{_BLANK}{members}\}}|\[{_BLANK}{items}\])"


_SCALAR = rf'(?:"{_CLEAN}"|{_NUMBER}|true|false|null)'
_SIMPLE = _around(_around(_SCALAR))  # deeper ones go token by token at their outer levels
_CONTAINER = re.compile(rf"(?=[\[{{]){_around(_SIMPLE)}")
_ITEMS = re.compile(rf"(?>(?:{_BLANK}{_SIMPLE}{_BLANK},(?={_BLANK}[^ \t\r\n\])}}]))+)")
_MEMBERS = re.compile(rf"(?>(?:{_BLANK}{_PAIR}{_SIMPLE}{_BLANK},(?={_BLANK}[^ \t\r\n\])}}]))+)")
_INSIDE = {'"': re.compile(_CLEAN), "'": re.compile(r"[^'\"\\\x00-\x1f]*+")}
_TOKEN = re.compile(r"[-+.\w]*")
_BARE_KEY = re.compile(r"[^\s:,{}\[\]()\"'<>]*")
_LOOSE_KEY = re.compile(r"[^:,{}\[\]]*")
_HALVES = re.compile(rf"\\{_PAIR_OF_HALVES}")
_OCTAL = re.compile(r"[0-7]{1,3}")
_JSON_NUMBER = re.compile(_NUMBER)
_PYTHON_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:_[0-9]+)*)?(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_DEEPEST = 400  # levels of nesting; those who check arguments give up a little later
_LONGEST_NUMBER = 1 << 20
_State: TypeAlias = Choice["value", "after", "broken"]
_SPELT = {"true": "true", "false": "false", "null": "null"}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_ESCAPES = {"a": "\a", "v": "\v", "\n": "", "'": "'"}
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}

QUOTES_FIX = "single quotes became double quotes"
WORDS_FIX = "Python's True, False and None became true, false and null"
COMMA_FIX = "a comma before a closing bracket was removed"
KEYS_FIX = "keys were put in quotes"
BREAKS_FIX = "line breaks and other control characters in strings were escaped"
ESCAPES_FIX = "backslashes that begin no JSON escape were doubled or replaced by what they mean in Python"
NUMBERS_FIX = "numbers were spelt as JSON does"
HALVES_FIX = "halves of characters were replaced by U+FFFD"
FINITE_FIX = "NaN and Infinity, which JSON does not have, were put in quotes"
TUPLES_FIX = "parentheses became brackets"


class Literal:
    """Copies values from a source; `fixes` tells what had to be mended, `python` lets backslashes mean what they do there.

    `fence` is another quote around strings, within which nothing is escaped; keys may then hold blanks.
    """

    def __init__(self, source: Source, out: Out, *, python: bool = False, fence: str = "") -> None:
        self.fixes: list[str] = []
        self.open: list[str] = []  # what would close the containers that are open
        self.past_value = False  # whether the last thing read was a whole value
        self._source = source
        self._out = out
        self._python = python
        self._fence = fence
        self._bare_key = _LOOSE_KEY if fence else _BARE_KEY

    def copy(self) -> Steps[bool]:
        """Copies the value that comes next; False if it is none or ends too soon, with what was good copied."""
        self.open = []
        state: _State = "value"
        while state != "broken":
            self.past_value = state == "after"
            if state == "value":
                state = yield from self._value()
            elif not self.open:
                return True
            else:
                state = yield from self._after_value()
        return False

    def _value(self) -> Steps[_State]:
        blanks = yield from self._source.blanks()
        if self.open:
            self._out(blanks)
        char = yield from self._source.peek()
        if char not in _CLOSERS:
            return "after" if (yield from self._scalar(char)) else "broken"
        if whole := _CONTAINER.match(self._source.text, self._source.at):
            self._out(self._source.take(len(whole[0])))
            return "after"
        if len(self.open) == _DEEPEST:
            return "broken"
        self._source.take(1)
        if char == "(":
            self._fixed(TUPLES_FIX)
        self._out("{" if char == "{" else "[")
        self.open.append(_CLOSERS[char])
        blanks = yield from self._source.blanks()
        self._out(blanks)
        if (yield from self._source.word(self.open[-1])):
            return self._close()
        return (yield from self._member())

    def _member(self) -> Steps[_State]:
        """At the place of a member: copies simple ones in one go, then a key where one must stand."""
        source = self._source
        simple = (_MEMBERS if self.open[-1] == "}" else _ITEMS).match(source.text, source.at)
        if simple:
            self._out(source.take(simple.end() - source.at))
            self._out((yield from source.blanks()))
        if self.open[-1] == "}" and not (yield from self._key()):
            return "broken"
        return "value"

    def _after_value(self) -> Steps[_State]:
        """Past a value in a container: closes it, or goes on to the next member."""
        blanks = yield from self._source.blanks()
        if (yield from self._source.word(self.open[-1])):
            self._out(blanks)
            return self._close()
        if not (yield from self._source.word(",")):
            self._out(blanks)
            return "broken"
        self.past_value = False
        more = yield from self._source.blanks()
        if (yield from self._source.word(self.open[-1])):
            self._fixed(COMMA_FIX)
            self._out(blanks + more)
            return self._close()
        self._out(f"{blanks},{more}")
        return (yield from self._member())

    def _close(self) -> _State:
        self._out("}" if self.open.pop() == "}" else "]")
        return "after"

    def _key(self) -> Steps[bool]:
        char = yield from self._source.peek()
        if char in ('"', "'") or (self._fence and (yield from self._source.ahead(len(self._fence))) == self._fence):
            if not (yield from self._string(char)):
                return False
        else:
            key = yield from self._source.run(self._bare_key)
            if not key:
                return False
            self._fixed(KEYS_FIX)
            self._out(f'"{escaped(key)}"')
        blanks = yield from self._source.blanks()
        if not (yield from self._source.word(":")):
            self._out(blanks)
            return False
        self._out(f"{blanks}:")
        return True

    def _scalar(self, char: str) -> Steps[bool]:
        if char in ('"', "'") and char:
            return (yield from self._string(char))
        if self._fence and char == self._fence[0]:
            return (yield from self._string(char))
        token = yield from self._source.run(_TOKEN, _LONGEST_NUMBER)
        written = _SPELT.get(token) or (token if _JSON_NUMBER.fullmatch(token) else self._mended(token))
        self._out(token if written is None else written)
        return written is not None

    def _mended(self, token: str) -> str | None:
        if token in _PYTHON:
            self._fixed(WORDS_FIX)
            return _PYTHON[token]
        number = python_number(token)
        if number is not None:
            self._fixed(NUMBERS_FIX)
        elif word := _NOT_FINITE.get(token.lstrip("+-").lower()):
            self._fixed(FINITE_FIX)
            return f'"{"-" if token.startswith("-") else ""}{word}"'
        return number

    def _fixed(self, fix: str) -> None:
        if fix not in self.fixes:
            self.fixes.append(fix)

    def _string(self, quote: str) -> Steps[bool]:
        if self._fence and quote == self._fence[0]:
            return (yield from self._fenced())
        if quote == "'":
            self._fixed(QUOTES_FIX)
        source = self._source
        if self._python and (yield from source.ahead(3)) == quote * 3:
            return (yield from self._tripled(quote * 3))
        source.take(1)
        self._out('"')
        while True:
            found = _INSIDE[quote].match(source.text, source.at)
            if found and found.end() > source.at:
                self._out(source.take(found.end() - source.at))
            char = yield from source.peek()
            if not char:
                return False
            if char == quote:
                source.take(1)
                self._out('"')
                return True
            yield from self._odd(char)

    def _odd(self, char: str) -> Steps[None]:
        """A character in a string that JSON wants escaped, or that is escaped already."""
        if char == "\\":
            yield from self._escape()
        elif char < " ":
            self._source.take(1)
            self._fixed(BREAKS_FIX)
            self._out(escaped(char))
        elif char == '"':
            self._source.take(1)
            self._out('\\"')

    def _escape(self) -> Steps[None]:
        """A backslash and what it escapes."""
        kind = (yield from self._source.ahead(2))[1:]
        digits = (yield from self._source.ahead(2 + _HEX.get(kind, 0)))[2:]
        if kind == "u" and _is_hex(digits, 4):
            yield from self._unicode(digits)
        elif kind and kind in '"\\/bfnrt':
            self._out(self._source.take(2))
        elif kind in _HEX and (self._python or kind == "x") and _is_hex(digits, _HEX[kind]):
            self._replace(2 + len(digits), _character(int(digits, 16)))
        elif kind and kind in _ESCAPES and (self._python or kind == "'"):
            self._replace(2, _ESCAPES[kind])
        elif self._python and kind and kind in "01234567":
            octal = _OCTAL.match((yield from self._source.ahead(4)), 1)
            self._replace(1 + len(octal[0]) if octal else 2, _character(int(octal[0], 8)) if octal else "")
        else:
            self._replace(1, "\\")

    def _unicode(self, digits: str) -> Steps[None]:
        """An escaped character; half of one, which no text can hold, becomes U+FFFD."""
        if not 0xD800 <= int(digits, 16) < 0xE000:
            self._out(self._source.take(6))
        elif _HALVES.fullmatch((yield from self._source.ahead(12))):
            self._out(self._source.take(12))
        else:
            self._fixed(HALVES_FIX)
            self._source.take(6)
            self._out("\\ufffd")

    def _replace(self, count: int, by: str) -> None:
        self._fixed(ESCAPES_FIX)
        self._source.take(count)
        self._out(escaped(by))

    def _tripled(self, quotes: str) -> Steps[bool]:
        self._source.take(3)
        self._out('"')
        stops = words(quotes, "\\")
        while True:
            stop = yield from self._source.until(stops, lambda piece: self._out(escaped(piece)))
            if stop == "\\":
                yield from self._escape()
                continue
            if not stop:
                return False
            # A quote may stand before the three that end the string.
            while (yield from self._source.ahead(4)) == quotes + quotes[0]:
                self._out(escaped(self._source.take(1)))
            self._source.take(3)
            self._out('"')
            return True

    def _fenced(self) -> Steps[bool]:
        if not (yield from self._source.word(self._fence)):
            return False
        self._out('"')
        if not (yield from self._source.until(words(self._fence), lambda piece: self._out(escaped(piece)))):
            return False
        self._source.take(len(self._fence))
        self._out('"')
        return True


def _is_hex(digits: str, count: int) -> bool:
    return len(digits) == count and all(digit in "0123456789abcdefABCDEF" for digit in digits)


def _character(code: int) -> str:
    return chr(code) if code < 0x110000 else "\ufffd"


def python_number(token: str) -> str | None:
    """A number as Python or a careless hand spells it, as JSON; None if it is none."""
    if not any(digit in "0123456789" for digit in token) or not _PYTHON_NUMBER.fullmatch(token):
        return None
    text = token.replace("_", "").removeprefix("+")
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, dot, rest = text.partition(".")
    if not whole and dot:
        whole = "0"
    if dot and not rest[:1].isdigit():
        rest = "0" + rest
    spelt = f"{sign}{whole}{dot}{rest}"
    return spelt if _JSON_NUMBER.fullmatch(spelt) else None
