"""The tool `calculator`: evaluate arithmetic with a parser of its own, so that no expression can become code.

    sum     := product (("+" | "-") product)*
    product := sign (("*" | "/" | "//" | "%") sign)*
    sign    := ("+" | "-")* power
    power   := atom ("**" sign)?                 so -2**2 is -4, and 2**3**2 is 2**9
    atom    := number | constant | name "(" sum ("," sum)* ")" | "(" sum ")"

Numbers and their limits are in numbers.py.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fractions import Fraction

from toolgate.conversation.message import Text
from toolgate.tools.builtin import numbers
from toolgate.tools.builtin.numbers import CONSTANTS, FUNCTIONS, Number, bounded, decimal_text
from toolgate.tools.tool import (
    Annotations,
    CallPreview,
    ServerToolDefinition,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)

MAX_LENGTH = 2000
# The evaluator recurses, and must stay far from Python's own limit.
MAX_DEPTH = 50

SPEC = ServerToolDefinition(
    name="calculator",
    description=(
        "Evaluates an arithmetic expression and returns the result, exactly for whole numbers, decimals and fractions. "
        "Operators: + - * / // % ** and parentheses. Constants: pi, e, tau. "
        f"Functions: {', '.join(FUNCTIONS)}. Angles are in radians. Use it for any sum that is not trivial."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "expression": {
                "type": "string",
                "description": "The expression, such as (1299.90 * 3) / 1.19 or sqrt(2) ** 3",
                "minLength": 1,
                "maxLength": MAX_LENGTH,
            }
        },
        "required": ["expression"],
        "additionalProperties": False,
    },
    display_name="Calculator",
    reference_name="calculator",
    user_description="Exact arithmetic.",
    icon="symbol-operator",
    tags=("builtin", "math"),
    annotations=Annotations(read_only=True, destructive=False, idempotent=True, open_world=False),
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d{1,4})?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>\*\*|//|[-+*/%^(),×÷−·]))",
    re.ASCII,
)
# What models copy from text and from spreadsheets.
_SYNONYMS = {"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"}
_SUMS: Mapping[str, Callable[[Number, Number], Number]] = {"+": lambda a, b: a + b, "-": lambda a, b: a - b}
_PRODUCTS: Mapping[str, Callable[[Number, Number], Number]] = {
    "*": lambda a, b: a * b,
    "/": numbers.divide,
    "//": numbers.floor_divide,
    "%": numbers.modulo,
}


class CalculatorTool:
    """Evaluates expressions."""

    spec = SPEC

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Name the expression."""
        return CallPreview(message=f"Calculate {invocation.arguments.get('expression', '')}"[:200])

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Evaluate the expression; the result is exact unless it begins with `about`."""
        expression = str(invocation.arguments["expression"])
        value = await asyncio.to_thread(evaluate, expression)
        text, exact = decimal_text(value), numbers.is_exact(value)
        about = "" if exact else "about "
        return ToolOutput((Text(f"{about}{text}"),), structured={"result": text, "exact": exact})


def evaluate(expression: str) -> Number:
    """Evaluate an expression; ToolCallFailed names the mistake and its place."""
    if len(expression) > MAX_LENGTH:
        raise ToolCallFailed(f"the expression is longer than {MAX_LENGTH} characters")
    try:
        return _Evaluator(expression).evaluate()
    except (OverflowError, ZeroDivisionError, ValueError):  # of floats; exact numbers have messages of their own
        raise ToolCallFailed("the result is too large, or is no real number") from None


class _Evaluator:
    """Parses one expression from left to right and evaluates it on the way."""

    def __init__(self, expression: str) -> None:
        self._tokens = _tokens(expression)
        self._next = 0
        self._depth = 0

    def evaluate(self) -> Number:
        """Return the value of the whole expression."""
        value = self._sum()
        if self._next < len(self._tokens):
            _, text, place = self._tokens[self._next]
            raise ToolCallFailed(f"unexpected {text!r} at character {place}; an operator is missing")
        return value

    def _sum(self) -> Number:
        return self._chain(lambda: self._chain(self._sign, _PRODUCTS), _SUMS)

    def _chain(self, part: Callable[[], Number], steps: Mapping[str, Callable[[Number, Number], Number]]) -> Number:
        """Evaluate parts with operators of one precedence between them."""
        value = part()
        while (sign := self._take(*steps)) is not None:
            other = part()
            if isinstance(value, float) or isinstance(other, float):
                # Both become floats here, so that a number too large for one gets a message of its own.
                value, other = numbers.floating(value), numbers.floating(other)
            value = bounded(steps[sign](value, other))
        return value

    def _sign(self) -> Number:
        negative = False
        while (sign := self._take("+", "-")) is not None:
            negative ^= sign == "-"
        value = self._atom()
        if self._take("**") is not None:
            value = bounded(numbers.power(value, self._deeper(self._sign)))
        return -value if negative else value

    def _atom(self) -> Number:
        if self._next >= len(self._tokens):
            raise ToolCallFailed("the expression ends too early")
        kind, text, place = self._tokens[self._next]
        self._next += 1
        if kind == "number":
            digits, _, exponent = text.lower().replace("_", "").partition("e")

            if abs(int(exponent or 0)) > 3900:
                raise ToolCallFailed("a number with such an exponent is too large or too small")
            return bounded(Fraction(digits) * Fraction(10) ** int(exponent or 0))
        if kind == "name":
            return self._named(text.lower())
        if text != "(":
            raise ToolCallFailed(f"unexpected {text!r} at character {place}")
        return self._closed(self._deeper(self._sum))

    def _named(self, name: str) -> Number:
        """Evaluate a constant, or a function with its arguments."""
        is_call = self._take("(") is not None
        if name not in (FUNCTIONS if is_call else CONSTANTS):
            near = get_close_matches(name, (*FUNCTIONS, *CONSTANTS), 1)
            hint = f"did you mean {near[0]}?" if near else "variables cannot be used"
            raise ToolCallFailed(f"{name[:40]!r} is not a function or constant; {hint}")
        if not is_call:
            return CONSTANTS[name]
        values = [self._deeper(self._sum)]
        while self._take(",") is not None:
            values.append(self._deeper(self._sum))
        self._closed(0)
        function, least, most = FUNCTIONS[name]
        if not least <= len(values) <= most:
            raise ToolCallFailed(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        return bounded(function(*values))

    def _closed(self, value: Number) -> Number:
        if self._take(")") is None:
            raise ToolCallFailed("a closing parenthesis is missing")
        return value

    def _deeper(self, part: Callable[[], Number]) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ToolCallFailed(f"the expression is nested deeper than {MAX_DEPTH} levels")
        value = part()
        self._depth -= 1
        return value

    def _take(self, *signs: str) -> str | None:
        if self._next < len(self._tokens):
            kind, text, _ = self._tokens[self._next]
            if kind == "sign" and text in signs:
                self._next += 1
                return text
        return None


def _tokens(expression: str) -> list[tuple[str, str, int]]:
    tokens, place, text = [], 0, expression.rstrip()
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None or token.lastgroup is None:
            rest = text[place:].lstrip()
            raise ToolCallFailed(f"{rest[:1]!r} at character {len(text) - len(rest) + 1} is not part of arithmetic")
        word = token[token.lastgroup]
        tokens.append((token.lastgroup, _SYNONYMS.get(word, word), token.start(token.lastgroup) + 1))
        place = token.end()
    return tokens
