"""Reading untrusted JSON field by field: every complaint names the path, and what nobody asked for is left over."""

from typing import Any

from toolgate.conversation.errors import InvalidRequest

MAX_TOKENS = 1_000_000_000
"""The largest count of tokens that one answer is believed to have."""


def token_count(value: Any) -> int | None:
    """Return a count of tokens as an upstream reports it; None for what can be none.

    A negative count would pay back what others are charged, and one without bound fits into no column of a database.
    """
    if type(value) not in (int, float) or not 0 <= value <= MAX_TOKENS:  # also false for NaN
        return None
    return int(value)


class Fields:
    """One JSON object of a request; each field is taken at most once, `null` counts as absent, and the rest remains."""

    __slots__ = ("path", "rest")

    def __init__(self, value: Any, path: str = "") -> None:
        if type(value) is not dict:
            raise InvalidRequest(f"{path or 'The body'} must be an object.", param=path or None)
        self.rest: dict[str, Any] = dict(value)
        self.path = path

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def raw(self, name: str) -> Any:
        """The field as it is, or None."""
        return self.rest.pop(name, None)

    def text(self, name: str) -> str | None:
        """A string, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not str:
            raise self.wrong(name, "a string")
        return value

    def required_text(self, name: str) -> str:
        """A string that must be given and not be empty."""
        value = self.text(name)
        if not value:
            raise self._missing(name)
        return value

    def require(self, name: str) -> None:
        """Refuse an object without this field, be it null."""
        if name not in self.rest:
            raise self._missing(name)

    def flag(self, name: str) -> bool | None:
        """A boolean, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        """A whole number within bounds, if given."""
        value = self.rest.pop(name, None)
        if value is None:
            return None
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise self.wrong(name, "a whole number")
        self._bounded(name, value, least, most)
        return value

    def number(self, name: str, least: float | None = None, most: float | None = None) -> float | None:
        """A number within bounds, if given."""
        value = self.rest.pop(name, None)
        if value is None:
            return None
        if type(value) is not int and type(value) is not float:
            raise self.wrong(name, "a number")
        self._bounded(name, value, least, most)
        return value

    def items(self, name: str) -> list[Any] | None:
        """A list, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not list:
            raise self.wrong(name, "a list")
        return value

    def object(self, name: str) -> "Fields | None":
        """A nested object to read, if given."""
        value = self.rest.pop(name, None)
        return None if value is None else Fields(value, self.at(name))

    def mapping(self, name: str) -> dict[str, Any] | None:
        """A nested object taken whole, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not dict:
            raise self.wrong(name, "an object")
        return value

    def one_of(self, name: str, *allowed: str) -> str | None:
        """One of the given words, if given."""
        value = self.text(name)
        if value is not None and value not in allowed:
            raise InvalidRequest(
                f"{self.at(name)} must be one of {', '.join(allowed)}, not {value[:60]!r}.", param=self.at(name)
            )
        return value

    def no_more(self) -> None:
        """Refuse what nobody has read: whoever sends it means something by it."""
        for name in self.rest:
            at = self.at(name[:80])
            raise InvalidRequest(f"Unknown parameter: '{at}'.", param=at, code="unknown_parameter")

    def wrong(self, name: str, wanted: str) -> InvalidRequest:
        """The complaint that a field is not what it must be."""
        return InvalidRequest(f"{self.at(name)} must be {wanted}.", param=self.at(name), code="invalid_type")

    def _missing(self, name: str) -> InvalidRequest:
        at = self.at(name)
        return InvalidRequest(f"{at} is required.", param=at, code="missing_required_parameter")

    def _bounded(self, name: str, value: float, least: float | None, most: float | None) -> None:
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            bounds = " and ".join(
                [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
            )
            raise InvalidRequest(f"{self.at(name)} must be {bounds}.", param=self.at(name), code="invalid_value")
