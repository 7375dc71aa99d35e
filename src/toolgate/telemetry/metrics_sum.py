"""Add up the metrics of several processes, given as the text that `prometheus.py` writes. No I/O."""

from msgspec import Struct

from toolgate.telemetry.prometheus import number

# The one gauge whose sum means nothing: the total is the start of the first process.
_MINIMUM = "process_start_time_seconds"


class MetricFamily(Struct):
    """One metric and its samples, keyed by name and labels as they are written."""

    help: str
    kind: str
    samples: dict[str, float]


class MetricsSum:
    """The sum of all metrics that were added so far."""

    def __init__(self) -> None:
        self._families: dict[str, MetricFamily] = {}

    def add(self, text: str, *, gauges: bool = True) -> None:
        """Add the metrics of one process; `gauges` is false for a process that has exited, which still counts in totals."""
        for name, family in _decode(text).items():
            if family.kind == "gauge" and not gauges:
                continue
            own = self._families.setdefault(name, MetricFamily(family.help, family.kind, {}))
            for sample, value in family.samples.items():
                before = own.samples.get(sample)
                if name == _MINIMUM and before is not None:
                    own.samples[sample] = min(before, value)
                else:
                    own.samples[sample] = value + (before or 0)

    def text(self) -> str:
        """Encode the sum in Prometheus' text format."""
        lines: list[str] = []
        for name, family in self._families.items():
            lines.append(f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n")
            lines += [f"{sample} {number(value)}\n" for sample, value in family.samples.items()]
        return "".join(lines)


def _decode(text: str) -> dict[str, MetricFamily]:
    families: dict[str, MetricFamily] = {}
    last = MetricFamily("", "", {})
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help = line[7:].partition(" ")
            last = families[name] = MetricFamily(help, "", {})
        elif line.startswith("# TYPE "):
            last.kind = line.rpartition(" ")[2]
        else:  # a label's value may contain spaces, a number does not
            sample, _, value = line.rpartition(" ")
            last.samples[sample] = float(value)
    return families
