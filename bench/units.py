"""Quantities as people read them."""

from bench.figures import Figure


def seconds(value: float) -> str:
    """Seconds with three significant digits, in the unit that fits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{_digits(value / 1e-6)} µs"


def megabytes(value: float) -> str:
    """Bytes as megabytes."""
    return f"{_digits(value / 1e6)} MB"


def amount(figure: Figure) -> str:
    """A figure's median in its unit."""
    return megabytes(figure.median) if figure.unit == "bytes" else seconds(figure.median)


def times(ratio: float) -> str:
    """A ratio."""
    return f"{_digits(ratio)} ×"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
