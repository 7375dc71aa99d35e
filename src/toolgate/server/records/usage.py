"""What keys use: added up in memory as requests end, written down every few seconds, told at GET /v1/usage."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any, cast

from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.events import Usage
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.limits import Price
from toolgate.server.app import Call, Endpoint
from toolgate.server.records.writer import Writer
from toolgate.server.responses.paging import read_query
from toolgate.storage.usage import BY, By, UsageStore, Used
from toolgate.telemetry.traced import RequestRecord
from toolgate.wire.jsontext import encode

_COUNTED = ("input", "output", "cache_read", "reasoning", "estimated")


class Meter:
    """Adds up what requests have used; `price_of` is the price of a model by its name."""

    def __init__(self, store: UsageStore, writer: Writer, seconds: float = 2.0) -> None:
        self.price_of: Callable[[str], Price] = lambda name: Price()
        self._store = store
        self._writer = writer
        self._seconds = seconds
        self._answers: defaultdict[tuple[str, str], list[Usage | None]] = defaultdict(list)
        self._timer: asyncio.TimerHandle | None = None

    def answered(self, record: RequestRecord) -> None:
        """A model has answered a request."""
        self._answers[record.caller, record.model].append(record.usage)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.flush)

    def flush(self) -> None:
        """Add up, and hand over to the writer; what is written a moment after midnight counts for the new day."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._answers:
            today = f"{datetime.now(UTC):%Y-%m-%d}"
            rows = [self._added_up(today, *names, usages) for names, usages in self._answers.items()]
            self._answers.clear()
            self._writer.put("usage", self._store.adding(rows))

    def _added_up(self, day: str, key: str, model: str, answers: list[Usage | None]) -> Used:
        usages = [usage for usage in answers if usage is not None]
        read, written, cached, reasoning, estimated = [sum(map(attrgetter(name), usages)) for name in _COUNTED]
        # A price is the same for every token, so that sums can be priced.
        cost = self.price_of(model).of(Usage(read, written))
        return Used(day, key, model, len(answers), read, written, cached, reasoning, estimated, cost)


class UsageReport:
    """GET /v1/usage: what the caller has used, or for an admin what all keys have."""

    def __init__(self, store: UsageStore, meter: Meter, writer: Writer) -> None:
        self._store = store
        self._meter = meter
        self._writer = writer

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        return [Endpoint("GET", "/v1/usage", self.show, OPENAI_CHAT.server)]

    async def show(self, call: Call) -> None:
        """Tell what was used: `by` key, model and day, `since` and `until` a day; an admin may name a `key`."""
        said = read_query(call.exchange.query)
        caller = call.caller
        key = said.get("key") if "admin" in caller.scopes else caller.name
        by, since, until = _read_by(said.get("by", "key,model,day")), _read_day(said, "since"), _read_day(said, "until")
        self._meter.flush()
        await self._writer.flush()
        rows = await self._store.sums(by, key=key or None, since=since, until=until)
        told: list[dict[str, Any]] = [{"object": "usage", **row} for row in rows]
        await call.exchange.respond(200, encode({"object": "list", "data": told}))


def _read_by(text: str) -> list[By]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not set(names) <= set(BY):
        raise InvalidRequest(f"by may hold {', '.join(BY)}, with commas between.", param="by", code="invalid_value")
    return cast(list[By], names)


def _read_day(said: dict[str, str], name: str) -> str | None:
    value = said.get(name) or None
    if value is not None and not _is_day(value):
        raise InvalidRequest(f"{name} must be a day such as 2026-01-31.", param=name, code="invalid_value")
    return value


def _is_day(text: str) -> bool:
    try:
        return f"{date.fromisoformat(text)}" == text  # and not one of the other forms that it takes
    except ValueError:
        return False
