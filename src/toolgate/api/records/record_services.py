"""Build and close the records of a server, with their endpoints and their deletion: requests, chats, tool calls, usage."""

from collections.abc import Callable, Mapping

from toolgate.api.records.chat_recorder import ChatRecordingPolicy
from toolgate.api.records.chats import RecordedChatEndpoints
from toolgate.api.records.invocations import InvocationRecorder
from toolgate.api.records.latency import LatencyEndpoint
from toolgate.api.records.requests import RequestEndpoints, RequestRecorder
from toolgate.api.records.retention_job import RetentionJob, retention_days
from toolgate.api.records.stored_completions import StoredCompletionEndpoints
from toolgate.api.records.usage import UsageEndpoint, UsageRecorder, is_failure
from toolgate.api.records.write_queue import WriteQueue
from toolgate.config import Config
from toolgate.engine.ports import CallOutcome
from toolgate.http.application import Endpoint
from toolgate.limits.prices import cost_of, prices_by_name
from toolgate.pubsub.pubsub import LocalPubSub, PubSub
from toolgate.runs.node_id import is_gone, this_node
from toolgate.runs.timeline_recorder import RunTimelines
from toolgate.storage.chats import ChatStore
from toolgate.storage.database import Database
from toolgate.storage.invocations import InvocationStore
from toolgate.storage.latencies import LatencyStore
from toolgate.storage.request_records import RequestStore
from toolgate.storage.retention import RetentionStore
from toolgate.storage.run_records import RunRecordStore
from toolgate.storage.runs import State
from toolgate.storage.usage import UsageStore
from toolgate.telemetry.logs import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import RUN_CANCELLED, RequestRecord
from toolgate.tools.runner import ToolExecutionOutcome
from toolgate.tools.tool import Outcome

_MOST_ERROR = 500
_OUTCOMES: Mapping[Outcome, CallOutcome] = {
    "ok": "completed",
    "error": "failed",
    "refused": "failed",
    "timeout": "timeout",
    "denied": "denied",
    "cancelled": "cancelled",
    "outcome_unknown": "unknown",
}
"""The outcomes of calls as timelines name them."""


class RecordServices:
    """The recorders of requests, chats, tool calls and usage."""

    def __init__(
        self,
        config: Config,
        database: Database,
        log: Logger,
        metrics: Metrics,
        pubsub: PubSub | None = None,
        cancel_run: Callable[[str], bool] = lambda run: False,
    ) -> None:
        """`pubsub` notifies of changes of runs; `cancel_run` cancels the request of a foreground run in this process."""
        settings = config.records
        self._log = log
        self._price_of = prices_by_name(config)
        chats, usage = ChatStore(database), UsageStore(database)
        self.writer = WriteQueue(database, log, metrics)
        self.chats = ChatRecordingPolicy(chats, self.writer, settings.chats)
        self.invocations = InvocationRecorder(
            InvocationStore(database), self.writer, lambda text: log.redact(text), settings.arguments
        )
        self.retention = RetentionJob(RetentionStore(database), log, retention_days(settings))
        latencies = LatencyStore(database)
        self.usage = UsageRecorder(usage, self.writer, prices_by_name(config), latencies=latencies)
        requests = RequestStore(database)
        self.requests = RequestRecorder(
            requests,
            self.writer,
            lambda text: log.redact(text),
            on=settings.requests > 0,
            price_of=prices_by_name(config),
            dialects=_dialects(config),
        )
        self.timelines = RunTimelines(
            RunRecordStore(database, this_node(), is_gone=is_gone),
            self.writer.put,
            pubsub or LocalPubSub(),
            cancel_run,
            report=lambda problem: log.warning("runs", problem=problem),
        )
        self._lists = (
            RecordedChatEndpoints(chats, self.writer),
            StoredCompletionEndpoints(chats),
            UsageEndpoint(usage, self.usage, self.writer),
            LatencyEndpoint(latencies, self.usage, self.writer),
            self.invocations,
            RequestEndpoints(requests, self.requests, self.writer),
        )

    def ended(self, record: RequestRecord) -> None:
        """Record a request that has ended, and the end of its run if it was one."""
        self.requests.add(record)
        if record.model and is_failure(record) and not (record.upstream or record.tally.by_model):
            self.usage.add_failure(record)
        timeline = self.timelines.live(record.run) if record.run else None
        if timeline is not None and (timeline.kind == "foreground" or record.background):
            error = None if record.error is None else self._log.redact(record.error[:_MOST_ERROR])
            cost, response = cost_of(record, self._price_of), record.response or None
            self.timelines.end(record.run, _end_state(record), error, record.usage, cost, response)

    def call_ended(self, ended: ToolExecutionOutcome) -> None:
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

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints at which records are read and deleted."""
        return [endpoint for one in self._lists for endpoint in one.endpoints()]

    async def aclose(self) -> None:
        """Write what is still queued."""
        await self.retention.aclose()
        await self.timelines.aclose()
        self.usage.flush()
        self.requests.flush()
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
