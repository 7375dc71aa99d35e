"""Numbers as a calculator has them: exact while they can be, floating where they cannot, bounded always.

An exact number is an int or a Fraction of at most MAX_BITS bits above and below the line, so that no step takes long and
every result can be written down. Knows no syntax.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeAlias

from toolgate.tools.tool import ToolFailure

Number: TypeAlias = int | Fraction | float

MAX_BITS = 13_000  # some 3,900 digits
_LONGEST_DECIMAL = 60


def bounded(value: Number) -> Number:
    """The number, in its simplest form, if it is one that we can keep."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolFailure("the result is too large for a floating-point number, or is no number at all")
        return value
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolFailure(f"the result has more than {MAX_BITS // 10 * 3} digits; use logarithms instead")
    return value.numerator if value.denominator == 1 else value


def floating(value: Number) -> float:
    """The number as a float."""
    try:
        return float(value)
    except OverflowError:
        raise ToolFailure("a number is too large for this function") from None


def divide(left: Number, right: Number) -> Number:
    """The quotient, exact where both are."""
    if not right:
        raise ToolFailure("division by zero")
    if isinstance(left, float) or isinstance(right, float):
        return floating(left) / floating(right)
    return Fraction(left) / Fraction(right)


def floor_divide(left: Number, right: Number) -> Number:
    """The quotient, rounded down."""
    if not right:
        raise ToolFailure("division by zero")
    return left // right


def modulo(left: Number, right: Number) -> Number:
    """What is left of a division, with the sign of the divisor."""
    if not right:
        raise ToolFailure("modulo by zero")
    return left % right


def power(base: Number, exponent: Number) -> Number:
    """A power; how large an exact one would become is looked at before it is computed."""
    if not base and exponent < 0:
        raise ToolFailure("zero cannot be raised to a negative power")
    if isinstance(exponent, int) and not isinstance(base, float):
        size = max(abs(base.numerator), base.denominator)
        if size > 1 and abs(exponent) * (size.bit_length() - 1) > MAX_BITS:
            raise ToolFailure(f"the result has more than {MAX_BITS // 10 * 3} digits; use logarithms instead")
        return Fraction(base) ** exponent
    if exponent == Fraction(1, 2):
        return square_root(base)
    if base < 0 and exponent != int(exponent):
        raise ToolFailure("a negative number has no real power with a fractional exponent")
    return math.pow(floating(base), floating(exponent))


def square_root(value: Number) -> Number:
    """The root, exact where it is rational."""
    if value < 0:
        raise ToolFailure("a negative number has no real square root")
    if not isinstance(value, float):
        above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if above * above == value.numerator and below * below == value.denominator:
            return Fraction(above, below)
    return math.sqrt(floating(value))


def logarithm(value: Number, base: Number | None = None) -> Number:
    """The natural logarithm, or that to a base."""
    if value <= 0 or (base is not None and (base <= 0 or base == 1)):
        raise ToolFailure("a logarithm needs a positive number and a positive base other than 1")
    natural = _ln(value)
    return natural if base is None else natural / _ln(base)


def _ln(value: Number) -> float:
    # Of whole numbers too large for a float, math.log still knows the logarithm.
    return math.log(value) if isinstance(value, float) else math.log(value.numerator) - math.log(value.denominator)


def rounded(value: Number, digits: Number = 0) -> Number:
    """The number with so many digits after the point, halves away from zero, as people round."""
    places = whole(digits, "the number of digits")
    if abs(places) > 100:
        raise ToolFailure("a number can be rounded to at most 100 digits")
    scale = Fraction(10) ** places
    scaled = abs(Fraction(value)) * scale
    result = Fraction(math.floor(scaled + Fraction(1, 2))) / scale
    return -result if value < 0 else result


def whole(value: Number, what: str) -> int:
    """The number as an int, if it is a whole one."""
    if value != int(value):
        raise ToolFailure(f"{what} must be a whole number")
    return int(value)


def counted(function: Callable[..., int], limit: int) -> Callable[..., Number]:
    """A function of whole numbers that are not negative and not large."""

    def call(*values: Number) -> Number:
        numbers = [whole(value, "the argument") for value in values]
        if any(number < 0 or number > limit for number in numbers):
            raise ToolFailure(f"the argument must lie between 0 and {limit}")
        return function(*numbers)

    return call


def shared(function: Callable[..., int]) -> Callable[..., Number]:
    """A function of any whole numbers."""
    return lambda *values: function(*[whole(value, "the argument") for value in values])


def real(function: Callable[..., float]) -> Callable[..., Number]:
    """A function of floating-point numbers."""

    def call(*values: Number) -> Number:
        try:
            return function(*map(floating, values))
        except (ValueError, OverflowError):
            raise ToolFailure("the function has no finite value there") from None

    return call


CONSTANTS: Mapping[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
FUNCTIONS: Mapping[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "sqrt": (square_root, 1, 1),
    "cbrt": (real(math.cbrt), 1, 1),
    "exp": (real(math.exp), 1, 1),
    "ln": (logarithm, 1, 1),
    "log": (logarithm, 1, 2),
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
    "gcd": (shared(math.gcd), 1, 99),
    "lcm": (shared(math.lcm), 1, 99),
    "factorial": (counted(math.factorial, 1000), 1, 1),
    "comb": (counted(math.comb, 5000), 2, 2),
    "perm": (counted(math.perm, 5000), 2, 2),
    "pow": (power, 2, 2),
}
"""Each with the least and the greatest number of its arguments."""


def written(value: Number) -> str:
    """The number in decimal: exact where that ends, else with as many digits as a float has."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.15g}"
    exact = _decimal(value)
    return exact if exact is not None else f"{floating(value):.15g}"


def is_exact(value: Number) -> bool:
    """Whether what `written` writes is all there is."""
    return isinstance(value, int) or (isinstance(value, Fraction) and _decimal(value) is not None)


def _decimal(value: Fraction) -> str | None:
    """The decimal form of a fraction whose digits end soon."""
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
