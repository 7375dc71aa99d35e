"""Show runs to people: list them, follow their timelines, cancel them and fork them."""

from toolgate.api.runs.endpoints import RunEndpoints
from toolgate.api.runs.fork import RunForker

__all__ = ["RunEndpoints", "RunForker"]
