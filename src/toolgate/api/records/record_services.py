"""Build and close the records of a server, with their endpoints and their deletion: requests, chats, tool calls, usage."""

from collections.abc import Callable, Mapping

from toolgate.api.records.chat_recorder import ChatRecordingPolicy
from toolgate.api.records.chats import RecordedChatEndpoints
from toolgate.api.records.invocations import InvocationRecorder
from toolgate.api.records.latency_endpoint import LatencyEndpoint
from toolgate.api.records.request_records import RequestEndpoints, RequestRecorder
from toolgate.api.records.retention_job import RetentionJob, retention_days
from toolgate.api.records.stored_completions import StoredCompletionEndpoints
from toolgate.api.records.usage import UsageEndpoint, UsageRecorder
from toolgate.api.records.write_queue import WriteQueue
from toolgate.change_notifications.notifier import ChangeNotifier, LocalChangeNotifier
from toolgate.config import Config
from toolgate.engine.ports import CallOutcome
from toolgate.http.application import HttpRoute
from toolgate.limits.prices import cost_of, prices_by_name
from toolgate.runs.node_liveness import is_gone, this_node
from toolgate.runs.timeline_recorder import RunTimelines
from toolgate.storage.database import Database
from toolgate.storage.invocations import InvocationStore
from toolgate.storage.latencies import LatencyStore
from toolgate.storage.recorded_chats import ChatStore
from toolgate.storage.request_records import RequestStore
from toolgate.storage.retention import RetentionStore
from toolgate.storage.run_records import RunRecordStore
from toolgate.storage.runs import State
from toolgate.storage.usage import UsageStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import RUN_CANCELLED, EndedRequests, RequestRecord
from toolgate.tools.runner import FinishedCallReport
from toolgate.tools.tool import Outcome

_MOST_ERROR = 500  # characters of an error in the record of a run: upstreams may send whole pages

# The records of a second are written together.
_SECONDS_COLLECTED = 1.0

# The outcomes of calls as timelines name them.
_OUTCOMES: Mapping[Outcome, CallOutcome] = {
    "ok": "completed",
    "error": "failed",
    "refused": "failed",
    "timeout": "timeout",
    "denied": "denied",
    "cancelled": "cancelled",
    "outcome_unknown": "unknown",
}


class RecordServices:
    """The recorders of requests, chats, tool calls and usage."""

    def __init__(
        self,
        config: Config,
        database: Database,
        log: Logger,
        metrics: Metrics,
        notifier: ChangeNotifier | None = None,
        cancel_run: Callable[[str], bool] = lambda run: False,
    ) -> None:
        """`notifier` reports changes of runs; `cancel_run` cancels the request of a foreground run in this process."""
        settings = config.records
        self._log = log
        self._price_of = prices_by_name(config)
        chats, usage = ChatStore(database), UsageStore(database)
        self.writer = WriteQueue(database, log, metrics)
        self.chats = ChatRecordingPolicy(chats, self.writer, settings.chats)
        self.invocations = InvocationRecorder(
            InvocationStore(database),
            self.writer,
            lambda text: log.redact(text),  # not the method itself: a reload of the configuration replaces it
            settings.arguments,
        )
        self.retention = RetentionJob(RetentionStore(database), log, retention_days(settings))
        latencies = LatencyStore(database)
        self.ended = EndedRequests(_SECONDS_COLLECTED)
        self.usage = UsageRecorder(usage, self.writer, prices_by_name(config), self.ended, latencies=latencies)
        requests = RequestStore(database)
        self.requests = RequestRecorder(
            requests,
            self.writer,
            lambda text: log.redact(text),
            self.ended,
            on=settings.requests > 0,
            price_of=prices_by_name(config),
            dialects=_dialects(config),
        )
        self.timelines = RunTimelines(
            RunRecordStore(database, this_node(), is_gone=is_gone),
            self.writer.put,
            notifier or LocalChangeNotifier(),
            cancel_run,
            report=lambda problem: log.warning("runs", problem=problem),
        )
        self._lists = (
            RecordedChatEndpoints(chats, self.writer),
            StoredCompletionEndpoints(chats),
            UsageEndpoint(usage, self.usage, self.writer),
            LatencyEndpoint(latencies, self.usage, self.writer),
            self.invocations,
            RequestEndpoints(requests, self.ended, self.writer),
        )

    def run_ended(self, record: RequestRecord) -> None:
        """Record the end of a run by the record of its request."""
        timeline = self.timelines.live(record.run)
        # The request for a background run ends when that is queued, long before the run does.
        if timeline is not None and (timeline.kind == "foreground" or record.background):
            error = None if record.error is None else self._log.redact(record.error[:_MOST_ERROR])
            cost, response = cost_of(record, self._price_of), record.response or None
            self.timelines.end(record.run, _end_state(record), error, record.usage, cost, response)

    def call_ended(self, ended: FinishedCallReport) -> None:
        """Record a call of a server tool, also in the timeline of its run."""
        self.invocations.add(ended)
        if (timeline := self.timelines.live(ended.run)) is not None:
            timeline.call_ended(ended.invocation.call_id, _OUTCOMES[ended.outcome], ended.spec.source)

    def open(self) -> None:
        """Start what works by itself."""
        self.retention.start()
        self.timelines.open()

    def configure(self, config: Config) -> None:
        """Use the settings of this configuration from now on."""
        self._price_of = prices_by_name(config)
        self.usage.configure(prices_by_name(config))
        self.requests.configure(
            on=config.records.requests > 0, price_of=prices_by_name(config), dialects=_dialects(config)
        )
        self.chats.configure(config.records.chats)
        self.invocations.configure(config.records.arguments)
        self.retention.configure(retention_days(config.records))

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints at which records are read and deleted."""
        return [endpoint for one in self._lists for endpoint in one.endpoints()]

    async def aclose(self) -> None:
        """Write what is still queued."""
        # The queue last: what the others still have goes into it.
        await self.retention.aclose()
        await self.timelines.aclose()
        await self.writer.flush()  # it may be full
        self.usage.flush(at_end=True)
        await self.writer.aclose()


def _end_state(record: RequestRecord) -> State:
    """Return the state in which a run has ended, by the record of its request."""
    if record.code in (RUN_CANCELLED, "client_left"):
        return "cancelled"
    if record.status >= 400:
        return "failed"
    return "incomplete" if record.finish in ("length", "pause") else "completed"


def _dialects(config: Config) -> dict[str, str]:
    """Return the dialects of the upstreams by their names."""
    return {name: upstream.dialect for name, upstream in config.upstreams.items()}
