"""Record every request when it has ended, write the records together a second later, and list them at GET /v1/requests.

They hold no content of requests or answers. Health checks, metrics, the console's files and successful reads of records
are not recorded.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import asdict

from toolgate.api.paging import list_page, read_cursor, read_limit, read_query, unknown_cursor
from toolgate.api.records.time_query import read_times
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.errors import InvalidRequest, NotFound
from toolgate.conversation.events import Usage
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.engine.run_limits import Price
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.limits.prices import costs_of
from toolgate.storage.database import SqlConnection
from toolgate.storage.request_batches import RequestColumns, rows_of
from toolgate.storage.request_records import RequestStore, RequestWrite
from toolgate.storage.stored_requests import ABSENT_TEXTS, FAILED, RequestFilter, StatusRange, StoredRequest
from toolgate.telemetry.request_log import CLIENT_LEFT, EndedRequests, RequestBatch, RequestRecord
from toolgate.wire.jsontext import encode

# Endpoints whose requests are never recorded.
_SILENT = frozenset(("/", "/healthz", "/readyz", "/metrics", "/openapi.json"))
_CONSOLE = "/console"

# Requests without a valid key that are recorded each second: a stranger must not fill the database.
_MOST_STRANGERS = 50
_ROW_BYTES = 600  # about, without texts
# Clients and upstreams decide how long these are.
_MOST_TEXT = 500
_MOST_PATH = 200
_MOST_NAMES = 50
_NO_USAGE = Usage()


class RequestRecorder:
    """Collects the records of requests and writes them."""

    def __init__(
        self,
        store: RequestStore,
        writer: WriteQueue,
        redact: Callable[[str], str],
        ended: EndedRequests,
        clock: Callable[[], float] = time.monotonic,
        *,
        on: bool,
        price_of: Callable[[str], Price],
        dialects: Mapping[str, str],
    ) -> None:
        """Records are stored only if `on`, without the secrets that `redact` knows; `dialects` are those of upstreams.

        `price_of` returns the price of a model by its name.
        """
        self._store = store
        self._writer = writer
        self._redact = redact
        self._ended = ended
        self._clock = clock
        self._second = self._strangers = 0  # requests without a valid key in this second
        self.configure(on=on, price_of=price_of, dialects=dialects)
        ended.subscribe(self._add)

    def configure(self, *, on: bool, price_of: Callable[[str], Price], dialects: Mapping[str, str]) -> None:
        """Record requests from now on, or do not, with these prices and dialects."""
        self._ended.pass_on()  # what has ended is recorded as it was then
        self._on = on
        self._price_of = price_of
        self._dialects = dialects

    def _add(self, batch: RequestBatch) -> None:
        """Queue the records of requests of one caller to be written."""
        if not self._on:
            return
        recorded = [one for one in batch.records if _is_recorded(one)]
        if not batch.caller:
            # Of requests without a valid key the first of each second are recorded; the others are counted.
            if (second := int(self._clock())) != self._second:
                self._second, self._strangers = second, 0
            left = max(0, _MOST_STRANGERS - self._strangers)
            self._strangers += len(recorded)
            if lost := len(recorded[left:]):
                self._writer.lose("request", "too many come without a valid key", lost)
            recorded = recorded[:left]
        plain = [one for one in recorded if _is_plain(one)]
        if plain:
            for one in self._store.adding(self._columns(plain, self._price_of, self._dialects)):
                self._writer.put(batch.caller, "request", one.write, one.size, one.requests, singly=one.singly)
        if len(plain) == len(recorded):
            return
        others = [one for one in recorded if not _is_plain(one)]
        self._put_redacted([one for one in others if not one.background], self._store.adding)
        # Behind the others: the request for a background response may be among them.
        self._put_redacted(
            [one for one in others if one.background], lambda columns: self._store.replacing(rows_of(columns))
        )

    def _put_redacted(
        self, records: Sequence[RequestRecord], storing: Callable[[RequestColumns], Iterable[RequestWrite]]
    ) -> None:
        """Queue records whose texts the thread of the database redacts: that may take milliseconds for each."""
        if not records:
            return
        size = sum([_ROW_BYTES + _shorten(one) for one in records])
        price_of, dialects = self._price_of, self._dialects  # those of now

        # May be called again, if the transaction is repeated.
        def write(db: SqlConnection, some: Sequence[RequestRecord] = records) -> None:
            for one in storing(self._columns(some, price_of, dialects)):
                one.write(db)

        singly = [partial(write, some=[one]) for one in records]
        self._writer.put(records[0].caller, "request", write, size, len(records), singly=lambda: singly)

    def _columns(
        self, records: Sequence[RequestRecord], price_of: Callable[[str], Price], dialects: Mapping[str, str]
    ) -> RequestColumns:
        """Return what is stored of requests of one caller, dialect and model."""
        redact, first = self._redact, records[0]
        used = [one.usage or _NO_USAGE for one in records]
        costs = costs_of(records, price_of)
        return {
            "id": [one.request_id for one in records],
            "owner": [first.caller],
            "created": [one.created for one in records],
            "method": [one.method for one in records],
            # A client may put a secret into the path.
            "path": [path if (path := one.path) == one.endpoint else redact(path) for one in records],
            "dialect": [first.dialect],
            "upstream": [one.upstream for one in records],
            "upstream_dialect": [dialects.get(one.upstream, "") for one in records],
            "model": [first.model],
            "stream": [1 if one.stream else 0 for one in records],
            "status": [one.status for one in records],
            "finish_reason": [one.finish or "" for one in records],
            "code": [one.code or "" for one in records],
            "error": [redact(one.error) if one.error else "" for one in records],
            "input_tokens": [one.input for one in used],
            "output_tokens": [one.output for one in used],
            "cached_tokens": [one.cache_read for one in used],
            "reasoning_tokens": [one.reasoning for one in used],
            "estimated": [1 if one.estimated else 0 for one in used],
            "cost": [round(cost, 8) for cost in costs] if costs else [0.0],
            "first_token_ms": [
                None if (event := one.first_event) is None else int((event - one.started) * 1e6 + 0.5) / 1000
                for one in records
            ],
            # To three places, in less than half of the time that `round` takes.
            "total_ms": [int(one.seconds * 1e6 + 0.5) / 1000 for one in records],
            "tools": [encode(one.tools).decode() if one.tools else "" for one in records],
            "warnings": [
                encode([redact(text) for text in one.warnings]).decode() if one.warnings else "" for one in records
            ],
            "run": [one.run for one in records],
        }


class RequestEndpoints:
    """Serves the records of requests: a key's own, or for an admin those of all keys."""

    def __init__(self, store: RequestStore, ended: EndedRequests, writer: WriteQueue) -> None:
        self._store = store
        self._ended = ended
        self._writer = writer

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/requests", self.list, errors),
            HttpRoute("GET", "/v1/requests/{}", self.show, errors),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List requests, newest first: the caller's own, or for an admin those of all keys, or of one `key`."""
        query = read_query(call.exchange.query)
        wanted, limit = _filter(call, query), read_limit(query)
        cursor, to_older = read_cursor(query)
        await self._written()
        # A whole id is found by its index; a search for it would look at many rows.
        if wanted.text and (named := await self._store.find(wanted.text, wanted.owner)) is not None:
            found, last = [named], None
        else:
            page = await self._store.page(wanted, cursor, limit, newest_first=to_older)
            if page is None:
                raise unknown_cursor(cursor or "")
            found, last = page.requests, page.last and page.last[1]

        # In a thread: a page may have hundreds of records, each with lists to decode.
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
        self._ended.pass_on()
        await self._writer.flush()


