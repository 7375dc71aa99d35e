"""The date and time, anywhere. Knows time zones; knows nothing of the machine but its clock."""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from toolgate.conversation.message import Text
from toolgate.tools.tool import Annotations, Invocation, Output, Preparation, ToolFailure, ToolSpec

SPEC = ToolSpec(
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
_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE | re.ASCII)


def system_time() -> datetime:
    """Now."""
    return datetime.now(UTC)


class Clock:
    """Tells the time."""

    spec = SPEC

    def __init__(self, now: Callable[[], datetime] = system_time) -> None:
        self._now = now

    async def prepare(self, invocation: Invocation) -> Preparation:
        """Nothing that a person must know."""
        return Preparation(message="Look at the clock")

    async def invoke(self, invocation: Invocation) -> Output:
        """The time in the zone that was asked for."""
        name = str(invocation.arguments.get("timezone") or "UTC").strip()
        zone = _without_file(name) or await asyncio.to_thread(_from_file, name)
        there = self._now().astimezone(zone)
        offset = _offset(there)
        text = f"{there:%A}, {there.day} {there:%B %Y}, {there:%H:%M:%S} in {name} (UTC{offset})"
        told = {
            "iso": there.isoformat(timespec="seconds"),
            "timezone": name,
            "weekday": f"{there:%A}",
            "offset": offset,
        }
        return Output((Text(f"{text}\nISO 8601: {told['iso']}"),), structured=told)


def _without_file(name: str) -> tzinfo | None:
    """The zone, if its name says all that there is to know."""
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    return _fixed(offset) if offset is not None else None


def _from_file(name: str) -> tzinfo:
    """The zone of that name; ToolFailure suggests the nearest ones."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolFailure(f"there is no time zone {name!r}; {_suggestion(name)}") from None


def _fixed(offset: re.Match[str]) -> timezone:
    sign = -1 if offset[1] == "-" else 1
    away = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
    if away > timedelta(hours=14):
        raise ToolFailure(f"{offset[0]!r} is further from UTC than any place on Earth")
    return timezone(sign * away)


def _suggestion(name: str) -> str:
    known = available_timezones()
    if not known:
        return "this server has no time zone database, so only UTC and offsets such as UTC+2 can be used"
    wanted = name.strip().replace(" ", "_").lower()
    places = {zone.rpartition("/")[2].lower(): zone for zone in sorted(known)}
    whole = {zone.lower(): zone for zone in known}
    if wanted in whole or wanted in places:
        return f"did you mean {whole.get(wanted) or places[wanted]}?"
    near = get_close_matches(wanted, whole, 3, 0.7) or get_close_matches(wanted.rpartition("/")[2], places, 3, 0.7)
    if near:
        return f"did you mean {' or '.join(whole.get(one) or places[one] for one in near)}?"
    return "use an IANA name such as Europe/Berlin"


def _offset(moment: datetime) -> str:
    away = moment.utcoffset() or timedelta()
    sign = "-" if away < timedelta() else "+"
    hours, minutes = divmod(abs(int(away.total_seconds())) // 60, 60)
    return f"{sign}{hours:02}:{minutes:02}"
