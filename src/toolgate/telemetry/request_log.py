"""Collect what is known of one request, and write its log line and metrics once, when it ends.

Request logs and metrics are written from here and from nowhere else.
"""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from toolgate.conversation.errors import Overloaded, ToolgateError, UpstreamError
from toolgate.conversation.events import Usage
from toolgate.conversation.usage_tally import UsageTally
from toolgate.telemetry.logs import Level, Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redaction import outline

CLIENT_LEFT = 499
"""The logged status of a request whose client disconnected before the answer ended; it is never sent."""


RUN_CANCELLED = "run_cancelled"
"""The code of a request whose run was cancelled."""


class RequestRecord(msgspec.Struct):
    """What is known of one request; it is filled in while the request is served and read once, at its end.

    `status` is how the request ended, even if a stream had started with 200 before it failed. `usage` is at first what
    was sent to the client; at the end it is what all upstreams have used, as added up by `tally`. `seconds` are known at the
    end. `run` is the id of its run with server tools or in the background; a `background` record is that of the run itself,
    with the id of the request that asked for it. `response` is the stored response of a foreground run. `cancelled_with` is
    the error to send if the server ends the request.
    """

    request_id: str
    method: str = ""
    path: str = ""
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
        return self.cancelled_with or Overloaded("The server is shutting down.", retry_after=1)

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


class Telemetry:
    """Writes log lines and metrics about requests, tools and texts."""

    def __init__(
        self,
        log: Logger,
        metrics: Metrics,
        clock: Callable[[], float] = time.perf_counter,
        *,
        answered: Callable[[RequestRecord], None] | None = None,
        ended: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        """`answered` is called with the record of every request that has used a model, `ended` with every record."""
        self.log = log
        self.metrics = metrics
        self._answered = answered
        self._ended = ended
        self._clock = clock

    def finish(self, record: RequestRecord) -> None:
        """Write the log line and metrics of a request that has ended; a second call for the same record does nothing."""
        if record.finished:
            return
        record.finished = True
        record.seconds = seconds = self._clock() - record.started
        first = None if record.first_event is None else record.first_event - record.started
        model = self.metrics.of_model(record.dialect, record.model)
        model.statuses[record.status] += 1
        model.latency.add(seconds)
        model.bytes_in += record.bytes_in
        model.bytes_out += record.bytes_out
        model.calls += record.calls
        if first is not None:
            model.first.add(first)
        if record.usage is not None:
            model.add_usage(record.usage)
        # An upstream that was asked is paid even if the client left, or the request failed, before it had answered.
        if (record.upstream or record.tally.by_model) and self._answered is not None:
            self._answered(record)
        if self._ended is not None:
            self._ended(record)
        level: Level = "info" if record.status < 500 else "error" if record.status == 500 else "warning"
        if self.log.writes(level):
            self.log.write(level, "request", _trusted(record, seconds, first), _untrusted(record))

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

    def render(self) -> bytes:
        """Encode the metrics in Prometheus' text format."""
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
