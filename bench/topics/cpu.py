"""CPU per whole request and per streamed chunk, same dialect and translated, plain and with tools."""

from collections.abc import Iterator

from bench.answers import pause
from bench.field import Field
from bench.figures import Figure
from bench.sampling import Case, sample
from bench.shapes import CHAT, CHAT_OVER_MESSAGES, MESSAGES_OVER_CHAT, Shape

NAME = "cpu"
TITLE = "CPU time"

ROUTES = (CHAT, MESSAGES_OVER_CHAT, CHAT_OVER_MESSAGES)
SHAPES = {
    "request": Shape("mock"),
    "request with 10 tools, answered by a call": Shape("mock-tools", tools=True),
    "chunk of 1,000 in one burst": Shape("mock-chunks-1000", stream=True),
    "chunk of 1,000 in one burst, a tool call": Shape("mock-tools-chunks-1000", stream=True, tools=True),
    "chunk, one every 5 ms in each of 20 streams": Shape("mock-chunks-100-every-5", stream=True),
}


def cases(*, thorough: bool) -> Iterator[Case]:
    """Every shape over every route; a quick run leaves out paced streams, and tools over all but one route."""
    for what, shape in SHAPES.items():
        for route in ROUTES:
            if not thorough and (pause(shape.model) or (shape.tools and route != MESSAGES_OVER_CHAT)):
                continue
            yield Case(NAME, f"{what}, {route}", route, shape, per_chunk=shape.stream)


def measure(field: Field) -> Iterator[Figure]:
    """The peers in turns, case by case."""
    for case in cases(thorough=field.pace.thorough):
        if field.wants(NAME, case.line):
            yield from sample(field, case)
