"""Record every request when it has ended, write the records together a second later, and list them at GET /v1/requests.

A request pays for one entry in a list. Rows are made of the entries in the thread of the database; they hold no content of
requests or answers. Health checks, metrics, the console's files and successful reads of records are not recorded.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import asdict

from toolgate.api.paging import list_page, read_cursor, read_limit, read_query, unknown_cursor
from toolgate.api.records.time_query import read_times
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.engine.run_limits import Price
from toolgate.http.application import AdmittedHttpRequest, Endpoint
from toolgate.limits.prices import cost_of
from toolgate.storage.request_records import FAILED, RequestFilter, RequestStore, StatusRange, StoredRequest
from toolgate.storage.responses import Write
from toolgate.telemetry.request_log import CLIENT_LEFT, RequestRecord
from toolgate.wire.jsontext import encode

_SILENT = frozenset(("/", "/healthz", "/readyz", "/metrics", "/openapi.json"))
"""Endpoints whose requests are never recorded."""
_CONSOLE = "/console"

_MOST_PENDING = 1000
_MOST_STRANGERS = 50
"""Requests without a valid key that are recorded each second: a stranger must not fill the database."""
_ROW_BYTES = 600
_MOST_TEXT = 500
_MOST_PATH = 200
_MOST_NAMES = 50


class RequestRecorder:
    """Collects the records of requests and writes them."""

    def __init__(
        self,
        store: RequestStore,
        writer: WriteQueue,
        redact: Callable[[str], str],
        *,
        on: bool,
        price_of: Callable[[str], Price],
        dialects: Mapping[str, str],
        seconds: float = 1.0,
    ) -> None:
        """Records are made only if `on`, without the secrets that `redact` knows; `dialects` are those of upstreams.

        `price_of` returns the price of a model by its name; records are written every so many `seconds`.
        """
        self._store = store
        self._writer = writer
        self._redact = redact
        self._seconds = seconds
        self._pending: list[RequestRecord] = []
        self._timer: asyncio.TimerHandle | None = None
        self._strangers = 0
        self.configure(on=on, price_of=price_of, dialects=dialects)

    def configure(self, *, on: bool, price_of: Callable[[str], Price], dialects: Mapping[str, str]) -> None:
        """Record requests from now on, or do not, with these prices and dialects."""
        self._on = on
        self._price_of = price_of
        self._dialects = dialects

    def add(self, record: RequestRecord) -> None:
        """Collect the record of a request that has ended."""
        if self._on and (record.caller or self._takes_stranger(record)):
            self._pending.append(record)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._seconds, self.flush)
            elif len(self._pending) >= _MOST_PENDING:
                self.flush()

    def _takes_stranger(self, record: RequestRecord) -> bool:
        """Return whether a request without a valid key is recorded: the first of each second are, the others counted."""
        if not _is_recorded(record):
            return False
        self._strangers += 1
        if self._strangers > _MOST_STRANGERS:
            self._writer.lose("request", "too many come without a valid key")
        return self._strangers <= _MOST_STRANGERS

    def flush(self) -> None:
        """Queue the collected records to be written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._strangers = 0
        if self._pending:
            records, self._pending = self._pending, []
            self._writer.put("request", self._adding(records), _ROW_BYTES * len(records), len(records))

    def _adding(self, records: Sequence[RequestRecord]) -> Write:
        """Return the write that turns these into rows and stores them; it may run again, and leaves the records alone."""
        clock = time.time() - time.perf_counter()
        price_of, dialects = self._price_of, self._dialects

        def rows(background: bool) -> Iterator[StoredRequest]:
            for one in records:
                if one.background is background and _is_recorded(one):
                    yield self._row(one, clock, price_of, dialects)

        return self._store.adding(lambda: rows(False), lambda: rows(True))

    def _row(
        self, record: RequestRecord, clock: float, price_of: Callable[[str], Price], dialects: Mapping[str, str]
    ) -> StoredRequest:
        usage, first, path = record.usage, record.first_event, record.path
        return StoredRequest(  # by position, in the order of its fields: by name it takes eight times as long
            record.request_id,
            record.caller,
            record.started + clock,
            record.method[:10],
            path if path == record.endpoint else self._redact(path[:_MOST_PATH]),
            record.dialect,
            record.upstream,
            dialects.get(record.upstream, ""),
            record.model,
            int(record.stream),
            record.status,
            record.finish,
            record.code,
            None if record.error is None else self._redact(record.error[:_MOST_TEXT]),
            *((usage.input, usage.output, usage.cache_read, usage.reasoning) if usage else (0, 0, 0, 0)),
            int(usage.estimated) if usage else 0,
            round(cost_of(record, price_of), 8),
            None if first is None else round((first - record.started) * 1000, 3),
            round(record.seconds * 1000, 3),
            _names(dict.fromkeys(record.tools)),
            _names([self._redact(one[:_MOST_TEXT]) for one in record.warnings[:_MOST_NAMES]]),
            record.run or None,
        )


