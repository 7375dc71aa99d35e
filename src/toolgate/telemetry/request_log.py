"""Collect what is known of one request, and write its log line and metrics once, when it ends.

Request logs and metrics are written from here and from nowhere else.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import Protocol, TypeAlias

import msgspec

from toolgate.conversation.errors import GatewayOverloaded, ToolgateError, UpstreamError
from toolgate.conversation.events import Usage
from toolgate.conversation.usage_tally import UsageTally
from toolgate.telemetry.log_writer import Level, Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redaction import outline

# The logged status of a request whose client disconnected before the answer ended. It is never sent.
CLIENT_LEFT = 499

# The code of a request whose run was cancelled.
RUN_CANCELLED = "run_cancelled"

# Counting so many takes less than a millisecond of the event loop.
_AT_ONCE = 500


class RequestRecord(msgspec.Struct):
    """What is known of one request; it is filled in while the request is served and read once, at its end.

    `created` is the time of day at which it came, and `started` the same on the clock that measures how long it takes.
    `status` is how the request ended, even if a stream had started with 200 before it failed. `usage` is at first what
    was sent to the client; at the end it is what all upstreams have used, as added up by `tally`. `seconds` are known at the
    end. `run` is the id of its run with server tools or in the background; a `background` record is that of the run itself,
    with the id of the request that asked for it. `response` is the stored response of a foreground run. `cancelled_with` is
    the error to send if the server ends the request.
    """

    request_id: str
    method: str = ""
    path: str = ""
    created: float = msgspec.field(default_factory=time.time)
    started: float = msgspec.field(default_factory=time.perf_counter)
    endpoint: str = ""
    dialect: str = ""
    caller: str = ""
    model: str = ""
    upstream: str = ""
    stream: bool = False
    status: int = 200
    finish: str | None = None
    usage: Usage | None = None
    tally: UsageTally = msgspec.field(default_factory=UsageTally)
    first_event: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    tools: list[str] = msgspec.field(default_factory=list)
    calls: int = 0
    warnings: tuple[str, ...] = ()
    error: str | None = None
    code: str | None = None
    upstream_status: int | None = None
    finished: bool = False
    seconds: float = 0.0
    run: str = ""
    background: bool = False
    response: str = ""
    cancelled_with: ToolgateError | None = None

    def end_error(self) -> ToolgateError:
        """Return the error to send when the server ends the request: without another reason, it is shutting down."""
        return self.cancelled_with or GatewayOverloaded("The server is shutting down.", retry_after=1)

    def note_first_event(self) -> None:
        """Note the time of the first event; later calls do nothing."""
        if self.first_event is None:
            self.first_event = time.perf_counter()

    def times(self) -> tuple[float, float]:
        """Return the seconds from the start to the first event, and to now."""
        now = time.perf_counter() - self.started
        return (now if self.first_event is None else self.first_event - self.started), now

    def note_answer(self, upstream: str, finish: str | None, usage: Usage | None) -> None:
        """Note a whole answer: its upstream, finish reason and usage."""
        self.upstream = upstream
        self.first_event = self.first_event or time.perf_counter()
        self.finish = finish
        self.usage = usage

    def note_call(self, name: str) -> None:
        """Note that the answer calls this tool."""
        self.calls += 1
        self.tools.append(name)

    def note_end(self, finish: str | None, usage: Usage | None) -> None:
        """Note the finish reason and the usage."""
        self.finish = finish
        self.usage = usage

    async def settle_usage(self) -> None:
        """Set the usage to the sum of the tally, once every step is counted; without steps the usage stays as it is."""
        tally = self.tally
        try:
            if tally.open_steps:
                await tally.close_all()
        finally:
            self.usage = tally.usage or self.usage

    def note_error(self, error: ToolgateError) -> None:
        """Note why the request failed; only the first error counts."""
        if self.error is None:
            self.status, self.error, self.code = error.status, error.message, error.code
            self.upstream_status = getattr(error, "upstream_status", None)

    def note_client_left(self) -> None:
        """Note that the client disconnected before the end."""
        if self.error is None:
            self.status, self.code = CLIENT_LEFT, "client_left"

    def note_cancelled(self) -> None:
        """Note that a background response was cancelled before its end."""
        if self.error is None:
            self.status, self.code = CLIENT_LEFT, RUN_CANCELLED


class TextParseNote(Protocol):
    """A note about tool calls in a model's text: what was repaired, refused or ignored."""

    @property
    def kind(self) -> str:
        """The kind of note, a metric label."""

    @property
    def detail(self) -> str:
        """What happened, for the log."""

    @property
    def tool(self) -> str | None:
        """The name of the tool, if there is one."""


