"""The arithmetic of the calculator: exact where possible, floating-point elsewhere, and always bounded.

An exact number is an int or a Fraction whose numerator and denominator have at most MAX_BITS bits, so that no step takes
long and every result can be printed. Knows no syntax.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeAlias

from toolgate.tools.tool import ToolCallFailed

Number: TypeAlias = int | Fraction | float

# Some 3,900 digits, fewer than the 4,300 up to which Python converts an int to text.
MAX_BITS = 13_000
# Digits after the point of a decimal that is written exactly: 1/2**60 has 60 of them.
_LONGEST_DECIMAL = 60


def bounded(value: Number) -> Number:
    """Return the number in its simplest form; ToolCallFailed if it is too large."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolCallFailed("the result is too large for a floating-point number, or is no number at all")
        return value
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolCallFailed(f"the result has more than {MAX_BITS // 10 * 3} digits; use logarithms instead")
    return value.numerator if value.denominator == 1 else value


def floating(value: Number) -> float:
    """Convert a number to a float."""
    try:
        return float(value)
    except OverflowError:
        raise ToolCallFailed("a number is too large for this function") from None


def divide(left: Number, right: Number) -> Number:
    """The quotient, exact where both are."""
    if not right:
        raise ToolCallFailed("division by zero")
    if isinstance(left, float) or isinstance(right, float):
        return floating(left) / floating(right)
    return Fraction(left) / Fraction(right)


def floor_divide(left: Number, right: Number) -> Number:
    """The quotient, rounded down."""
    if not right:
        raise ToolCallFailed("division by zero")
    return left // right


def modulo(left: Number, right: Number) -> Number:
    """The remainder of a division, with the sign of the divisor."""
    if not right:
        raise ToolCallFailed("modulo by zero")
    return left % right


def power(base: Number, exponent: Number) -> Number:
    """A power; the size of an exact one is checked before it is computed."""
    if not base and exponent < 0:
        raise ToolCallFailed("zero cannot be raised to a negative power")
    if isinstance(exponent, int) and not isinstance(base, float):
        # `9**9**9` would take hours and all memory.
        size = max(abs(base.numerator), base.denominator)
        if size > 1 and abs(exponent) * (size.bit_length() - 1) > MAX_BITS:
            raise ToolCallFailed(f"the result has more than {MAX_BITS // 10 * 3} digits; use logarithms instead")
        return Fraction(base) ** exponent
    if exponent == Fraction(1, 2):
        return square_root(base)
    if base < 0 and exponent != int(exponent):
        raise ToolCallFailed("a negative number has no real power with a fractional exponent")
    return math.pow(floating(base), floating(exponent))


def square_root(value: Number) -> Number:
    """The square root, exact where it is rational."""
    if value < 0:
        raise ToolCallFailed("a negative number has no real square root")
    if not isinstance(value, float):
        above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if above * above == value.numerator and below * below == value.denominator:
            return Fraction(above, below)
    return math.sqrt(floating(value))


def logarithm(value: Number, base: Number | None = None) -> Number:
    """The natural logarithm, or that to a base."""
    if value <= 0 or (base is not None and (base <= 0 or base == 1)):
        raise ToolCallFailed("a logarithm needs a positive number and a positive base other than 1")
    natural = _ln(value)
    return natural if base is None else natural / _ln(base)


def _ln(value: Number) -> float:
    # math.log also accepts whole numbers that are too large for a float.
    return math.log(value) if isinstance(value, float) else math.log(value.numerator) - math.log(value.denominator)


def rounded(value: Number, digits: Number = 0) -> Number:
    """Round to a number of digits after the point, halves away from zero, as people do."""
    places = whole(digits, "the number of digits")
    if abs(places) > 100:
        raise ToolCallFailed("a number can be rounded to at most 100 digits")
    scale = Fraction(10) ** places
    scaled = abs(Fraction(value)) * scale
    result = Fraction(math.floor(scaled + Fraction(1, 2))) / scale
    return -result if value < 0 else result


