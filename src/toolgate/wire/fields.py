"""Read untrusted JSON objects field by field: errors name the path of the field, and unread fields are left over."""

from typing import Any, Literal

from toolgate.conversation.errors import InvalidRequest
from toolgate.wire.decoded_list_cache import CachedDecodedList

# The largest token count that is accepted for one answer.
MAX_TOKENS = 1_000_000_000


def token_count(value: Any) -> int | None:
    """Return a token count as an upstream reports it; None if the value cannot be one."""
    # A negative count would reduce a bill, and an unbounded one would not fit into a database column.
    if type(value) is int:
        return value if 0 <= value <= MAX_TOKENS else None
    return int(value) if type(value) is float and 0 <= value <= MAX_TOKENS else None  # also None for NaN


def missing_count(input: int | None, output: int | None) -> Literal["input", "output"] | None:
    """Return which of the two counts was not reported, if it is one of them."""
    if input is None:
        return "input"
    return "output" if output is None else None


class Fields:
    """One JSON object of a request; each field is read once, `null` counts as absent, and unread fields stay in `rest`."""

    __slots__ = ("path", "rest")

    def __init__(self, value: Any, path: str = "") -> None:
        if type(value) is not dict:
            raise InvalidRequest(f"{path or 'The body'} must be an object.", param=path or None)
        self.rest: dict[str, Any] = dict(value)  # a copy: fields are taken out of it as they are read
        self.path = path

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def raw(self, name: str) -> Any:
        """Read a field of any type, or None."""
        return self.rest.pop(name, None)

    def text(self, name: str) -> str | None:
        """Read a string, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not str:
            raise self.wrong(name, "a string")
        return value

    def required_text(self, name: str) -> str:
        """Read a string that must be given and not be empty."""
        value = self.text(name)
        if not value:
            raise self._missing(name)
        return value

    def require(self, name: str) -> None:
        """Reject an object that lacks this field; null counts as given."""
        if name not in self.rest:
            raise self._missing(name)

    def flag(self, name: str) -> bool | None:
        """Read a boolean, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        """Read a whole number within bounds, if given."""
        value = self.rest.pop(name, None)
        if value is None:
            return None
        # Clients in languages that have one type for numbers may send 5 as 5.0.
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise self.wrong(name, "a whole number")
        self._check_bounds(name, value, least, most)
        return value

    def number(self, name: str, least: float | None = None, most: float | None = None) -> float | None:
        """Read a number within bounds, if given."""
        value = self.rest.pop(name, None)
        if value is None:
            return None
        if type(value) is not int and type(value) is not float:
            raise self.wrong(name, "a number")
        self._check_bounds(name, value, least, most)
        return value

    def items(self, name: str) -> list[Any] | None:
        """Read a list, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not list and type(value) is not CachedDecodedList:
            raise self.wrong(name, "a list")
        return value

    def object(self, name: str) -> "Fields | None":
        """Read a nested object, whose fields are then read, if given."""
        value = self.rest.pop(name, None)
        return None if value is None else Fields(value, self.at(name))

    def mapping(self, name: str) -> dict[str, Any] | None:
        """Read a nested object as a dict, if given."""
        value = self.rest.pop(name, None)
        if value is not None and type(value) is not dict:
            raise self.wrong(name, "an object")
        return value

    def one_of(self, name: str, *allowed: str) -> str | None:
        """Read one of the allowed strings, if given."""
        value = self.text(name)
        if value is not None and value not in allowed:
            raise InvalidRequest(
                f"{self.at(name)} must be one of {', '.join(allowed)}, not {value[:60]!r}.", param=self.at(name)
            )
        return value

    def refuse_unknown(self) -> None:
        """Reject fields that were not read: a client that sends one expects an effect."""
        for name in self.rest:
            at = self.at(name[:80])
            raise InvalidRequest(f"Unknown parameter: '{at}'.", param=at, code="unknown_parameter")

    def wrong(self, name: str, expected: str) -> InvalidRequest:
        """Return the error for a field that has another type than expected."""
        return InvalidRequest(f"{self.at(name)} must be {expected}.", param=self.at(name), code="invalid_type")

    def _missing(self, name: str) -> InvalidRequest:
        at = self.at(name)
        return InvalidRequest(f"{at} is required.", param=at, code="missing_required_parameter")

    def _check_bounds(self, name: str, value: float, least: float | None, most: float | None) -> None:
        # Not `value < least`: every comparison with NaN is false.
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            bounds = " and ".join(
                [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
            )
            raise InvalidRequest(f"{self.at(name)} must be {bounds}.", param=self.at(name), code="invalid_value")
