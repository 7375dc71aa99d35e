"""What a measured server must be able to tell; knows no particular server."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.shapes import PATHS, Route


class Missing(Exception):
    """The peer is not on this machine and cannot be got; the message says why, for the table."""


class Start(NamedTuple):
    """How to start a server."""

    command: list[str]
    env: Mapping[str, str] = {}


class Target(NamedTuple):
    """How to address a server for one route: the path, the headers and the name it knows the model by."""

    path: str
    headers: Mapping[str, str]
    model: str


class Peer(Protocol):
    """A server that can stand between the load generator and the mock upstream."""

    name: str
    title: str

    def prepare(self) -> None:
        """Installs what is needed, or raises `Missing`."""

    def version(self) -> str:
        """The version installed."""

    def start(self, folder: Path, port: int, upstream: int) -> Start:
        """Writes configuration into the folder and says how to start on the port."""

    def target(self, route: Route, model: str, upstream: int) -> Target | None:
        """How to ask for a model over a route; nothing if the server cannot translate it."""


class Direct:
    """No server between: the mock upstream itself, from which added latency is counted."""

    name = "direct"
    title = "mock alone"

    def target(self, route: Route, model: str, upstream: int) -> Target | None:
        """The upstream's own path."""
        return Target(PATHS[route.client], {}, model) if route.client == route.upstream else None
