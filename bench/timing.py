"""What the time of an answer tells a stranger: `python -m bench.timing [rounds] [--only things|keys]`.

Two questions are asked of a real server over loopback sockets. Does a thing that another tenant owns take as long to be
refused as one that nobody has? Does a wrong key that is nearly right take as long as any other? Each round asks once for
everything, in a new random order, so that whatever else the machine does meets all alike.

Welch's t is taken of the answers that are quicker than the median of all: in the slower ones the machine did something else,
and they hide differences rather than showing them. One counts as seen if t exceeds 4.5, the bound that is usual for tests of
leakage, and if the medians lie more than three times as far apart as those of the control, two things that nobody has.
"""

import argparse
import json
import math
import random
import socket
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench.durable import storages
from bench.peers.toolgate import PROGRAM
from bench.processes import WORK, free_port, running

ROUNDS = 1000
WARM_UP = 50
SEEN = 4.5
"""Beyond this Welch's t, times are taken for different."""

LONG = "All of this is ann's. " * 1000
"""What is stored is large, so that whoever reads it before refusing it gives that away."""


class Times(Struct, frozen=True):
    """The microseconds of many answers to one request."""

    all: Sequence[float]

    @property
    def median(self) -> float:
        """Half were quicker."""
        return statistics.median(self.all)

    @property
    def spread(self) -> float:
        """Within which the middle half lies."""
        first, _, third = statistics.quantiles(self.all, n=4)
        return third - first


class Compared(Struct, frozen=True):
    """One request beside the one it must not be told from."""

    what: str
    usual: Times
    other: Times
    control: Times

    @property
    def difference(self) -> float:
        """Between the medians."""
        return self.other.median - self.usual.median

    @property
    def t(self) -> float:
        """Welch's t, of the quicker answers of both."""
        bound = statistics.median([*self.usual.all, *self.other.all])
        usual, other = ([one for one in times.all if one <= bound] for times in (self.usual, self.other))
        return welch(usual, other)

    @property
    def noise(self) -> float:
        """Between the medians of two requests that are alike."""
        return abs(self.control.median - self.usual.median)

    @property
    def is_seen(self) -> bool:
        """Whether the two can be told apart."""
        return abs(self.t) > SEEN and abs(self.difference) > 3 * self.noise


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """How many standard errors lie between the means."""
    error = math.sqrt(statistics.variance(one) / len(one) + statistics.variance(other) / len(other))
    return (statistics.fmean(other) - statistics.fmean(one)) / error


