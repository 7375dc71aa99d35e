"""Read the times of a query: seconds since 1970, or a day or time as ISO 8601 writes it, in UTC unless it has a zone."""

from collections.abc import Mapping
from datetime import UTC, datetime

from toolgate.conversation.errors import InvalidRequest
from toolgate.storage.keyset_page import TimeRange

_LATEST = 253_402_300_799.0  # the last second of the year 9999
_LONGEST = 64


def read_times(query: Mapping[str, str]) -> TimeRange:
    """Return `since` and `until`; a day as `until` means its end."""
    return TimeRange(read_time(query, "since"), read_time(query, "until"))


def read_time(query: Mapping[str, str], name: str) -> float | None:
    """Return the time of one parameter; None if it is not given."""
    text = query.get(name, "")
    if not text:
        return None
    seconds = _seconds(text[:_LONGEST].replace(" ", "+"))  # a plus sign in a query is decoded to a blank
    if seconds is None or not 0 <= seconds <= _LATEST:
        raise InvalidRequest(
            f"{name} must be seconds since 1970, or a time such as 2026-01-31T12:00.", param=name, code="invalid_value"
        )
    is_day = len(text) == 10 and text[4] == text[7] == "-"  # 2026-01-31
    # A float of this size has not six decimals: the end of the last day would be rounded to the year 10000.
    return min(seconds + 86_399.999999, _LATEST) if name == "until" and is_day else seconds


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