class ToolHttpLogEntry(Protocol):
    """An HTTP request that a tool has sent."""

    @property
    def account(self) -> str:
        """The caller whose allowance was used."""

    @property
    def method(self) -> str:
        """The HTTP method."""

    @property
    def host(self) -> str:
        """The host it was sent to."""

    @property
    def port(self) -> int:
        """The port it was sent to."""

    @property
    def sent(self) -> int:
        """The bytes that were sent."""

    @property
    def status(self) -> int | None:
        """The status of the response, if there was one."""


class RequestBatch:
    """Requests of one caller, dialect and model that have ended.

    What several consumers need of all of them is computed once, when the first one asks for it.
    """

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self.records = records
        self.caller, self.dialect, self.model = records[0].caller, records[0].dialect, records[0].model

    @cached_property
    def seconds(self) -> Sequence[float]:
        """How long they took, in ascending order."""
        return sorted([one.seconds for one in self.records])

    @cached_property
    def first_event_seconds(self) -> Sequence[float]:
        """How long those took to their first event that had one, in ascending order."""
        return sorted([one.first_event - one.started for one in self.records if one.first_event is not None])

    @cached_property
    def used(self) -> Sequence[Usage]:
        """The usage of those that have any."""
        return [one.usage for one in self.records if one.usage is not None]

    @cached_property
    def usage(self) -> Usage:
        """Their usage together."""
        used = self.used
        return Usage(
            sum([one.input for one in used]),
            sum([one.output for one in used]),
            sum([one.cache_read for one in used]),
            sum([one.cache_write for one in used]),
            sum([one.reasoning for one in used]),
        )


BatchConsumer: TypeAlias = Callable[[RequestBatch], None]


