"""Declare the fields of settings: help texts, bounds and partial mappings."""

from typing import Any

from msgspec import Meta, Struct

KIB = 1024
MIB = 1024 * KIB


def about(text: str, **bounds: Any) -> Meta:
    """Attach the help text of a setting and the bounds of its value."""
    return Meta(description=text, **bounds)


class PartialStructMarker:
    """Marks a mapping that may give some fields of a Struct; the others keep the values of the provider table."""

    def __init__(self, of: type[Struct]) -> None:
        self.of = of
