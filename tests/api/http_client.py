"""Requests in each of the four client dialects, and a small HTTP client over a bare socket."""

import asyncio
from typing import Any

import msgspec
from msgspec import Struct

PATHS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
}
CLIENTS = tuple(PATHS)


def body(client: str, model: str, stream: bool, text: str = "Hi", **more: Any) -> dict[str, Any]:
    """A plain question in the client's dialect."""
    messages = [{"role": "user", "content": text}]
    match client:
        case "openai_responses":
            return {"model": model, "input": messages, "stream": stream, "store": False, **more}
        case "anthropic":
            return {"model": model, "max_tokens": 100, "messages": messages, "stream": stream, **more}
        case _:
            return {"model": model, "messages": messages, "stream": stream, **more}


class HttpResponse(Struct, frozen=True):
    """What came back: status, headers and the body without its framing; `cut` when the connection broke off."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut: bool = False

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class HttpConnection:
    """One connection to a server."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = (host, int(port))

    async def __aenter__(self) -> "HttpConnection":
        self.reader, self.writer = await asyncio.open_connection(*self._address, limit=2**24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()
        await asyncio.sleep(0)

    async def post(self, path: str, payload: Any, *headers: str) -> None:
        """Send a request; `payload` may be bytes."""
        data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
        kind = (
            ()
            if any(line.lower().startswith("content-type") for line in headers)
            else ("content-type: application/json",)
        )
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: 127.0.0.1:{self._address[1]}",
            *kind,
            *headers,
            f"content-length: {len(data)}",
        ]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer."""
        start = await self.reader.readuntil(b"\r\n\r\n")
        status, *lines = start.decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines if line)
        return int(status.split()[1]), {name.lower(): value for name, value in pairs}

    async def chunk(self) -> bytes:
        """The next chunk of a streamed body, empty at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def response(self) -> HttpResponse:
        """The whole answer."""
        status, headers = await self.head()
        if "content-length" in headers:
            return HttpResponse(status, headers, await self.reader.readexactly(int(headers["content-length"])))
        pieces = []
        try:
            while piece := await self.chunk():
                pieces.append(piece)
        except (asyncio.IncompleteReadError, ValueError):
            return HttpResponse(status, headers, b"".join(pieces), cut=True)
        return HttpResponse(status, headers, b"".join(pieces))

    def abort(self) -> None:
        """Leave at once."""
        self.writer.transport.abort()


async def ask(url: str, path: str, payload: Any, *headers: str) -> HttpResponse:
    """One request on a connection of its own."""
    async with HttpConnection(url) as caller:
        await caller.post(path, payload, *headers)
        return await caller.response()
