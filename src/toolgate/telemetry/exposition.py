"""Prometheus' text format, as far as counters, gauges and histograms need it.

Written here because the client library takes a tenth of a second to import, which the first scrape would make every
other request wait for, while the format is a page long.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = Sequence[tuple[str, str]]
Sample: TypeAlias = tuple[str, Labels, float]


def family(name: str, kind: Kind, help: str, samples: Iterable[Sample]) -> str:
    """One metric with all its samples; each sample says what its name adds to the metric's."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{suffix}{_labels(labels)} {number(value)}" for suffix, labels, value in samples]
    return "\n".join(lines) + "\n"


def histogram(labels: Labels, bounds: Sequence[float], counts: Sequence[int], total: float) -> list[Sample]:
    """The samples of one histogram; `counts` are those of each bucket alone, the last being all above the last bound."""
    samples: list[Sample] = []
    below = 0
    for bound, count in zip((*map(number, bounds), "+Inf"), counts, strict=True):
        below += count
        samples.append(("_bucket", (*labels, ("le", bound)), below))
    return [*samples, ("_count", labels, below), ("_sum", labels, total)]


def _labels(labels: Labels) -> str:
    return "{" + ",".join([f'{name}="{_escape(value)}"' for name, value in labels]) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """A number as it is written: without a point if it is whole."""
    return str(int(value)) if value == int(value) else repr(value)
