"""Tools that the server runs: when the first text comes, what a round costs, and what a large stock of tools costs."""

from collections.abc import Iterator

from bench.field import Field, standing
from bench.figures import Figure
from bench.peers.toolgate import Toolgate
from bench.topics.tools import first_text, rounds, stock
from bench.topics.tools.common import NAME, US, service, wanted

__all__ = ["NAME", "TITLE", "first_text", "measure", "rounds", "stock"]

TITLE = "Server tools"


def measure(field: Field) -> Iterator[Figure]:
    """One part after another, on servers of their own; the others run no tools in any comparable way."""
    if not any(peer.name == US for peer in field.peers):
        return
    if any(wanted(field, [*first_text.lines(), *rounds.lines()])):
        peer = Toolgate({"mock": service(first_text.OFFERED - 1)})
        with standing(peer, field.upstream, "toolgate-tools") as server:
            yield from first_text.measure(field, server)
            yield from rounds.measure(field, server)
    yield from stock.measure(field)