def request_object(one: StoredRequest) -> dict[str, Any]:
    """Return the record of a request as it is listed."""
    fields = asdict(one)
    owner, lists = fields.pop("owner"), {name: fields.pop(name) for name in ("tools", "warnings")}
    return {
        "object": "request",
        **fields,
        "key": owner or None,
        **{name: fields[name] or None for name in ABSENT_TEXTS},
        **{name: bool(fields[name]) for name in ("stream", "estimated")},
        **{name: msgspec.json.decode(text) if text else [] for name, text in lists.items()},
    }


def _is_recorded(record: RequestRecord) -> bool:
    """Return whether the request is recorded; reads are not, because pages and clients repeat them, unless they fail.

    A reader that leaves before the end of what it follows is no failure.
    """
    if record.method == "POST" and record.endpoint:  # a path of this server that is not one of those below
        return True
    if record.endpoint in _SILENT or record.path.startswith(_CONSOLE) or record.method == "OPTIONS":
        return False
    return record.method not in ("GET", "HEAD") or (record.status >= 400 and record.status != CLIENT_LEFT)


def _is_plain(record: RequestRecord) -> bool:
    """Return whether nothing of the record is text that a client or an upstream decides, as of most requests."""
    unnamed = not (record.error or record.warnings or record.tools or record.background)
    return unnamed and record.path == record.endpoint


def _shorten(record: RequestRecord) -> int:
    """Cut the texts of a record to what is stored of them, and return how long they are."""
    # Before they are queued: while the database is away, thousands wait.
    record.path = record.path[:_MOST_PATH]
    record.error = record.error and record.error[:_MOST_TEXT]
    record.tools = [name[:_MOST_TEXT] for name in islice(dict.fromkeys(record.tools), _MOST_NAMES)]
    record.warnings = tuple([one[:_MOST_TEXT] for one in record.warnings[:_MOST_NAMES]])
    return sum([len(one) for one in (record.path, record.error or "", *record.tools, *record.warnings)])


def _filter(call: AdmittedHttpRequest, query: Mapping[str, str]) -> RequestFilter:
    owner = (query.get("key") or None) if "admin" in call.caller.scopes else call.caller.name
    model, dialect, text = [query.get(name) or None for name in ("model", "dialect", "q")]
    if text is not None and len(text) > _MOST_TEXT:
        raise InvalidRequest(f"q may have at most {_MOST_TEXT} characters.", param="q", code="invalid_value")
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
