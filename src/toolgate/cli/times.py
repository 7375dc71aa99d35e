"""Read and write points and spans of time as people do."""

import re
import time
from datetime import UTC, datetime
from typing import Any

from toolgate.cli.api_client import fail

_SPAN = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DAY = 86_400


def parse_moment(text: str | None) -> str | None:
    """Parse `2h` (two hours ago), a day or a time into seconds since 1970, in local time unless it has a zone."""
    if text is None:
        return None
    if span := _SPAN.fullmatch(text):
        return f"{time.time() - int(span[1]) * _UNITS[span[2]]:.3f}"
    try:
        return f"{datetime.fromisoformat(text).timestamp():.3f}"
    # Years that the platform's C library does not know raise the last two.
    except (ValueError, OverflowError, OSError):
        fail(f"{text} is no time: write it as 30m, 2h, 7d (so long ago), 2026-01-31 or 2026-01-31T12:00.")


def format_moment(when: Any) -> str:
    """Write a point of time: the time alone if it is less than a day ago."""
    if not isinstance(when, int | float):
        return ""
    short = abs(time.time() - when) < _DAY
    try:
        return time.strftime("%H:%M:%S" if short else "%Y-%m-%d %H:%M", time.localtime(when))
    except (ValueError, OverflowError, OSError):
        return ""


def format_iso(when: Any) -> str:
    """Write a point of time for a program: ISO 8601, in UTC."""
    if not isinstance(when, int | float):
        return ""
    try:
        return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return ""


def format_utc(when: int, pattern: str) -> str:
    """Write a point of time in UTC by a pattern of `strftime`; in seconds if it has no date."""
    try:
        return time.strftime(pattern, time.gmtime(when))
    except (ValueError, OverflowError, OSError):
        return str(when)


def parse_day(text: str | None) -> str | None:
    """Parse `7d` (a week ago) into a day in UTC, 1970-01-01 at the earliest; a day stays as it is written."""
    # The server checks days, and reports one that is none.
    if text is None or (span := _SPAN.fullmatch(text)) is None:
        return text
    seconds = max(0.0, time.time() - int(span[1]) * _UNITS[span[2]])
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def format_milliseconds(duration: Any) -> str:
    """Write a duration in milliseconds for a person."""
    if not isinstance(duration, int | float):
        return ""
    return f"{duration:.0f} ms" if duration < 1000 else f"{duration / 1000:.1f} s"
