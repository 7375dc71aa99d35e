"""Serve how long requests took at GET /v1/latency, as percentiles by model, key and hour."""

import time
from typing import Any, cast

from toolgate.api.paging import read_query
from toolgate.api.records.time_query import read_time
from toolgate.api.records.usage import UsageRecorder, hour_of
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.errors import InvalidRequest
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.storage.latencies import (
    LATENCY_BY,
    LatencyBy,
    LatencyFilter,
    LatencyStore,
    percentile,
)
from toolgate.wire.jsontext import encode

_DAY = 86_400.0
_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}


class LatencyEndpoint:
    """Serves the latencies of the caller's requests, or for an admin those of all keys."""

    def __init__(self, store: LatencyStore, recorder: UsageRecorder, writer: WriteQueue) -> None:
        self._store = store
        self._recorder = recorder
        self._writer = writer

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoint."""
        return [HttpRoute("GET", "/v1/latency", self.show, OPENAI_CHAT.server)]

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return percentiles `by` model, key and hour, of the last day unless `since` is given."""
        query, caller = read_query(call.exchange.query), call.caller
        key = (query.get("key") or None) if "admin" in caller.scopes else caller.name
        since, until = read_time(query, "since"), read_time(query, "until")
        wanted = LatencyFilter(
            key,
            query.get("model") or None,
            hour_of(time.time() - _DAY if since is None else since),
            None if until is None else hour_of(until),
        )
        names = [name.strip() for name in query.get("by", "model").split(",") if name.strip()]
        if not set(names) <= set(LATENCY_BY):
            raise InvalidRequest(
                "by may hold model, key and hour, separated by commas.", param="by", code="invalid_value"
            )
        by = cast(list[LatencyBy], names)
        self._recorder.flush()
        await self._writer.flush()
        groups = await self._store.groups(by, wanted)

        def body() -> bytes:
            data: list[dict[str, Any]] = []
            for one in groups:
                total = {name: percentile(one.total, share) for name, share in _SHARES.items()}
                first = {f"first_token_{name}": percentile(one.first, share) for name, share in _SHARES.items()}
                requests = sum(one.total.values())
                data.append({"object": "latency", **one.names, "requests": requests, **total, **first})
            return encode({"object": "list", "data": data})

        await call.exchange.respond(200, await run_in_thread(body))
