"""What a measurement leaves behind: figures with their samples, and the file they are kept in."""

import statistics
from pathlib import Path
from typing import Literal

import msgspec

Unit = Literal["s", "bytes"]


class Figure(msgspec.Struct, frozen=True):
    """One cell of a table: several samples of one quantity for one peer, or the reason there are none."""

    topic: str
    line: str
    peer: str
    unit: Unit = "s"
    samples: tuple[float, ...] = ()
    answers: int = 0
    failures: dict[str, int] = {}
    absent: str = ""

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the smallest and the largest sample."""
        return (max(self.samples) - min(self.samples)) / 2


class Machine(msgspec.Struct, frozen=True):
    """Where the figures were taken."""

    system: str
    processor: str
    cores: int
    memory_bytes: int
    python: str
    load: float  # processes wanting to run, on average, in the minute before the run

    @property
    def busy(self) -> bool:
        """Whether something else was at work, which wall-clock figures suffer from."""
        return self.load > self.cores / 2


class Results(msgspec.Struct, frozen=True):
    """Everything one run found."""

    taken: str
    mode: str
    machine: Machine
    versions: dict[str, str]
    absent: dict[str, str]
    figures: tuple[Figure, ...]

    def find(self, topic: str, line: str, peer: str) -> Figure | None:
        """The figure with samples at that place, if there is one."""
        for figure in self.figures:
            if (figure.topic, figure.line, figure.peer) == (topic, line, peer) and figure.samples:
                return figure
        return None


def save(results: Results, path: Path) -> None:
    """Writes the results, readable by people as well."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read(path: Path) -> Results:
    """Reads results written before."""
    return msgspec.json.decode(path.read_bytes(), type=Results)
