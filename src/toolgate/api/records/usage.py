"""Sum up what keys use in memory as requests end, write it every few seconds, and serve it at GET /v1/usage."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from toolgate.api.paging import read_query
from toolgate.api.records.time_query import read_time
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.errors import InvalidRequest
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.run_limits import Price
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.limits.prices import costs_of
from toolgate.storage.database import SqlConnection
from toolgate.storage.latencies import LatencyKind, LatencyStore, count_by_bucket
from toolgate.storage.usage import BY, By, UsagePeriodTotal, UsageStore
from toolgate.telemetry.request_log import CLIENT_LEFT, RUN_CANCELLED, EndedRequests, RequestBatch, RequestRecord
from toolgate.wire.jsontext import encode


class _UsageSums(Struct, eq=False):
    """What one key has used of one model since the last write; `totals` and `firsts` count latencies by their bucket."""

    requests: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: int = 0
    cost: float = 0.0
    errors: int = 0
    totals: Counter[int] = field(default_factory=Counter)
    firsts: Counter[int] = field(default_factory=Counter)

    def add(self, answered: RequestBatch, cost: float) -> None:
        """Add requests for which a model was asked; latencies are those of requests that succeeded."""
        records, usage = answered.records, answered.usage
        self.requests += len(records)
        self.cost += cost
        self.input += usage.input
        self.output += usage.output
        self.cached += usage.cache_read
        self.reasoning += usage.reasoning
        self.estimated += sum([one.estimated for one in answered.used])
        good = [one for one in records if one.status < 400]
        if good:
            succeeded = answered if len(good) == len(records) else RequestBatch(good)
            self.totals.update(count_by_bucket(succeeded.seconds))
            self.firsts.update(count_by_bucket(succeeded.first_event_seconds))

    def total(self, hour: str, key: str, model: str) -> UsagePeriodTotal:
        """Return the sums as they are stored."""
        tokens = (self.input, self.output, self.cached, self.reasoning)
        return UsagePeriodTotal(hour, key, model, self.requests, *tokens, self.estimated, self.cost, self.errors)


class UsageRecorder:
    """Sums up the usage of requests by key and model."""

    def __init__(
        self,
        store: UsageStore,
        writer: WriteQueue,
        price_of: Callable[[str], Price],
        ended: EndedRequests,
        seconds: float = 2.0,
        latencies: LatencyStore | None = None,
    ) -> None:
        """`price_of` returns the price of a model by its name; usage is written every so many `seconds`.

        The records of requests come from `ended`; `latencies` store how long they took.
        """
        self._ended = ended
        self._latencies = latencies
        self._price_of = price_of
        self._store = store
        self._writer = writer
        self._seconds = seconds
        self._sums: defaultdict[tuple[str, str], _UsageSums] = defaultdict(_UsageSums)
        self._timer: asyncio.TimerHandle | None = None
        ended.subscribe(self._add)

    def configure(self, price_of: Callable[[str], Price]) -> None:
        """Use these prices from now on."""
        self._ended.pass_on()  # what has ended costs what it cost then
        self._price_of = price_of

    def _add(self, batch: RequestBatch) -> None:
        """Add requests of one key and model."""
        records = batch.records
        # An upstream that was asked is paid even if the client left, or the request failed, before it had answered.
        answered = [one for one in records if one.upstream or one.tally.usage]
        # A request that names no model and asked none is no request for a model that failed.
        errors = [one for one in records if one.status >= 400 and is_failure(one) and (one.model or one.upstream)]
        if answered or errors:
            sums = self._sums[batch.caller, batch.model]
            sums.errors += len(errors)
            if answered:
                paid = batch if len(answered) == len(records) else RequestBatch(answered)
                sums.add(paid, sum(costs_of(answered, self._price_of)))
            self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.flush)

    def flush(self, *, at_end: bool = False) -> None:
        """Queue the sums to be written; what is written a moment after midnight counts for the new day.

        While the queue is full they grow on here, unless it is `at_end`: a write has the usage of thousands of requests.
        """
        self._ended.pass_on()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sums and not at_end and not self._writer.has_room:
            self._flush_later()
        elif self._sums:
            # What is added while these wait to be written goes into new sums: a write that fails is tried again as it is.
            sums, self._sums = self._sums, defaultdict(_UsageSums)
            hour = hour_of(time.time())

            def write(db: SqlConnection) -> None:
                totals = [sums[name].total(hour, *name) for name in sorted(sums)]
                self._store.adding([replace(one, day=hour[:10]) for one in totals], totals)(db)
                counts: dict[tuple[str, str, str, LatencyKind, int], int] = {}
                for name, one in sums.items():
                    counts |= {(hour, *name, "total", number): count for number, count in one.totals.items()}
                    counts |= {(hour, *name, "first", number): count for number, count in one.firsts.items()}
                if self._latencies is not None and counts:
                    self._latencies.adding(counts)(db)

            self._writer.put("", "usage", write)


def hour_of(seconds: float) -> str:
    """Return the hour of UTC, such as 2026-01-31T12."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H}"


def is_failure(record: RequestRecord) -> bool:
    """Return whether a request has failed: a client that left, or cancelled its run, has not seen a failure."""
    return record.status >= 400 and record.status != CLIENT_LEFT and record.code != RUN_CANCELLED


class UsageEndpoint:
    """Serves the usage of the caller, or for an admin of all keys."""

    def __init__(self, store: UsageStore, recorder: UsageRecorder, writer: WriteQueue) -> None:
        self._store = store
        self._recorder = recorder
        self._writer = writer

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoint."""
        return [HttpRoute("GET", "/v1/usage", self.show, OPENAI_CHAT.server)]

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return what was used: `by` key, model and day or hour, `since` and `until`; an admin may name a `key`."""
        query, caller = read_query(call.exchange.query), call.caller
        key = query.get("key") if "admin" in caller.scopes else caller.name
        names = [name.strip() for name in query.get("by", "key,model,day").split(",") if name.strip()]
        if not set(names) <= set(BY):
            raise InvalidRequest(f"by may hold {', '.join(BY)}, separated by commas.", param="by", code="invalid_value")
        if {"day", "hour"} <= set(names):
            raise InvalidRequest("by may hold day or hour, not both.", param="by", code="invalid_value")
        by = cast(list[By], names)
        read = _read_hour if "hour" in by else _read_day
        since, until = read(query, "since"), read(query, "until")
        # A client finds what it has just used; of other processes, what they have written.
        self._recorder.flush()
        await self._writer.flush()
        rows = await self._store.sums(by, key=key or None, since=since, until=until)
        items: list[dict[str, Any]] = [{"object": "usage", **row} for row in rows]
        await call.exchange.respond(200, encode({"object": "list", "data": items}))


def _read_hour(query: dict[str, str], name: str) -> str | None:
    seconds = read_time(query, name)
    return None if seconds is None else hour_of(seconds)


def _read_day(query: dict[str, str], name: str) -> str | None:
    value = query.get(name) or None
    try:
        is_day = value is None or f"{date.fromisoformat(value)}" == value  # it accepts other forms, too
    except ValueError:
        is_day = False
    if not is_day:
        raise InvalidRequest(f"{name} must be a day such as 2026-01-31.", param=name, code="invalid_value")
    return value
