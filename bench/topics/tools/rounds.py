"""What a round of the loop costs beyond the model: a run in which the server calls the tool, against the same conversation
in which the client does.

The client's way costs the server as many translated requests as the run has steps, with the same histories. What the run
costs more is the loop, the tool included. Definitions of many tools that are sent along in every step are part of it, too.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bench.answers import rounds as rounds_of
from bench.field import CONNECTIONS, Cost, Field, Standing
from bench.figures import Figure
from bench.load import Job
from bench.shapes import CHAT, MESSAGES_OVER_CHAT, Route, Shape
from bench.topics.tools.common import costs, figure, job, wanted
from bench.topics.tools.first_text import EVERY, OFFERED

MODEL = "mock-rounds-4"
ROUNDS = rounds_of(MODEL)


class Pair(NamedTuple):
    """The run and the client's own way, over one route, whole or streamed."""

    route: Route
    stream: bool

    def __str__(self) -> str:
        return f"{'streamed' if self.stream else 'whole'}, {self.route}"

    @property
    def lines(self) -> tuple[str, str, str, str]:
        """The client's way, the run, the round in it and the same with many tools."""
        return (
            f"{ROUNDS} rounds run by the client, {self}",
            f"{ROUNDS} rounds run by the server, {self}",
            f"each round beyond the model, {self}",
            f"each round beyond the model, {OFFERED} tools offered, {self}",
        )

    def jobs(self, server: Standing) -> dict[str, Job]:
        """What is sent, by who runs the tool."""
        by_client = [Shape(MODEL, stream=self.stream, ran=ran) for ran in range(ROUNDS + 1)]
        return {
            "client": job(server, self.route, by_client),
            "server": job(server, self.route, self._runs(("clock",))),
            "many": job(server, self.route, self._runs(EVERY)),
        }

    def _runs(self, tools: tuple[str, ...]) -> list[Shape]:
        """The run as requests that differ: the same one twice at a time would be taken for a client that comes back."""
        return [
            Shape(MODEL, stream=self.stream, server_tools=tools, number=number) for number in range(2 * CONNECTIONS)
        ]


PAIRS = (Pair(CHAT, stream=False), Pair(CHAT, stream=True), Pair(MESSAGES_OVER_CHAT, stream=True))


def lines() -> list[str]:
    """All lines."""
    return [line for pair in PAIRS for line in pair.lines]


def measure(field: Field, server: Standing) -> Iterator[Figure]:
    """The ways in turns, pair by pair."""
    for pair in PAIRS:
        if any(wanted(field, pair.lines)):
            yield from _figures(pair, costs(field, server, pair.jobs(server)))


def _figures(pair: Pair, found: dict[str, list[Cost]]) -> Iterator[Figure]:
    client, server, many = found["client"], found["server"], found["many"]
    asked = [one.per_request * (ROUNDS + 1) for one in client]
    by_client, by_server, each, each_of_many = pair.lines
    yield figure(by_client, asked, client)
    yield figure(by_server, [one.per_request for one in server], server)
    for line, runs in ((each, server), (each_of_many, many)):
        beyond = [(run.per_request - plain) / ROUNDS for run, plain in zip(runs, asked, strict=True)]
        yield figure(line, beyond, [*runs, *client])
