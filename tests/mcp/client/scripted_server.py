"""An HTTP server that a test scripts: a function from a request to a response, on a free port of loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple


class ReceivedRequest(NamedTuple):
    """A request as it arrived; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        """The body as JSON, or nothing."""
        return json.loads(self.body) if self.body.startswith(b"{") else {}


class ScriptedResponse(NamedTuple):
    """A response; with `events` it is an event stream, which then ends or breaks off."""

    status: int = 200
    value: Any = None
    headers: Mapping[str, str] = {}
    events: AsyncIterator[Any] | None = None


Script = Callable[[ReceivedRequest], Awaitable[ScriptedResponse]]


class ScriptedServer:
    """The server; `asked` records the requests."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[ReceivedRequest] = []
        self.url = ""

    def methods(self) -> list[str]:
        """Return the JSON-RPC methods of the posted requests."""
        return [asked.message.get("method", "") for asked in self.asked if asked.method == "POST"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(await _request(reader), writer)
        finally:
            writer.close()

    async def _answer(self, asked: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        self.asked.append(asked)
        says = await self.script(asked)
        if says.events is not None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            async for event in says.events:
                writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await writer.drain()
            return
        body = b"" if says.value is None else json.dumps(says.value).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **says.headers}
        lines = [f"HTTP/1.1 {says.status} X", "connection: close", *(f"{n}: {v}" for n, v in headers.items())]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[ScriptedServer]:
    """Run the server while the context is open."""
    web = ScriptedServer(script)
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    web.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield web
    finally:
        server.close()


async def _request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
    return ReceivedRequest(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
