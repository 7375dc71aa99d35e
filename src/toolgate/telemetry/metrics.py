"""Counters and histograms, kept as plain numbers and told in Prometheus' format.

Every label takes few values: names that the configuration does not know are all `other`. A request costs a few additions
on the event loop, which is the only place they are made; the Prometheus library is needed, and imported, by `render` alone.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from toolgate.conversation.events import Usage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

OTHER = "other"
NONE = "none"
_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKEN_KINDS = ("input", "output", "cache_read", "cache_write", "reasoning")


class _Times:
    """How many took how long."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(_LATENCY) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_LATENCY, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative form that Prometheus wants."""
        bounds = [*map(str, _LATENCY), "+Inf"]
        return [(bound, float(sum(self.counts[: i + 1]))) for i, bound in enumerate(bounds)]


class _Served:
    """What was served to one dialect by one model."""

    __slots__ = ("bytes_in", "bytes_out", "calls", "first", "latency", "statuses", "tokens")

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.latency = _Times()
        self.first = _Times()
        self.tokens = [0] * len(_TOKEN_KINDS)
        self.calls = self.bytes_in = self.bytes_out = 0

    def count(self, usage: Usage) -> None:
        tokens = self.tokens
        tokens[0] += usage.input
        tokens[1] += usage.output
        tokens[2] += usage.cache_read
        tokens[3] += usage.cache_write
        tokens[4] += usage.reasoning


class Metrics:
    """All metrics of one server; `models` and `upstreams` are the names that labels may take."""

    def __init__(self, models: Collection[str] = (), upstreams: Collection[str] = ()) -> None:
        self.streams_open = 0
        self.lines_dropped = 0
        self._served: dict[tuple[str, str], _Served] = {}
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._tool_runs: Counter[str] = Counter()
        self._registry: CollectorRegistry | None = None
        self.know(models, upstreams)

    def know(self, models: Collection[str], upstreams: Collection[str]) -> None:
        """From now on these names are labels of their own; what was counted before stays."""
        self._models = frozenset(models)
        self._upstreams = frozenset(upstreams)

    def served(self, dialect: str, model: str) -> _Served:
        """What to add a request of this dialect and model to."""
        key = (dialect or NONE, model if model in self._models else OTHER if model else NONE)
        found = self._served.get(key)
        if found is None:
            found = self._served[key] = _Served()
        return found

    def count_attempt(self, upstream: str, outcome: str) -> None:
        """One question to an upstream; `outcome` is ok or the code of one of our failures."""
        self._attempts[upstream if upstream in self._upstreams else OTHER, outcome] += 1

    def count_tool_run(self, outcome: str) -> None:
        """One run of a server tool."""
        self._tool_runs[outcome] += 1

    def render(self) -> bytes:
        """Everything, as Prometheus reads it."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        return generate_latest(self._registry)

    def collect(self) -> Iterator["Metric"]:
        """The families, for Prometheus' registry."""
        from prometheus_client.core import GaugeMetricFamily

        yield from self._counters()
        yield self._times("toolgate_request_seconds", "From the request to the end of the answer.", "latency")
        yield self._times("toolgate_first_event_seconds", "From the request to the first event.", "first")
        yield GaugeMetricFamily("toolgate_streams_open", "Streamed answers under way.", self.streams_open)
        yield GaugeMetricFamily("toolgate_log_lines_dropped", "Log lines that found no room.", self.lines_dropped)

    def _counters(self) -> Iterator["Metric"]:
        every = list(self._served.items())
        yield _counter(
            "toolgate_requests",
            "Requests by how they ended.",
            ("dialect", "model", "status"),
            [((*key, str(status)), count) for key, one in every for status, count in one.statuses.items()],
        )
        yield _counter(
            "toolgate_tokens",
            "Tokens by kind; input includes the cached ones, output the reasoning.",
            ("dialect", "model", "kind"),
            [((*key, kind), count) for key, one in every for kind, count in zip(_TOKEN_KINDS, one.tokens, strict=True)],
        )
        yield _counter(
            "toolgate_bytes",
            "Bytes of bodies.",
            ("dialect", "model", "direction"),
            [
                ((*key, way), count)
                for key, one in every
                for way, count in (("in", one.bytes_in), ("out", one.bytes_out))
            ],
        )
        yield _counter(
            "toolgate_tool_calls", "Calls in answers.", ("dialect", "model"), [(key, one.calls) for key, one in every]
        )
        yield _counter(
            "toolgate_upstream_attempts",
            "Questions to upstreams by how they were answered.",
            ("upstream", "outcome"),
            list(self._attempts.items()),
        )
        runs = [((outcome,), count) for outcome, count in self._tool_runs.items()]
        yield _counter("toolgate_tool_runs", "Runs of server tools.", ("outcome",), runs)

    def _times(self, name: str, help: str, of: str) -> "Metric":
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(name, help, labels=("dialect", "model"))
        for key, one in self._served.items():
            times: _Times = getattr(one, of)
            family.add_metric(key, times.buckets(), times.sum)
        return family


def _counter(name: str, help: str, labels: Sequence[str], values: Iterable[tuple[tuple[str, ...], int]]) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, help, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
