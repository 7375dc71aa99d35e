"""Count requests, tokens, attempts and tool runs, and render them in Prometheus' text format.

Labels take few values: every name that is not in the configuration becomes `other`. Requests are counted in batches, on
the event loop only, so that no lock is needed.
"""

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from toolgate.conversation.bucket_counts import count_in_buckets
from toolgate.conversation.events import Usage
from toolgate.telemetry.prometheus import Sample, family, histogram

OTHER = "other"
NONE = "none"
# Seconds: a short answer takes milliseconds, a long run minutes.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")


class LatencyHistogram:
    """Counts durations in buckets."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, durations: Sequence[float]) -> None:
        """Count durations, in seconds and in ascending order."""
        for bucket, count in count_in_buckets(durations, _BOUNDS):
            self.counts[bucket] += count
        self.sum += sum(durations)


class ClientRequestCounters:
    """Counts the requests of clients in one dialect for one model."""

    __slots__ = ("bytes_in", "bytes_out", "calls", "first", "labels", "latency", "statuses", "tokens")

    def __init__(self, dialect: str, model: str) -> None:
        self.labels = (("dialect", dialect), ("model", model))
        self.statuses: Counter[int] = Counter()
        self.latency = LatencyHistogram()
        self.first = LatencyHistogram()
        self.tokens = [0] * len(_TOKEN_KINDS)
        self.calls = self.bytes_in = self.bytes_out = 0

    def add_usage(self, usage: Usage) -> None:
        """Count the tokens of answers together."""
        used = (usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning)  # as _TOKEN_KINDS
        self.tokens = [before + more for before, more in zip(self.tokens, used, strict=True)]


class Metrics:
    """All metrics of one process; `models` and `upstreams` are the names that labels may take."""

    def __init__(self, models: Collection[str] = (), upstreams: Collection[str] = ()) -> None:
        self.streams_open = 0
        self.lines_dropped = 0
        self._started = time.time()
        self._by_model: dict[tuple[str, str], ClientRequestCounters] = {}
        self._attempts: dict[tuple[str, str], int] = {}
        self._tool_runs: Counter[str] = Counter()
        self._text_notes: Counter[str] = Counter()
        self._lost_records: Counter[str] = Counter()
        self._slow_storage = 0
        self._slow_storage_seconds = 0.0
        self.set_label_names(models, upstreams)

    def set_label_names(self, models: Collection[str], upstreams: Collection[str]) -> None:
        """Use these names as labels from now on; what was counted before stays."""
        self._models = frozenset(models)
        self._upstreams = frozenset(upstreams)

    def of_model(self, dialect: str, model: str) -> ClientRequestCounters:
        """Return the counters of this dialect and model."""
        key = (dialect or NONE, model if model in self._models else OTHER if model else NONE)
        found = self._by_model.get(key)
        if found is None:
            found = self._by_model[key] = ClientRequestCounters(*key)
        return found

    def count_attempt(self, upstream: str, outcome: str) -> None:
        """Count one request to an upstream; `outcome` is `ok` or the code of our error."""
        attempts, key = self._attempts, (upstream if upstream in self._upstreams else OTHER, outcome)
        attempts[key] = attempts.get(key, 0) + 1

    def count_tool_run(self, outcome: str) -> None:
        """Count one run of a server tool."""
        self._tool_runs[outcome] += 1

    def count_text_note(self, kind: str) -> None:
        """Count one note about calls that a model wrote as text."""
        self._text_notes[kind] += 1

    def count_lost_record(self, kind: str, records: int = 1) -> None:
        """Count records that could not be stored."""
        self._lost_records[kind] += records

    def count_slow_storage(self, seconds: float) -> None:
        """Count one job of the database that took long."""
        self._slow_storage += 1
        self._slow_storage_seconds += seconds

    def render(self) -> bytes:
        """Encode all metrics in Prometheus' text format."""
        return "".join([*self._traffic(), *self._activity(), *self._process()]).encode()

    def _traffic(self) -> Iterator[str]:
        counters = list(self._by_model.values())
        requests: list[Sample] = [
            ("", (*one.labels, ("status", str(status))), count)
            for one in counters
            for status, count in one.statuses.items()
        ]
        tokens: list[Sample] = [
            ("", (*one.labels, ("kind", kind)), count)
            for one in counters
            for kind, count in zip(_TOKEN_KINDS, one.tokens, strict=True)
        ]
        sizes: list[Sample] = [("", (*one.labels, ("direction", "in")), one.bytes_in) for one in counters]
        sizes += [("", (*one.labels, ("direction", "out")), one.bytes_out) for one in counters]
        whole = [sample for one in counters for sample in _samples(one, one.latency)]
        first = [sample for one in counters for sample in _samples(one, one.first)]
        yield family("toolgate_requests_total", "counter", "Requests by how they ended.", requests)
        yield family("toolgate_request_seconds", "histogram", "From the request to the end of the answer.", whole)
        yield family("toolgate_first_event_seconds", "histogram", "From the request to the first event.", first)
        yield family(
            "toolgate_tokens_total", "counter", "Tokens; input holds the cached, output the reasoning.", tokens
        )
        yield family("toolgate_bytes_total", "counter", "Bytes of bodies.", sizes)

    def _activity(self) -> Iterator[str]:
        calls: list[Sample] = [("", one.labels, one.calls) for one in self._by_model.values()]
        runs: list[Sample] = [("", [("outcome", outcome)], count) for outcome, count in self._tool_runs.items()]
        attempts: list[Sample] = [
            ("", [("upstream", name), ("outcome", outcome)], count) for (name, outcome), count in self._attempts.items()
        ]
        yield family("toolgate_upstream_attempts_total", "counter", "Requests to upstreams by their outcome.", attempts)
        yield family("toolgate_tool_calls_total", "counter", "Calls in answers.", calls)
        yield family("toolgate_tool_runs_total", "counter", "Runs of server tools.", runs)
        notes: list[Sample] = [("", [("kind", kind)], count) for kind, count in self._text_notes.items()]
        yield family("toolgate_text_notes_total", "counter", "Notes about calls that models wrote as text.", notes)
        lost: list[Sample] = [("", [("kind", kind)], count) for kind, count in self._lost_records.items()]
        yield family("toolgate_records_lost_total", "counter", "Records that could not be stored.", lost)
        slow: list[Sample] = [("", (), self._slow_storage)]
        waited: list[Sample] = [("", (), self._slow_storage_seconds)]
        yield family("toolgate_storage_slow_total", "counter", "Jobs of the database that took over a second.", slow)
        yield family("toolgate_storage_slow_seconds_total", "counter", "Seconds that these jobs took.", waited)
        yield _gauge("toolgate_streams_open", "Streamed answers that are open.", self.streams_open)
        yield _gauge("toolgate_log_lines_dropped", "Log lines that could not be written.", self.lines_dropped)

    def _process(self) -> Iterator[str]:
        # The names are those of Prometheus' own client libraries, which dashboards know.
        spent: list[Sample] = [("", (), time.process_time())]
        yield family("process_cpu_seconds_total", "counter", "Processor time of this process.", spent)
        yield _gauge("process_start_time_seconds", "When this process began to count.", self._started)
        statm, fds = Path("/proc/self/statm"), Path("/proc/self/fd")
        if statm.exists():  # on Linux only
            resident = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            yield _gauge("process_resident_memory_bytes", "Memory of this process.", resident)
            yield _gauge("process_open_fds", "Open file descriptors.", len(list(fds.iterdir())))


def _samples(counters: ClientRequestCounters, latency: LatencyHistogram) -> list[Sample]:
    return histogram(counters.labels, _BOUNDS, latency.counts, latency.sum)


def _gauge(name: str, help: str, value: float) -> str:
    return family(name, "gauge", help, [("", (), value)])
