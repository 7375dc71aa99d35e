"""Narrowing for values whose type a test knows better than a type checker does."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def of(kind: type[T], value: object) -> T:
    """Return the value, which must be of this type."""
    assert isinstance(value, kind), value
    return value


def all_of(kind: type[T], values: Iterable[object]) -> list[T]:
    """Return the values, which must all be of this type."""
    return [of(kind, value) for value in values]


def given(value: T | None) -> T:
    """Return the value, which must not be None."""
    assert value is not None
    return value
