"""Tools that the server runs: when the first text comes, what a round costs, and what a large stock of tools costs."""

from collections.abc import Iterator

from bench.field import Field
from bench.figures import Figure
from bench.topics.tools import first_text, rounds, stock
from bench.topics.tools.common import NAME, US

__all__ = ["NAME", "TITLE", "first_text", "measure", "rounds", "stock"]

TITLE = "Server tools"


def measure(field: Field) -> Iterator[Figure]:
    """One part after another, each on a server of its own; the others run no tools in any comparable way."""
    if any(peer.name == US for peer in field.peers):
        yield from first_text.measure(field)
        yield from rounds.measure(field)
        yield from stock.measure(field)
