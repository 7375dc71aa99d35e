"""What came of a soak: the promises that were broken, and a table for people."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from tests.soak.server import Sample

MIB = 1024 * 1024
SLOPE = 1.0
"""Mebibytes that memory may grow in a minute of the second half; a leak of a kilobyte a request is ten times as much."""
SPARE_DESCRIPTORS = 4
_BEGIN, _END = "<!-- soak -->", "<!-- /soak -->"


class Soak(Struct, frozen=True):
    """The outcome."""

    minutes: float
    database: str
    workers: int
    counts: Counter[str]
    failures: list[str]
    samples: list[Sample]
    before: Sample
    after: Sample
    exit_code: int

    @property
    def slope(self) -> float:
        """Mebibytes of memory a minute in the second half, by least squares."""
        half = self.samples[len(self.samples) // 2 :]
        return _slope([(one.seconds / 60, one.rss / MIB) for one in half])

    def broken(self, slope: float = SLOPE) -> list[str]:
        """The promises that were not kept."""
        found = list(self.failures)
        if self.after.descriptors > self.before.descriptors + SPARE_DESCRIPTORS:
            found.append(f"descriptors grew from {self.before.descriptors} to {self.after.descriptors}")
        if self.after.children > self.before.children:
            found.append(f"children grew from {self.before.children} to {self.after.children}")
        if self.slope > slope:
            found.append(f"memory grows by {self.slope:.2f} MiB a minute")
        if self.exit_code != 0:
            found.append(f"the server ended with {self.exit_code}")
        return found

    def table(self) -> str:
        """The figures, in Markdown."""
        lags = sorted(one.lag for one in self.samples)
        rows = [
            ("time", f"{self.minutes:g} minutes, {self.database}, {self.workers} worker{'s' * (self.workers > 1)}"),
            ("requests", f"{sum(self.counts.values())} in {len(self.counts)} kinds"),
            ("failed that were not meant to", str(len(self.failures))),
            ("descriptors, before and after", f"{self.before.descriptors}, {self.after.descriptors}"),
            ("child processes, before and after", f"{self.before.children}, {self.after.children}"),
            (
                "memory at the start, in the middle, at the end",
                ", ".join(f"{one.rss / MIB:.0f} MiB" for one in self._three()),
            ),
            ("growth of memory in the second half", f"{self.slope:+.2f} MiB a minute"),
            (
                "a request that needs nothing, median and longest",
                f"{lags[len(lags) // 2] * 1000:.0f} ms, {lags[-1] * 1000:.0f} ms",
            ),
        ]
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        return "\n".join(
            ["| | |", "|---|---|", *[f"| {name} | {value} |" for name, value in rows], "", f"By kind: {kinds}."]
        )

    def _three(self) -> Sequence[Sample]:
        return self.before, self.samples[len(self.samples) // 2], self.after


def write(page: Path, table: str) -> None:
    """Put the table between its marks in the page."""
    text = page.read_text()
    head, _, rest = text.partition(_BEGIN)
    page.write_text(f"{head}{_BEGIN}\n{table}\n{_END}{rest.partition(_END)[2]}")


def _slope(points: Sequence[tuple[float, float]]) -> float:
    count = len(points)
    middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    below = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / below if below else 0.0