def whole(value: Number, what: str) -> int:
    """Convert a number to an int; ToolCallFailed if it is not whole."""
    if value != int(value):
        raise ToolCallFailed(f"{what} must be a whole number")
    return int(value)


def natural(function: Callable[..., int], limit: int) -> Callable[..., Number]:
    """Wrap a function of whole numbers from 0 to a limit."""

    def call(*values: Number) -> Number:
        numbers = [whole(value, "the argument") for value in values]
        if any(number < 0 or number > limit for number in numbers):
            raise ToolCallFailed(f"the argument must lie between 0 and {limit}")
        return function(*numbers)

    return call


def integral(function: Callable[..., int]) -> Callable[..., Number]:
    """Wrap a function of whole numbers."""
    return lambda *values: function(*[whole(value, "the argument") for value in values])


def real(function: Callable[..., float]) -> Callable[..., Number]:
    """Wrap a function of floating-point numbers."""

    def call(*values: Number) -> Number:
        try:
            return function(*map(floating, values))
        except (ValueError, OverflowError):
            raise ToolCallFailed("the function has no finite value there") from None

    return call


CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
# Each function with the smallest and the largest number of its arguments.
FUNCTIONS: Mapping[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "sqrt": (square_root, 1, 1),
    "cbrt": (real(math.cbrt), 1, 1),
    "exp": (real(math.exp), 1, 1),
    "ln": (logarithm, 1, 1),
    "log": (logarithm, 1, 2),
    # `logarithm` refuses what is not positive; `math.log2` is exact for powers of two.
    "log2": (lambda value: logarithm(value) and real(math.log2)(value), 1, 1),
    "log10": (lambda value: logarithm(value) and real(math.log10)(value), 1, 1),
    "sin": (real(math.sin), 1, 1),
    "cos": (real(math.cos), 1, 1),
    "tan": (real(math.tan), 1, 1),
    "asin": (real(math.asin), 1, 1),
    "acos": (real(math.acos), 1, 1),
    "atan": (real(math.atan), 1, 1),
    "atan2": (real(math.atan2), 2, 2),
    "sinh": (real(math.sinh), 1, 1),
    "cosh": (real(math.cosh), 1, 1),
    "tanh": (real(math.tanh), 1, 1),
    "degrees": (real(math.degrees), 1, 1),
    "radians": (real(math.radians), 1, 1),
    "hypot": (real(math.hypot), 1, 99),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "trunc": (math.trunc, 1, 1),
    "round": (rounded, 1, 2),
    "sign": (lambda value: (value > 0) - (value < 0), 1, 1),
    "min": (lambda *values: min(values), 1, 99),
    "max": (lambda *values: max(values), 1, 99),
    "sum": (lambda *values: sum(values), 1, 99),
    "mean": (lambda *values: divide(sum(values), len(values)), 1, 99),
    "gcd": (integral(math.gcd), 1, 99),
    "lcm": (integral(math.lcm), 1, 99),
    "factorial": (natural(math.factorial, 1000), 1, 1),
    "comb": (natural(math.comb, 5000), 2, 2),
    "perm": (natural(math.perm, 5000), 2, 2),
    "pow": (power, 2, 2),
}


def decimal_text(value: Number) -> str:
    """Write a number in decimal: exactly where its digits end, else with as many digits as a float has."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.15g}"
    exact = _decimal(value)
    return exact if exact is not None else f"{floating(value):.15g}"


def is_exact(value: Number) -> bool:
    """Whether `decimal_text` writes the number exactly."""
    return isinstance(value, int) or (isinstance(value, Fraction) and _decimal(value) is not None)


def _decimal(value: Fraction) -> str | None:
    """Write a fraction in decimal; None if its digits do not end soon."""
    # The digits end if and only if the denominator has no prime factor but 2 and 5.
    rest, places = value.denominator, 0
    for prime in (2, 5):
        count = 0
        while rest % prime == 0 and count <= _LONGEST_DECIMAL:
            rest, count = rest // prime, count + 1
        places = max(places, count)
    if rest != 1 or places > _LONGEST_DECIMAL:
        return None
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
