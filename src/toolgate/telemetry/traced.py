"""What one request left behind, told once: the only place from which request logs and metrics are written."""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from toolgate.conversation.errors import Overloaded, ToolgateError
from toolgate.conversation.events import Usage
from toolgate.conversation.tally import UsageTally
from toolgate.telemetry.logs import Level, Log
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redact import outline

CLIENT_LEFT = 499
"""The status of a request whose client did not wait for the answer; nobody is sent it."""


class RequestRecord(msgspec.Struct):
    """What is known of one request; it is filled in while the request is served and read once, at its end.

    `status` tells how it ended, also where a stream had begun with 200 before it failed. `usage` is what the client was
    told at first; at the end it is what all upstreams have used, as `tally` has added it up.
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
    dismissed: ToolgateError | None = None

    def why_ended(self) -> ToolgateError:
        """What to tell a client whose request is ended from outside: unless somebody said why, we are shutting down."""
        return self.dismissed or Overloaded("The server is shutting down.", retry_after=1)

    def note_first_event(self) -> None:
        """The first piece of the answer is there; later ones change nothing."""
        if self.first_event is None:
            self.first_event = time.perf_counter()

    def times(self) -> tuple[float, float]:
        """The seconds from the beginning to the first piece of the answer, and to now."""
        now = time.perf_counter() - self.started
        return (now if self.first_event is None else self.first_event - self.started), now

    def note_answer(self, upstream: str, finish: str | None, usage: Usage | None) -> None:
        """All of the answer is there at once: whose it is, why it ended and what it cost."""
        self.upstream = upstream
        self.first_event = self.first_event or time.perf_counter()
        self.finish = finish
        self.usage = usage

    def note_call(self, name: str) -> None:
        """The answer calls this tool."""
        self.calls += 1
        self.tools.append(name)

    def note_end(self, finish: str | None, usage: Usage | None) -> None:
        """Why the answer ended and what it cost."""
        self.finish = finish
        self.usage = usage

    async def settle_usage(self) -> None:
        """Take the sum of the tally for the usage, once every step is counted; without steps the usage stays as it is."""
        try:
            await self.tally.settle()
        finally:
            self.usage = self.tally.usage or self.usage

    def note_error(self, error: ToolgateError) -> None:
        """It failed; the first failure counts."""
        if self.error is None:
            self.status, self.error, self.code = error.status, error.message, error.code
            self.upstream_status = getattr(error, "upstream_status", None)

    def note_client_left(self) -> None:
        """The client did not wait for the end."""
        if self.error is None:
            self.status, self.code = CLIENT_LEFT, "client_left"


class TextNote(Protocol):
    """What happened while a text was taken for more than text."""

    @property
    def kind(self) -> str:
        """Of which kind it is."""

    @property
    def detail(self) -> str:
        """What it was, in words."""

    @property
    def tool(self) -> str | None:
        """The tool it was about."""


class Hop(Protocol):
    """A request that a tool made of somebody outside."""

    @property
    def account(self) -> str:
        """On whose account."""

    @property
    def method(self) -> str:
        """How."""

    @property
    def host(self) -> str:
        """Whom it asked."""

    @property
    def port(self) -> int:
        """At which port."""

    @property
    def sent(self) -> int:
        """How many bytes were sent there."""

    @property
    def status(self) -> int | None:
        """How it was answered, if it was."""


class Traced:
    """Turns records into log lines and metrics."""

    def __init__(self, log: Log, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self.log = log
        self.metrics = metrics
        self.answered: Callable[[RequestRecord], None] | None = None
        """Hears of every request that a model answered, if anybody wants to."""
        self._clock = clock

    def finish(self, record: RequestRecord) -> None:
        """The request is over; a second call for the same record does nothing."""
        if record.finished:
            return
        record.finished = True
        seconds = self._clock() - record.started
        first = None if record.first_event is None else record.first_event - record.started
        served = self.metrics.served(record.dialect, record.model)
        served.statuses[record.status] += 1
        served.latency.add(seconds)
        served.bytes_in += record.bytes_in
        served.bytes_out += record.bytes_out
        served.calls += record.calls
        if first is not None:
            served.first.add(first)
        if record.usage is not None:
            served.spend(record.usage)
        if record.upstream and self.answered is not None:
            self.answered(record)
        level: Level = "info" if record.status < 500 else "error" if record.status == 500 else "warning"
        if self.log.writes(level):
            self.log.write(level, "request", _ours(record, seconds, first), _said(record))

    def crashed(self, record: RequestRecord, error: BaseException) -> None:
        """A defect of ours, with where it happened."""
        self.log.crash("crash", error, id=record.request_id, endpoint=record.endpoint or record.path)

    def stream_opened(self) -> None:
        """A streamed answer began."""
        self.metrics.streams_open += 1

    def stream_closed(self) -> None:
        """A streamed answer ended."""
        self.metrics.streams_open -= 1

    def tool_ran(self, name: str, seconds: float, outcome: str, arguments: str = "", request_id: str = "") -> None:
        """A server tool was run; of its arguments only the shape is told."""
        self.metrics.count_tool_run(outcome)
        fields = {"id": request_id, "tool": name, "seconds": round(seconds, 4), "outcome": outcome}
        self.log.write("info", "tool", {}, {**fields, "arguments": outline(arguments or "{}")})

    def let_out(self, hop: Hop) -> None:
        """A tool made a request of its own: by whom, where to and how much, but not what."""
        fields = {"account": hop.account, "method": hop.method, "host": hop.host, "port": hop.port, "sent": hop.sent}
        self.log.write("info", "egress", {}, {**fields, "status": hop.status})

    def text_noted(self, model: str, note: TextNote) -> None:
        """Something was made of a model's text, or could not be."""
        self.metrics.count_text_note(note.kind)
        self.log.info("text", model=model, what=note.kind, tool=note.tool, detail=note.detail[:200])

    def render(self) -> bytes:
        """The metrics, as Prometheus reads them."""
        self.metrics.lines_dropped = self.log.dropped
        return self.metrics.render()


def _ours(record: RequestRecord, seconds: float, first: float | None) -> dict[str, object]:
    """The fields that are numbers or our own words, those that say nothing left out."""
    fields: dict[str, object] = {
        "id": record.request_id,
        "status": record.status,
        "endpoint": record.endpoint,
        "caller": record.caller,
        "seconds": round(seconds, 5),
    }
    if first is not None:
        fields["first_event_seconds"] = round(first, 5)
    if record.upstream:  # only then is the model one of the configuration's
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


def _said(record: RequestRecord) -> dict[str, object] | None:
    """The fields that hold what a client or an upstream said, if there are any."""
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
