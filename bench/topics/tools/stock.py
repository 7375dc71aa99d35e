"""What thousands of registered tools cost: listing them, choosing some, and a request that is offered all in groups."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from bench.field import CONNECTIONS, Cost, Field, Standing, standing
from bench.figures import Figure
from bench.load import Job
from bench.peers.toolgate import KEY, Toolgate
from bench.shapes import CHAT, Shape
from bench.topics.tools.common import costs, figure, job, service, wanted

SERVICES, EACH, AREAS = 5, 1000, 50
TOOLS = f"{SERVICES * EACH:,} tools"
PATTERN = "mock3_item_*7"

PLAIN = "request on a server with " + TOOLS
LIST = f"list of {TOOLS}"
TAGGED = f"list of {TOOLS}, by tag"
NAMED = f"list of {TOOLS}, by pattern"
CHOSEN = f"request offered some of {TOOLS}, by pattern"
GROUPED = f"request offered {TOOLS} in groups"
ANEW = f"request offered {TOOLS} in groups made anew"
LINES = (PLAIN, LIST, TAGGED, NAMED, CHOSEN, GROUPED, ANEW)
PROMISED = LINES[1:]


def measure(field: Field) -> Iterator[Figure]:
    """The lines in turns; what a request costs anyway is taken off those that are offered tools."""
    lines = list(wanted(field, LINES))
    if not lines:
        return
    peer = Toolgate({f"mock{number}": service(EACH, areas=AREAS) for number in range(SERVICES)})
    with standing(peer, field.upstream, "toolgate-stock") as server:
        jobs = _jobs(server)
        found = costs(field, server, {line: jobs[line] for line in dict.fromkeys([PLAIN, *lines])})
    for line in lines:
        yield _figure(line, found)


def _figure(line: str, found: dict[str, list[Cost]]) -> Figure:
    own, plain = found[line], found[PLAIN]
    if line not in (CHOSEN, GROUPED, ANEW):
        return figure(line, [one.per_request for one in own], own)
    beyond = [one.per_request - other.per_request for one, other in zip(own, plain, strict=True)]
    return figure(line, beyond, [*own, *plain])


def _jobs(server: Standing) -> dict[str, Job]:
    # More bodies than groupings are remembered, each with other room beside the client's tools: none can be reused.
    numbers = range(2 * CONNECTIONS)
    anew = [Shape("mock", server_tools=("*",), own=number + 1) for number in numbers]
    return {
        PLAIN: job(server, CHAT, [Shape("mock")]),
        LIST: _listing(server, "", SERVICES * EACH),
        TAGGED: _listing(server, "?tags=area7", SERVICES * len(range(7, EACH, AREAS))),
        NAMED: _listing(server, f"?name={PATTERN}", _fitting()),
        CHOSEN: job(server, CHAT, [Shape("mock", server_tools=(PATTERN,), number=number) for number in numbers]),
        GROUPED: job(server, CHAT, [Shape("mock", server_tools=("*",), number=number) for number in numbers]),
        ANEW: job(server, CHAT, anew),
    }


def _fitting() -> int:
    return sum(fnmatchcase(f"mock3_item_{number}", PATTERN) for number in range(1, EACH))


def _listing(server: Standing, query: str, tools: int) -> Job:
    """Every tool says `lorem` once, so a list must hold as many as there are tools."""
    headers = {"authorization": f"Bearer {KEY}"}
    return Job(server.port, f"/v1/tools{query}", headers, "", 10, 10, tools, method="GET")
