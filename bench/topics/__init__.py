"""What is measured, one file a topic; each has a TITLE, its lines, and `measure`, which yields figures.

To add one (the parser's throughput, a durable step): write its file and name it here;
the tables follow the figures, and a promise about it goes into `bench/targets.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from bench.field import Field
from bench.figures import Figure
from bench.topics import cpu, footprint, growth, latency, tools, workers


class Topic(NamedTuple):
    """A heading of the report, and how its figures are found."""

    title: str
    measure: Callable[[Field], Iterator[Figure]]


# Footprint comes first: it starts each peer alone, before any of them has seen load.
TOPICS: Mapping[str, Topic] = {
    footprint.NAME: Topic(footprint.TITLE, footprint.measure),
    cpu.NAME: Topic(cpu.TITLE, cpu.measure),
    growth.NAME: Topic(growth.TITLE, growth.measure),
    latency.NAME: Topic(latency.TITLE, latency.measure),
    tools.NAME: Topic(tools.TITLE, tools.measure),
    workers.NAME: Topic(workers.TITLE, workers.measure),
}
