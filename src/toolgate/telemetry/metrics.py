"""Counters and histograms, kept as plain numbers and told in Prometheus' format.

Every label takes few values: names that the configuration does not know are all `other`. A request costs a few additions
on the event loop, which is the only place they are made.
"""

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from toolgate.conversation.events import Usage
from toolgate.telemetry.exposition import Sample, family, histogram

OTHER = "other"
NONE = "none"
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")


class Times:
    """How many took how long."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds


class Served:
    """What was served to one dialect by one model."""

    __slots__ = ("bytes_in", "bytes_out", "calls", "first", "labels", "latency", "statuses", "tokens")

    def __init__(self, dialect: str, model: str) -> None:
        self.labels = (("dialect", dialect), ("model", model))
        self.statuses: Counter[int] = Counter()
        self.latency = Times()
        self.first = Times()
        self.tokens = [0] * len(_TOKEN_KINDS)
        self.calls = self.bytes_in = self.bytes_out = 0

    def spend(self, usage: Usage) -> None:
        """The tokens of one answer."""
        tokens = self.tokens
        tokens[0] += usage.input
        tokens[1] += usage.output
        if usage.cache_read or usage.cache_write or usage.reasoning:
            tokens[2] += usage.cache_read
            tokens[3] += usage.cache_write
            tokens[4] += usage.reasoning


class Metrics:
    """All metrics of one server; `models` and `upstreams` are the names that labels may take."""

    def __init__(self, models: Collection[str] = (), upstreams: Collection[str] = ()) -> None:
        self.streams_open = 0
        self.lines_dropped = 0
        self._started = time.time()
        self._served: dict[tuple[str, str], Served] = {}
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._tool_runs: Counter[str] = Counter()
        self._text_notes: Counter[str] = Counter()
        self._lost_records: Counter[str] = Counter()
        self.know(models, upstreams)

    def know(self, models: Collection[str], upstreams: Collection[str]) -> None:
        """From now on these names are labels of their own; what was counted before stays."""
        self._models = frozenset(models)
        self._upstreams = frozenset(upstreams)

    def served(self, dialect: str, model: str) -> Served:
        """What to add a request of this dialect and model to."""
        key = (dialect or NONE, model if model in self._models else OTHER if model else NONE)
        found = self._served.get(key)
        if found is None:
            found = self._served[key] = Served(*key)
        return found

    def count_attempt(self, upstream: str, outcome: str) -> None:
        """One question to an upstream; `outcome` is ok or the code of one of our failures."""
        self._attempts[upstream if upstream in self._upstreams else OTHER, outcome] += 1

    def count_tool_run(self, outcome: str) -> None:
        """One run of a server tool."""
        self._tool_runs[outcome] += 1

    def count_text_note(self, kind: str) -> None:
        """One thing that was made of a model's text."""
        self._text_notes[kind] += 1

    def count_lost_record(self, kind: str) -> None:
        """One record that could not be kept."""
        self._lost_records[kind] += 1

    def render(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return "".join([*self._traffic(), *self._doings(), *self._process()]).encode()

    def _traffic(self) -> Iterator[str]:
        every = list(self._served.values())
        requests: list[Sample] = [
            ("", (*one.labels, ("status", str(status))), count)
            for one in every
            for status, count in one.statuses.items()
        ]
        tokens: list[Sample] = [
            ("", (*one.labels, ("kind", kind)), count)
            for one in every
            for kind, count in zip(_TOKEN_KINDS, one.tokens, strict=True)
        ]
        sizes: list[Sample] = [("", (*one.labels, ("direction", "in")), one.bytes_in) for one in every]
        sizes += [("", (*one.labels, ("direction", "out")), one.bytes_out) for one in every]
        whole = [sample for one in every for sample in _times(one, one.latency)]
        first = [sample for one in every for sample in _times(one, one.first)]
        yield family("toolgate_requests_total", "counter", "Requests by how they ended.", requests)
        yield family("toolgate_request_seconds", "histogram", "From the request to the end of the answer.", whole)
        yield family("toolgate_first_event_seconds", "histogram", "From the request to the first event.", first)
        yield family(
            "toolgate_tokens_total", "counter", "Tokens; input holds the cached, output the reasoning.", tokens
        )
        yield family("toolgate_bytes_total", "counter", "Bytes of bodies.", sizes)

    def _doings(self) -> Iterator[str]:
        calls: list[Sample] = [("", one.labels, one.calls) for one in self._served.values()]
        runs: list[Sample] = [("", [("outcome", outcome)], count) for outcome, count in self._tool_runs.items()]
        attempts: list[Sample] = [
            ("", [("upstream", name), ("outcome", outcome)], count) for (name, outcome), count in self._attempts.items()
        ]
        yield family(
            "toolgate_upstream_attempts_total", "counter", "Questions to upstreams by their outcome.", attempts
        )
        yield family("toolgate_tool_calls_total", "counter", "Calls in answers.", calls)
        yield family("toolgate_tool_runs_total", "counter", "Runs of server tools.", runs)
        notes: list[Sample] = [("", [("kind", kind)], count) for kind, count in self._text_notes.items()]
        yield family("toolgate_text_notes_total", "counter", "What was made of calls written as text.", notes)
        lost: list[Sample] = [("", [("kind", kind)], count) for kind, count in self._lost_records.items()]
        yield family("toolgate_records_lost_total", "counter", "Records that could not be kept.", lost)
        yield _gauge("toolgate_streams_open", "Streamed answers under way.", self.streams_open)
        yield _gauge("toolgate_log_lines_dropped", "Log lines that found no room.", self.lines_dropped)

    def _process(self) -> Iterator[str]:
        spent: list[Sample] = [("", (), time.process_time())]
        yield family("process_cpu_seconds_total", "counter", "Processor time of this process.", spent)
        yield _gauge("process_start_time_seconds", "When this process began to count.", self._started)
        statm, fds = Path("/proc/self/statm"), Path("/proc/self/fd")
        if statm.exists():  # only Linux tells
            resident = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            yield _gauge("process_resident_memory_bytes", "Memory of this process.", resident)
            yield _gauge("process_open_fds", "Open file descriptors.", len(list(fds.iterdir())))


def _times(one: Served, times: Times) -> list[Sample]:
    return histogram(one.labels, _BOUNDS, times.counts, times.sum)


def _gauge(name: str, help: str, value: float) -> str:
    return family(name, "gauge", help, [("", (), value)])