class EndedRequests:
    """Collects the records of requests that have ended, and passes them on in batches.

    A request pays for one entry in a list. Counting it in a batch takes two thirds of the time of counting it by itself.
    """

    def __init__(self, seconds: float | None = None) -> None:
        """Records are passed on after so many seconds at the latest; without, when there are many or they are asked for."""
        self._seconds = seconds
        self._ended: list[RequestRecord] = []
        self._consumers: list[BatchConsumer] = []
        self._timer: asyncio.TimerHandle | None = None

    def subscribe(self, consumer: BatchConsumer) -> None:
        """Pass all batches on to this function."""
        self._consumers.append(consumer)

    def add(self, record: RequestRecord) -> None:
        """Collect the record of a request that has ended."""
        self._ended.append(record)
        if len(self._ended) >= _AT_ONCE:
            self.pass_on()
        elif self._timer is None and self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.pass_on)

    def pass_on(self) -> None:
        """Pass on what was collected so far."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._ended = self._ended, []
        # Consumers look up counters, prices and sums once for a batch, by these three.
        batches: defaultdict[tuple[str, str, str], list[RequestRecord]] = defaultdict(list)
        for record in ended:
            batches[record.caller, record.dialect, record.model].append(record)
        for records in batches.values():
            batch = RequestBatch(records)
            for consumer in self._consumers:
                consumer(batch)


class Telemetry:
    """Writes log lines and metrics about requests, tools and texts."""

    def __init__(
        self,
        log: Logger,
        metrics: Metrics,
        clock: Callable[[], float] = time.perf_counter,
        *,
        ended: EndedRequests | None = None,
        run_ended: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        """`ended` gets the records of all requests, `run_ended` at once those of requests that had a run."""
        self.log = log
        self.metrics = metrics
        self._ended = ended or EndedRequests()
        self._run_ended = run_ended
        self._clock = clock
        self._ended.subscribe(self._count)

    def finish(self, record: RequestRecord) -> None:
        """Write the log line of a request that has ended and count it; a second call for the same record does nothing."""
        if record.finished:
            return
        record.finished = True
        record.seconds = seconds = self._clock() - record.started
        self._ended.add(record)
        # A 500 is a defect of this server; what is above is an upstream's or an overload.
        level: Level = "info" if record.status < 500 else "error" if record.status == 500 else "warning"
        if self.log.writes(level):
            first = None if record.first_event is None else record.first_event - record.started
            self.log.write(level, "request", _trusted(record, seconds, first), _untrusted(record))
        if record.run and self._run_ended is not None:
            self._run_ended(record)

    def _count(self, batch: RequestBatch) -> None:
        """Count requests of one dialect and model in the metrics."""
        counters, records = self.metrics.of_model(batch.dialect, batch.model), batch.records
        counters.statuses.update([one.status for one in records])
        counters.latency.add(batch.seconds)
        counters.first.add(batch.first_event_seconds)
        counters.add_usage(batch.usage)
        counters.bytes_in += sum([one.bytes_in for one in records])
        counters.bytes_out += sum([one.bytes_out for one in records])
        counters.calls += sum([one.calls for one in records])

    def crashed(self, record: RequestRecord, error: BaseException) -> None:
        """Log an unexpected exception, with where it was raised."""
        self.log.crash("crash", error, id=record.request_id, endpoint=record.endpoint or record.path)

    def stream_opened(self) -> None:
        """Count a streamed answer that starts."""
        self.metrics.streams_open += 1

    def stream_closed(self) -> None:
        """Count a streamed answer that has ended."""
        self.metrics.streams_open -= 1

    def tool_ran(self, name: str, seconds: float, outcome: str, arguments: str = "", request_id: str = "") -> None:
        """Log and count a run of a server tool; of its arguments only names and types are logged."""
        self.metrics.count_tool_run(outcome)
        fields = {"id": request_id, "tool": name, "seconds": round(seconds, 4), "outcome": outcome}
        self.log.write("info", "tool", {}, {**fields, "arguments": outline(arguments or "{}")})

    def log_tool_request(self, request: ToolHttpLogEntry) -> None:
        """Log a request that a tool has sent: for whom, where to and how many bytes, but no content."""
        target = {"account": request.account, "method": request.method, "host": request.host, "port": request.port}
        self.log.write("info", "egress", {}, {**target, "sent": request.sent, "status": request.status})

    def log_circuit(self, upstream: str, model: str, fault: UpstreamError | None) -> None:
        """Log that an upstream gets no requests for a model because it fails, or that it answers again."""
        if fault is None:
            self.log.info("circuit", upstream=upstream, model=model, state="closed")
        else:
            self.log.warning("circuit", upstream=upstream, model=model, state="open", code=fault.code)

    def log_text_note(self, model: str, note: TextParseNote) -> None:
        """Log and count a note about tool calls in a model's text."""
        self.metrics.count_text_note(note.kind)
        self.log.info("text", model=model, what=note.kind, tool=note.tool, detail=note.detail[:200])

    def set_label_names(self, models: Collection[str], upstreams: Collection[str]) -> None:
        """Use these names as labels of metrics from now on; what was counted before stays."""
        self._ended.pass_on()  # those that have ended are counted by the names that they were served under
        self.metrics.set_label_names(models, upstreams)

    def render(self) -> bytes:
        """Encode the metrics in Prometheus' text format."""
        self._ended.pass_on()
        self.metrics.lines_dropped = self.log.dropped
        return self.metrics.render()


def _trusted(record: RequestRecord, seconds: float, first: float | None) -> dict[str, object]:
    """Return the fields that hold numbers, fixed texts and names of the configuration; empty ones are left out."""
    fields: dict[str, object] = {
        "id": record.request_id,
        "status": record.status,
        "endpoint": record.endpoint,
        "caller": record.caller,
        "seconds": round(seconds, 5),
    }
    if first is not None:
        fields["first_event_seconds"] = round(first, 5)
    if record.upstream:  # only then is the model a name of the configuration
        fields["model"] = record.model
        fields["upstream"] = record.upstream
        fields["stream"] = record.stream
        fields["finish"] = record.finish
    usage = record.usage
    if usage is not None:
        fields["input_tokens"] = usage.input
        fields["output_tokens"] = usage.output
        if usage.estimated:
            fields["estimated"] = True
    return fields


def _untrusted(record: RequestRecord) -> dict[str, object]:
    """Return the fields that hold what a client or an upstream has sent."""
    fields: dict[str, object] = {}
    if not record.endpoint:
        fields["path"] = f"{record.method} {record.path}"
    if record.model and not record.upstream:
        fields["model"] = record.model
    if record.calls:
        fields["calls"] = record.calls
    if record.tools:
        fields["tools"] = record.tools
    if record.warnings:
        fields["warnings"] = record.warnings
    if record.code is not None:
        fields |= {"code": record.code, "error": record.error}
        if record.upstream_status is not None:
            fields["upstream_status"] = record.upstream_status
    return fields
