"""Parse and evaluate when-clauses: the editor's language for the conditions under which a tool is offered.

    or         := and ("||" and)*
    and        := not ("&&" not)*
    not        := "!" not | "(" or ")" | "true" | "false" | comparison
    comparison := key [("==" | "!=" | "<" | "<=" | ">" | ">=") value | "=~" /pattern/flags | ["not"] "in" key]

A key stands left, a value right: `resource == file` compares with the text `file`. A key alone is true unless its value is
false, zero, empty or missing. Clauses are not trusted, so that text, nesting and patterns are bounded and a pattern
takes linear time. Knows nothing of tools nor of where the keys come from.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jsonschema_rs
from msgspec import Struct

MAX_LENGTH = 4096
# The parser recurses once for each `!` and each parenthesis.
MAX_DEPTH = 32
# Characters of a context value that a pattern is matched against: clauses are evaluated at every request.
_MAX_MATCHED = 16 * 1024
# Memory of a compiled pattern: `(a{1000}){1000}` is short and compiles to a gigantic one.
_PATTERN_BYTES = 256 * 1024

Context: TypeAlias = Mapping[str, Any]


class WhenError(ValueError):
    """The clause cannot be parsed; `column` counts from one."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__(f"{message} at column {column}")
        self.column = column


class WhenClause:
    """A parsed clause."""

    __slots__ = ("_holds", "text")

    def __init__(self, text: str, holds: "Test") -> None:
        self.text = text
        self._holds = holds

    def holds(self, context: Context) -> bool:
        """Whether the clause is true in this context."""
        return self._holds(context)


Test: TypeAlias = Callable[[Context], bool]


def parse(text: str) -> WhenClause:
    """Parse a clause; WhenError has the place where it is malformed."""
    if len(text) > MAX_LENGTH:
        raise WhenError(f"a clause may have {MAX_LENGTH} characters, and there are more", MAX_LENGTH + 1)
    return WhenClause(text, _Parser(text).whole())


class _Token(Struct, frozen=True):
    kind: str
    text: str
    column: int


# Longer signs come before their beginnings: `===` is no `==` and `=`.
_TOKEN = re.compile(
    r"""
    (?P<blank>\s+)
    | (?P<sign>&&|\|\||=~|===?|!==?|<=?|>=?|!|\(|\))
    | (?P<quoted>'[^']*'|"[^"]*")
    | (?P<word>[^\s'"()<>=!&|]+)
    """,
    re.VERBOSE,
)
_SAME = {"===": "==", "!==": "!="}
_COMPARING = frozenset(("==", "!=", "<", "<=", ">", ">=", "=~", "in", "not"))
# A JavaScript regex literal such as `/^[/]a\/b$/i`: a slash ends it unless it is escaped or in a character class.
_REGEX = re.compile(r"\s*/((?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/([a-z]*)")


