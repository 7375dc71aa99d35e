"""Encode counters, gauges and histograms in Prometheus' text format.

The client library is not used: importing it takes a tenth of a second, for which the first scrape would block all other
requests, while the format is a page long.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = Sequence[tuple[str, str]]
Sample: TypeAlias = tuple[str, Labels, float]


def family(name: str, kind: Kind, help: str, samples: Iterable[Sample]) -> str:
    """Encode one metric with all its samples; a sample's first item is the suffix of its name."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        escaped = [
            (label, text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')) for label, text in labels
        ]
        pairs = [f'{label}="{text}"' for label, text in escaped]
        lines.append(
            f"{name}{suffix}{{{','.join(pairs)}}} {number(value)}" if pairs else f"{name}{suffix} {number(value)}"
        )
    return "\n".join(lines) + "\n"


def histogram(labels: Labels, bounds: Sequence[float], counts: Sequence[int], total: float) -> list[Sample]:
    """Return the samples of one histogram; `counts` has one count per bucket, the last for all above the last bound."""
    # Buckets are cumulative in this format: each counts everything up to its bound.
    samples: list[Sample] = []
    below = 0
    for bound, count in zip((*map(number, bounds), "+Inf"), counts, strict=True):
        below += count
        samples.append(("_bucket", (*labels, ("le", bound)), below))
    return [*samples, ("_count", labels, below), ("_sum", labels, total)]


def number(value: float) -> str:
    """Format a number, without a decimal point if it is whole."""
    return str(int(value)) if value == int(value) else repr(value)
