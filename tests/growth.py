"""Whether work grows in proportion to its input, on a machine that is shared with others."""

from collections.abc import Callable

ATTEMPTS = 5
SHORTEST = 0.001
"""Seconds of a thread's time below which a measurement says nothing."""


def is_linear(cost: Callable[[int], float], small: int, times: int = 4) -> bool:
    """Return whether `times` the input costs less than twice `times` as much; quadratic work costs `times` squared.

    A machine that lends its cores to others makes single measurements worse and never all of them better, so that one
    good measurement of several is proof.
    """
    return any(cost(times * small) < 2 * times * max(cost(small), SHORTEST) for _ in range(ATTEMPTS))