class RequestEndpoints:
    """Serves the records of requests: a key's own, or for an admin those of all keys."""

    def __init__(self, store: RequestStore, recorder: RequestRecorder, writer: WriteQueue) -> None:
        self._store = store
        self._recorder = recorder
        self._writer = writer

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            Endpoint("GET", "/v1/requests", self.list, errors),
            Endpoint("GET", "/v1/requests/{}", self.show, errors),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List requests, newest first: the caller's own, or for an admin those of all keys, or of one `key`."""
        query = read_query(call.exchange.query)
        wanted, limit = _filter(call, query), read_limit(query)
        cursor, to_older = read_cursor(query)
        await self._written()
        if wanted.text and (named := await self._store.find(wanted.text, wanted.owner)) is not None:
            found, last = [named], None
        else:
            page = await self._store.page(wanted, cursor, limit, newest_first=to_older)
            if page is None:
                raise unknown_cursor(cursor or "")
            found, last = page.requests, page.last

        def body() -> bytes:
            items = [request_object(one) for one in (found if to_older else reversed(found))]
            listed = list_page(items, limit, more=last is not None)
            return encode(listed if last is None else {**listed, "last_id" if to_older else "first_id": last})

        await call.exchange.respond(200, await run_in_thread(body))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return the record of one request."""
        await self._written()
        id = call.arguments[0]
        found = await self._store.find(id, None if "admin" in call.caller.scopes else call.caller.name)
        if found is None:
            raise NotFound(f"The request {id[:100]!r} was not found.", code="request_not_found")
        await call.exchange.respond(200, encode(request_object(found)))

    async def _written(self) -> None:
        """Write what this process has collected, so that a client finds the request that it has just made."""
        self._recorder.flush()
        await self._writer.flush()


def request_object(one: StoredRequest) -> dict[str, Any]:
    """Return the record of a request as it is listed."""
    fields = asdict(one)
    owner, lists = fields.pop("owner"), {name: fields.pop(name) for name in ("tools", "warnings")}
    return {
        "object": "request",
        **fields,
        "key": owner or None,
        **{name: fields[name] or None for name in ("dialect", "upstream", "upstream_dialect", "model")},
        **{name: bool(fields[name]) for name in ("stream", "estimated")},
        **{name: msgspec.json.decode(text) if text else [] for name, text in lists.items()},
    }


def _is_recorded(record: RequestRecord) -> bool:
    """Return whether the request is recorded; reads are not, because pages and clients repeat them, unless they fail.

    A reader that leaves before the end of what it follows is no failure.
    """
    if record.endpoint in _SILENT or record.path.startswith(_CONSOLE) or record.method == "OPTIONS":
        return False
    return record.method not in ("GET", "HEAD") or (record.status >= 400 and record.status != CLIENT_LEFT)


def _names(names: Collection[str]) -> str | None:
    listed = [name[:_MOST_TEXT] for name in islice(names, _MOST_NAMES)] if names else None
    return msgspec.json.encode(listed).decode() if listed else None


def _filter(call: AdmittedHttpRequest, query: Mapping[str, str]) -> RequestFilter:
    owner = (query.get("key") or None) if "admin" in call.caller.scopes else call.caller.name
    model, dialect, text = [query.get(name) or None for name in ("model", "dialect", "q")]
    if text is not None and len(text) > _MOST_TEXT:
        raise InvalidRequest(f"q may have {_MOST_TEXT} characters at most.", param="q", code="invalid_value")
    return RequestFilter(owner, model, dialect, _statuses(query.get("status", "")), text, read_times(query))


def _statuses(text: str) -> StatusRange | None:
    if not text:
        return None
    if text == "error":
        return StatusRange(*FAILED)
    if len(text) == 3 and text.isdecimal() and text.isascii():
        return StatusRange(int(text), int(text))
    if len(text) == 3 and text[0] in "12345" and text[1:] == "xx":
        return StatusRange(int(text[0]) * 100, int(text[0]) * 100 + 99)
    raise InvalidRequest(
        "status must be a status such as 200, a class such as 4xx, or error.", param="status", code="invalid_value"
    )
