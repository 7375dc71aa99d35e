"""The mock upstream: `python -m bench.mock PORT` serves prepared bytes, so cheaply that no gateway waits for it.

The request's model name says what to answer: `mock`, `mock-tools`, `mock-chunks-1000`, `mock-tools-chunks-100`,
`mock-chunks-100-every-5` (one chunk every 5 ms), `mock-slow` (one a second, until the client leaves) and `mock-rounds-4`
(calls a tool of the gateway until four results are there). Without `every`, a stream leaves in one write, which shows what
a gateway can do at best. It is a service that tools may call, too: `GET /wait` takes its time.
"""

import asyncio
import re
import sys
from functools import lru_cache
from typing import NamedTuple, cast

import httptools
import uvloop

from bench.answers import DIALECTS, WAIT_PATH, WAIT_SECONDS, WAITED, pause, results_in, rounds, script

_MODEL = re.compile(rb'"model"\s*:\s*"([^"]+)"')
_STREAM = re.compile(rb'"stream"\s*:\s*(true|false)')
_USAGE = b'"include_usage"'


class Answer(NamedTuple):
    """The head with the first frame, then the frames to come, and the seconds between two of them."""

    frames: tuple[bytes, ...]
    pause: float


@lru_cache(maxsize=256)
def answer(path: str, model: str, stream: bool | None, usage: bool, found: int) -> Answer:
    """Prepares every byte of the answer to one kind of request, once; `found` is how many results of tools it holds."""
    if path == WAIT_PATH:
        return Answer((b"", _head(200, "text/plain", length=len(WAITED)) + WAITED.encode()), WAIT_SECONDS)
    dialect = DIALECTS.get(path)
    if dialect is None:
        return Answer((_head(404, "application/json", length=2) + b"{}",), 0)
    if stream is None:
        stream = dialect.streams_by_default
    if not stream:
        body = dialect.whole(script(model, results=found))
        return Answer((_head(200, "application/json", length=len(body)) + body,), 0)
    frames = [_chunk(frame) for frame in dialect.frames(script(model, usage=usage, results=found))]
    frames[0] = _head(200, dialect.stream_type) + frames[0]
    frames[-1] += b"0\r\n\r\n"
    wait = pause(model)
    return Answer(tuple(frames) if wait else (b"".join(frames),), wait)


def _head(status: int, content_type: str, length: int | None = None) -> bytes:
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    reason = "OK" if status == 200 else "Not Found"
    return f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{size}\r\n\r\n".encode()


def _chunk(frame: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(frame), frame)


class Upstream(asyncio.Protocol):
    """One connection: reads a request, writes the prepared answer, keeps alive."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.url = b""
        self.body: list[bytes] = []
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in deed, not by inheritance

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self.body)
        path = self.url.split(b"?", 1)[0].decode()
        self.url, self.body = b"", []
        model, stream = _MODEL.search(body), _STREAM.search(body)
        name = model[1].decode() if model else "mock"
        chosen = None if stream is None else stream[1] == b"true"
        self.send(answer(path, name, chosen, _USAGE in body, results_in(body) if rounds(name) else 0), 0)

    def send(self, reply: Answer, at: int) -> None:
        """Writes frame `at` and, if more follow, sets the clock for the next."""
        self.transport.write(reply.frames[at])
        if at + 1 < len(reply.frames):
            self.timer = self.loop.call_later(reply.pause, self.send, reply, at + 1)


async def serve(port: int) -> None:
    """Listens until killed."""
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
