"""Adding up what several processes count, in Prometheus' text format as `exposition.py` writes it. Pure."""

from collections.abc import Iterable

from msgspec import Struct

from toolgate.telemetry.exposition import number

_EARLIEST = "process_start_time_seconds"
"""The one gauge of which the sum says nothing: all together began when the first of them did."""


class Family(Struct):
    """One metric and its samples, by name and labels as they are written."""

    help: str
    kind: str
    samples: dict[str, float]


class Sum:
    """Everything that was added so far."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def add(self, text: str, *, gauges: bool = True) -> None:
        """Add what one process counts; without gauges if it is gone: it uses no memory any more, but it did count."""
        for name, family in _read(text).items():
            if family.kind == "gauge" and not gauges:
                continue
            own = self._families.setdefault(name, Family(family.help, family.kind, {}))
            for sample, value in family.samples.items():
                before = own.samples.get(sample)
                if name == _EARLIEST and before is not None:
                    own.samples[sample] = min(before, value)
                else:
                    own.samples[sample] = value + (before or 0)

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        return "".join([line for name, family in self._families.items() for line in _written(name, family)])


def _read(text: str) -> dict[str, Family]:
    families: dict[str, Family] = {}
    last = Family("", "", {})
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, help = line[7:].partition(" ")
            last = families[name] = Family(help, "", {})
        elif line.startswith("# TYPE "):
            last.kind = line.rpartition(" ")[2]
        else:  # a label's value may hold spaces, a number none
            sample, _, value = line.rpartition(" ")
            last.samples[sample] = float(value)
    return families


def _written(name: str, family: Family) -> Iterable[str]:
    yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
    for sample, value in family.samples.items():
        yield f"{sample} {number(value)}\n"