class Line:
    """One connection that stays open; answers are timed from the last byte sent to the last one received."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes, status: bytes) -> float:
        """Microseconds until the answer was here, which must have this status."""
        began = time.perf_counter_ns()
        self._socket.sendall(request)
        answer = self._socket.recv(65536)
        took = time.perf_counter_ns() - began
        head, _, body = answer.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if not answer.startswith(b"HTTP/1.1 " + status) or len(body) != length:
            raise RuntimeError(f"not the answer that was expected: {answer[:300]!r}")
        return took / 1000

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def timed(port: int, requests: Mapping[str, bytes], status: bytes, rounds: int) -> dict[str, Times]:
    """Every request once a round, in an order that nobody knows beforehand."""
    line, order = Line(port), list(requests)
    found: dict[str, list[float]] = {name: [] for name in requests}
    try:
        for number in range(WARM_UP + rounds):
            random.shuffle(order)
            for name in order:
                took = line.ask(requests[name], status)
                if number >= WARM_UP:
                    found[name].append(took)
    finally:
        line.close()
    return {name: Times(times) for name, times in found.items()}


@contextmanager
def served(storage: str, folder: Path) -> Iterator[int]:
    """A server with three keys and tools, on a port of its own."""
    keys = [{"name": name, "key": f"{name}-key", "scopes": ["chat", "tools"]} for name in ("ann", "bob")]
    keys.append({"name": "root", "key": "root-key", "scopes": ["chat", "tools", "admin"]})
    settings = {
        "keys": keys,
        "models": [{"name": "echo", "upstream": "builtin"}],
        "tools": {"approvals": {"rules": [{"stance": "ask", "tools": ["clock"]}]}},
        "storage": storage,
        "log": {"level": "error"},
    }
    WORK.mkdir(exist_ok=True)
    config, port = folder / "toolgate.yaml", free_port()
    config.write_text(json.dumps(settings))
    command = [str(PROGRAM), "serve", "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    with running("timing", command, port):
        yield port


class Client:
    """Asks as one key's holder, and expects to be answered."""

    def __init__(self, port: int, key: str) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"x-api-key": key}, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """The answer."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        received = self._client.request(method, path, json=body, headers=sent)
        received.raise_for_status()
        return received

    def close(self) -> None:
        """Hang up."""
        self._client.close()


def own(ann: Client) -> dict[str, str]:
    """Have ann make one of everything; their ids."""
    runs = {"model": "echo", "tool_execution": "auto"}
    chat = {**runs, "store": True, "use_server_tools": ["calculator"]}
    call = 'call calculator {"expression": "6*7"}'
    completion = ann.ask("POST", "/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": call}]})
    response = ann.ask("POST", "/v1/responses", {"model": "echo", "input": LONG}).json()
    item = {"role": "user", "content": LONG}
    conversation = ann.ask("POST", "/v1/conversations", {"items": [item]}).json()["id"]
    ann.ask("POST", "/v1/responses", {**runs, "use_server_tools": ["clock"], "input": "call clock {}"})
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "ann", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    session = ann.ask("POST", "/mcp", initialize, accept="application/json, text/event-stream")
    return {
        "response": response["id"],
        "item": response["output"][0]["id"],
        "conversation": conversation,
        "approval": ann.ask("GET", "/v1/approvals?state=pending").json()["data"][0]["id"],
        "chat": ann.ask("GET", "/v1/chats").json()["data"][0]["id"],
        "chat completion": completion.json()["id"],
        "tool run": ann.ask("GET", "/v1/tool_invocations").json()["data"][0]["id"],
        "MCP session": session.headers["mcp-session-id"],
    }


def _wire(method: str, path: str, key: str, body: Any = None, *headers: str) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"x-api-key: {key}", *headers]
    lines += ["content-type: application/json", f"content-length: {len(content)}"] if content else []
    return "\r\n".join([*lines, "", ""]).encode() + content


def _asking(id: str, kind: str) -> bytes:
    """Bob asks for a thing by its id."""
    match kind:
        case "item":
            body = {"model": "echo", "input": [{"type": "item_reference", "id": id}]}
            return _wire("POST", "/v1/responses", "bob-key", body)
        case "MCP session":
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            accept = "accept: application/json, text/event-stream"
            return _wire("POST", "/mcp", "bob-key", ping, f"mcp-session-id: {id}", accept)
        case "tool run":
            return _wire("GET", f"/v1/tool_invocations?after={id}", "bob-key")
        case _:
            return _wire("GET", PATHS[kind] + id, "bob-key")


PATHS = {
    "response": "/v1/responses/",
    "conversation": "/v1/conversations/",
    "approval": "/v1/approvals/",
    "chat": "/v1/chats/",
    "chat completion": "/v1/chat/completions/",
}
STATUSES = {"item": b"400", "tool run": b"400"}


def _unlike(id: str, count: int = 12) -> str:
    """An id of the same form that nobody has."""
    return id[:-count] + "".join(random.choices(string.ascii_letters + string.digits, k=count))


def compare_things(port: int, rounds: int) -> Iterator[Compared]:
    """What ann owns beside what nobody has, as bob hears of it."""
    ann = Client(port, "ann-key")
    owned = own(ann)
    ann.close()
    for kind, id in owned.items():
        named = {"absent": _unlike(id), "another's": id, "control": _unlike(id)}
        requests = {name: _asking(one, kind) for name, one in named.items()}
        found = timed(port, requests, STATUSES.get(kind, b"404"), rounds)
        yield Compared(kind, found["absent"], found["another's"], found["control"])


def compare_keys(port: int, rounds: int) -> Iterator[Compared]:
    """Wrong keys of several kinds beside one that was made up; they are fewer than the server takes for guessing."""
    root = Client(port, "root-key")
    good = root.ask("POST", "/v1/keys", {"name": "carl"}).json()["key"]
    revoked = root.ask("POST", "/v1/keys", {"name": "dora"}).json()["key"]
    root.ask("DELETE", "/v1/keys/dora")
    root.close()
    wrong = {
        "made up": _unlike(good, 43),
        "control": _unlike(good, 43),
        "last character wrong": good[:-1] + ("a" if good[-1] != "a" else "b"),
        "first half right": _unlike(good, 22),
        "another prefix": "sk-" + _unlike(good, 43)[3:],
        "half as long": _unlike(good, 43)[:23],
        "revoked": revoked,
    }
    requests = {name: _wire("GET", "/v1/models", key) for name, key in wrong.items()}
    found = timed(port, requests, b"401", rounds)
    for name in list(wrong)[2:]:
        yield Compared(f"key: {name}", found["made up"], found[name], found["control"])


def _row(one: Compared) -> list[str]:
    numbers = [
        f"{one.usual.median:.0f}",
        f"{one.other.median:.0f}",
        f"{one.difference:+.1f}",
        f"{one.usual.spread:.0f}",
    ]
    control = f"{one.control.median - one.usual.median:+.1f}"
    return [one.what, *numbers, f"{one.t:+.1f}", control, "[red]yes[/red]" if one.is_seen else "no"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.timing", description="What the time of an answer tells.")
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS, help="how often everything is asked for")
    parser.add_argument("--only", choices=COMPARED, help="what alone is measured")
    return parser.parse_args()


COMPARED = {"things": compare_things, "keys": compare_keys}


def main() -> int:
    """Print the table; 1 if anything can be told apart."""
    options = _options()
    columns = ("µs", "absent", "other", "apart by", "middle half", "Welch's t", "control", "seen")
    console, seen = Console(width=100), False
    with storages() as places:
        for name, storage in places.items():
            table = Table(*columns, title=f"{name}, {options.rounds} of each")
            with tempfile.TemporaryDirectory(prefix="tg-") as folder, served(storage, Path(folder)) as port:
                for compare in [COMPARED[options.only]] if options.only else COMPARED.values():
                    for one in compare(port, options.rounds):
                        table.add_row(*_row(one))
                        seen |= one.is_seen
            console.print(table)
    return int(seen)


if __name__ == "__main__":
    sys.exit(main())
