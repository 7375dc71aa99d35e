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
    return _in_unit(figure, figure.median)


def spread(figure: Figure) -> str:
    """How far the samples lie apart: a share of the median, or an amount where that would say nothing."""
    if len(figure.samples) < 2:
        return ""
    if figure.spread < abs(figure.median):
        return f" ±{figure.spread / abs(figure.median):.0%}"
    return f" ±{_in_unit(figure, figure.spread)}"


def _in_unit(figure: Figure, value: float) -> str:
    return megabytes(value) if figure.unit == "bytes" else seconds(value)


def times(ratio: float) -> str:
    """A ratio."""
    return f"{_digits(ratio)} ×"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
