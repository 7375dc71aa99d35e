"""Compares upstream HTTP clients under uvicorn: `python -m bench.transports`; knows nothing of Toolgate.

Each relay is the least a gateway can do: take the request's body, post it to the mock, pass the answer on.
What differs is the client, so the difference in CPU is the client's. nginx stands beside them as the floor.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any, cast

import httptools
import uvicorn

from bench.load import Job
from bench.measure import cpu_seconds
from bench.peers import Missing
from bench.peers.nginx import Nginx
from bench.processes import WORK, free_port, load, running

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Answer = tuple[int, str, AsyncIterator[bytes]]
Post = Callable[[bytes], contextlib.AbstractAsyncContextManager[Answer]]

PATH = "/v1/chat/completions"


class Reply(asyncio.Protocol):
    """A bare upstream connection: httptools parses, whatever has arrived is handed over at once."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in deed, not by inheritance

    def post(self, wire: bytes) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.arrived: list[bytes] = []
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self.began: asyncio.Future[None] = self.loop.create_future()
        self.waiter: asyncio.Future[None] | None = None
        self.transport.write(wire)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.began.set_result(None)

    def on_body(self, body: bytes) -> None:
        self.arrived.append(body)

    def on_message_complete(self) -> None:
        self.complete = True

    async def body(self) -> AsyncIterator[bytes]:
        """Everything that has arrived since the last look, until the message is complete."""
        while True:
            if self.arrived:
                piece = b"".join(self.arrived)
                self.arrived.clear()
                yield piece
            elif self.complete:
                return
            else:
                self.waiter = self.loop.create_future()
                await self.waiter


def bare(port: int) -> Post:
    """A pool of bare connections."""
    idle: list[Reply] = []
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: "

    @contextlib.asynccontextmanager
    async def post(body: bytes) -> AsyncIterator[Answer]:
        if idle:
            reply = idle.pop()
        else:
            _, reply = await asyncio.get_running_loop().create_connection(Reply, "127.0.0.1", port)
        reply.post(f"{head}{len(body)}\r\n\r\n".encode() + body)
        await reply.began
        yield reply.parser.get_status_code(), reply.headers[b"content-type"].decode(), reply.body()
        if reply.complete:
            idle.append(reply)

    return post


def with_aiohttp(port: int) -> Post:
    """aiohttp's client, reading whatever has arrived."""
    aiohttp = importlib.import_module("aiohttp")
    session = None
    headers = {"content-type": "application/json"}

    @contextlib.asynccontextmanager
    async def post(body: bytes) -> AsyncIterator[Answer]:
        nonlocal session
        session = session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        async with session.post(f"http://127.0.0.1:{port}{PATH}", data=body, headers=headers) as reply:
            yield reply.status, reply.headers["content-type"], reply.content.iter_any()

    return post


def with_pyreqwest(port: int) -> Post:
    """pyreqwest's client, reading chunk by chunk."""
    client = importlib.import_module("pyreqwest.client").ClientBuilder().no_proxy().build()
    headers = {"content-type": "application/json"}

    @contextlib.asynccontextmanager
    async def post(body: bytes) -> AsyncIterator[Answer]:
        request = client.post(f"http://127.0.0.1:{port}{PATH}").headers(headers).body_bytes(body).build_streamed()
        async with request as reply:

            async def pieces() -> AsyncIterator[bytes]:
                while (piece := await reply.body_reader.read_chunk()) is not None:
                    yield bytes(piece)

            yield reply.status, reply.get_header("content-type"), pieces()

    return post


CLIENTS = {"aiohttp": with_aiohttp, "pyreqwest": with_pyreqwest, "bare": bare}


def present() -> Iterator[str]:
    """The clients that are installed beside this interpreter, and nginx if the machine has it."""
    yield from (name for name in CLIENTS if name == "bare" or importlib.util.find_spec(name))
    with contextlib.suppress(Missing):
        Nginx().prepare()
        yield Nginx.name


def serve(client: str, port: int, upstream: int) -> None:
    """Runs one relay until killed."""
    post = CLIENTS[client](upstream)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event["body"], event["more_body"]
        async with post(body) as (status, content_type, pieces):
            headers = [(b"content-type", content_type.encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, lifespan="off")


@contextlib.contextmanager
def relay(name: str, upstream: int) -> Iterator[tuple[int, int]]:
    """Starts a relay, or nginx; gives its pid and port."""
    port = free_port()
    command = [sys.executable, "-m", "bench.transports", name, str(port), str(upstream)]
    if name == "nginx":
        command = Nginx().start(WORK / "transports", port, upstream).command
    with running(f"transport-{name}", command, port) as process:
        yield process.pid, port


def job(port: int, model: str, words: int, requests: int, *, stream: bool) -> Job:
    """A small chat request."""
    messages = [{"role": "user", "content": "Write something short, please."}]
    body = json.dumps({"model": model, "messages": messages, "stream": stream})
    end = "data: [DONE]" if stream else ""
    return Job(port, PATH, {}, body, requests, 20, words, end)


SHAPES = {
    "whole (per request)": ("mock", 20, 3000, False, 1),
    "100 chunks in one write (per request)": ("mock-chunks-100", 100, 1500, True, 1),
    "100 chunks, one per 4 ms (per chunk)": ("mock-chunks-100-every-4", 100, 80, True, 100),
}


def measure(name: str, upstream: int, repeats: int) -> None:
    """Prints the microseconds of CPU one relay needs for each shape."""
    with relay(name, upstream) as (pid, port):
        for label, (model, words, count, stream, units) in SHAPES.items():
            load(job(port, model, words, max(40, count // 10), stream=stream))
            costs = []
            for _ in range(repeats):
                before = cpu_seconds(pid)
                outcome = load(job(port, model, words, count, stream=stream))
                costs.append((cpu_seconds(pid) - before) / count / units * 1e6)
            wrong = f"  FAILED {outcome.failures}" if outcome.failures else ""
            spread = max(costs) - min(costs)
            print(f"{name:10} {label:40} {statistics.median(costs):8.1f} µs ± {spread / 2:.1f}{wrong}", flush=True)


def main(repeats: int = 5) -> None:
    """Measures every client and nginx on one mock upstream."""
    WORK.mkdir(exist_ok=True)
    upstream = free_port()
    with running("mock", [sys.executable, "-m", "bench.mock", str(upstream)], upstream):
        for name in present():
            measure(name, upstream, repeats)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
