"""The tool `clock`: the date and time in any time zone."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from toolgate.conversation.message import Text
from toolgate.tools.tool import (
    Annotations,
    CallPreview,
    ServerToolDefinition,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)

SPEC = ServerToolDefinition(
    name="clock",
    description=(
        "Tells the current date, time, weekday and UTC offset in a time zone. "
        "Use it whenever an answer depends on today's date or the present time; do not guess them."
    ),
    source="builtin",
    input_schema={
        "type": "object",
        "properties": {
            "timezone": {
                "type": "string",
                "description": "IANA name such as Europe/Berlin or Asia/Tokyo, or an offset such as UTC+2. Default: UTC.",
                "maxLength": 64,
            }
        },
        "additionalProperties": False,
    },
    display_name="Clock",
    reference_name="clock",
    user_description="The current date and time in any time zone.",
    icon="clock",
    tags=("builtin", "time"),
    annotations=Annotations(read_only=True, destructive=False, idempotent=True, open_world=False),
)
# `+2`, `UTC+2`, `GMT-0530` or `UTC+05:30`.
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE | re.ASCII)


def system_time() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


class ClockTool:
    """Returns the date and time."""

    spec = SPEC

    def __init__(self, now: Callable[[], datetime] = system_time) -> None:
        self._now = now

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Describe the call."""
        return CallPreview(message="Look at the clock")

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Return the time in the requested zone."""
        name = str(invocation.arguments.get("timezone") or "UTC").strip()
        # A zone is read from a file, so that a thread does it.
        zone = _fixed_zone(name) or await asyncio.to_thread(_named_zone, name)
        there = self._now().astimezone(zone)
        difference = there.utcoffset() or timedelta()
        hours, minutes = divmod(abs(int(difference.total_seconds())) // 60, 60)
        offset = f"{'-' if difference < timedelta() else '+'}{hours:02}:{minutes:02}"
        text = f"{there:%A}, {there.day} {there:%B %Y}, {there:%H:%M:%S} in {name} (UTC{offset})"
        structured = {
            "iso": there.isoformat(timespec="seconds"),
            "timezone": name,
            "weekday": f"{there:%A}",
            "offset": offset,
        }
        return ToolOutput((Text(f"{text}\nISO 8601: {structured['iso']}"),), structured=structured)


def _named_zone(name: str) -> tzinfo:
    """Load a zone of the time zone database; ToolCallFailed suggests similar names."""
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo(name)
    known = available_timezones()
    lowered = name.replace(" ", "_").lower()
    whole = {zone.lower(): zone for zone in known}
    # Models know cities rather than zones: `Tokyo` means `Asia/Tokyo`.
    places = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)}
    near = [lowered] if lowered in whole or lowered in places else get_close_matches(lowered, whole, 3, 0.7)
    near = near or get_close_matches(lowered.rpartition("/")[2], places, 3, 0.7)
    if near:
        hint = f"did you mean {' or '.join(whole.get(one) or places[one] for one in near)}?"
    elif known:
        hint = "use an IANA name such as Europe/Berlin"
    else:
        hint = "this server has no time zone database, so only UTC and offsets such as UTC+2 can be used"
    raise ToolCallFailed(f"there is no time zone {name!r}; {hint}")


def _fixed_zone(name: str) -> tzinfo | None:
    """Make a zone of a name such as `UTC+2`, which needs no database; None for any other name."""
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return None
    sign = -1 if offset[1] == "-" else 1
    away = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    if away > timedelta(hours=14):
        raise ToolCallFailed(f"{offset[0]!r} is further from UTC than any place on Earth")
    return timezone(sign * away)