class _Parser:
    """Parses a clause from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._token = self._read()

    def whole(self) -> Test:
        test = self._or()
        if self._token.kind != "end":
            raise self._wrong("`&&` or `||` was expected")
        return test

    def _or(self) -> Test:
        tests = [self._and()]
        while self._take("||"):
            tests.append(self._and())
        return tests[0] if len(tests) == 1 else lambda context: any(test(context) for test in tests)

    def _and(self) -> Test:
        tests = [self._not()]
        while self._take("&&"):
            tests.append(self._not())
        return tests[0] if len(tests) == 1 else lambda context: all(test(context) for test in tests)

    def _not(self) -> Test:
        if self._token.kind != "sign" or self._token.text not in ("!", "("):
            return self._comparison()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise WhenError(f"nested deeper than {MAX_DEPTH} levels", self._token.column)
        opening = self._next()
        if opening.text == "(":
            inner = test = self._or()
            if not self._take(")"):
                raise WhenError("a parenthesis is opened and never closed", opening.column)
        else:
            # `!a == b` could mean `!(a == b)` or `(!a) == b`: it is refused instead of guessed.
            inner = self._not() if self._token.kind == "sign" else _truth(self._word("a key"))
            if self._token.kind != "quoted" and self._token.text in _COMPARING:
                raise self._wrong("`!` belongs to the key alone: put the comparison in parentheses")
            test = lambda context: not inner(context)  # noqa: E731
        self._depth -= 1
        return test

    def _comparison(self) -> Test:
        left, sign = self._word("a key"), self._token
        if left.text in ("true", "false"):
            return _truth(left)
        key = left.text
        match sign.text if sign.kind != "quoted" else "":
            case "==" | "!=":
                self._next()
                return _equality(key, self._value(), negated=sign.text == "!=")
            case "<" | "<=" | ">" | ">=":
                self._next()
                return _order(key, sign.text, self._value())
            case "=~":
                # The pattern is read from the text itself: what is a token elsewhere has another meaning in it.
                found = _REGEX.match(self._text, self._at)
                if found is None:
                    raise WhenError("a /pattern/ was expected", self._at + 1)
                self._at = found.end()
                test = _matching(key, found[1], found[2], found.start(1) + 1)
                self._token = self._read()
                return test
            case "in":
                self._next()
                return _membership(key, self._word("a key").text)
            case "not":
                self._next()
                if self._token.kind != "word" or not self._take("in"):
                    raise self._wrong("`in` was expected after `not`")
                is_member = _membership(key, self._word("a key").text)
                return lambda context: not is_member(context)
            case _:
                return _truth(left)

    def _value(self) -> _Token:
        return self._next() if self._token.kind == "quoted" else self._word("a value")

    def _word(self, expected: str) -> _Token:
        if self._token.kind != "word":
            raise self._wrong(f"{expected} was expected")
        return self._next()

    def _take(self, text: str) -> bool:
        if self._token.text != text or self._token.kind == "quoted":
            return False
        self._next()
        return True

    def _next(self) -> _Token:
        token, self._token = self._token, self._read()
        return token

    def _read(self) -> _Token:
        while found := _TOKEN.match(self._text, self._at):
            column, self._at = found.start() + 1, found.end()
            match found.lastgroup:
                case "blank":
                    continue
                case "quoted":
                    return _Token("quoted", found[0][1:-1], column)
                case kind:
                    return _Token(str(kind), _SAME.get(found[0], found[0]), column)
        if self._at < len(self._text):
            raise WhenError(f"{self._text[self._at]!r} was not expected", self._at + 1)
        return _Token("end", "", len(self._text) + 1)

    def _wrong(self, message: str) -> WhenError:
        return WhenError(message, self._token.column)


def _truth(word: _Token) -> Test:
    key = word.text
    if key in ("true", "false"):
        return lambda context: key == "true"
    return lambda context: bool(context.get(key))


def _equality(key: str, value: _Token, negated: bool) -> Test:
    text = value.text
    # Without quotes `key == false` asks for a falsy value, so that a missing key is false, too.
    if value.kind == "word" and text in ("true", "false"):
        return lambda context: (bool(context.get(key)) == (text == "true")) != negated

    def is_equal(context: Context) -> bool:
        match context.get(key):
            case str() as actual:
                return actual == text
            case bool() as actual:
                return ("true" if actual else "false") == text
            case int() | float() as actual:  # a number can be written in several ways
                return actual == _number(text)
            case _:
                return False

    return lambda context: is_equal(context) != negated


_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _order(key: str, sign: str, value: _Token) -> Test:
    bound = _number(value.text)
    compare = _ORDERS[sign]

    def holds(context: Context) -> bool:
        number = _number(context.get(key))
        return number is not None and bound is not None and compare(number, bound)

    return holds


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _membership(key: str, holder: str) -> Test:
    def holds(context: Context) -> bool:
        item, held = context.get(key), context.get(holder)
        match held:
            case list() | tuple() | set() | frozenset():
                # Types are compared because `True == 1` in Python.
                return any(item == one and type(item) is type(one) for one in held)
            case Mapping():
                return isinstance(item, str) and item in held
            case _:
                return False

    return holds


def _matching(key: str, pattern: str, flags: str, column: int) -> Test:
    unknown = flags.strip("gimsuy")
    if unknown:
        raise WhenError(f"the flag {unknown[0]!r} of the pattern is not known", column + len(pattern) + 1)
    # g and y concern repeated searches, and all text is Unicode anyway (u).
    inline = "".join(sorted(set(flags) & set("ims")))
    # This engine takes linear time for every pattern; Python's may take exponential time.
    try:
        engine = jsonschema_rs.validator_for(
            {"pattern": f"(?{inline}){pattern}" if inline else pattern},
            pattern_options=jsonschema_rs.RegexOptions(_PATTERN_BYTES, _PATTERN_BYTES),
        )
    except (jsonschema_rs.ValidationError, ValueError):
        message = (
            f"/{pattern[:60]}/ is no pattern that can be matched (look-around and back-references are not supported)"
        )
        raise WhenError(message, column) from None

    def holds(context: Context) -> bool:
        value = context.get(key)
        # Half of a surrogate pair, which JSON can carry, cannot be passed to the engine.
        return isinstance(value, str) and engine.is_valid(value[:_MAX_MATCHED].encode("utf-8", "replace").decode())

    return holds
