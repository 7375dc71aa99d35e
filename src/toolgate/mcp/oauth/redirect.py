"""Serve the page to which the browser returns after a login, on loopback and for the time of the login only."""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_MAX_HEAD_BYTES = 16 * 1024
# Any page in the browser can send requests to this port; older ones make room.
_MAX_QUERIES = 64
_PATH = "/callback"
_PAGE = "<!doctype html><meta charset=utf-8><title>Toolgate</title><p>Thank you. You may close this window."


class LoopbackRedirectServer:
    """Listens on a free port of this machine while the context is open."""

    async def __aenter__(self) -> Self:
        self._queries: deque[Mapping[str, str]] = deque(maxlen=_MAX_QUERIES)
        self._arrived = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
        self.uri = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{_PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def wait(self, state: str) -> Mapping[str, str]:
        """Wait for the browser with this state; any other page or program can send requests here, too."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._queries:
                query = self._queries.popleft()
                if secrets.compare_digest(query.get("state", "").encode(), state.encode()):
                    return query

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(head.split(b"\r\n", 1)[0].decode("latin-1")))
                    await writer.drain()
        finally:
            writer.close()

    def _respond(self, line: str) -> bytes:
        """Take the query of a request line such as `GET /callback?code=…&state=… HTTP/1.1`."""
        method, _, rest = line.partition(" ")
        try:
            target = urlsplit(rest.partition(" ")[0])
        except ValueError:
            target = urlsplit("")
        if method != "GET" or target.path != _PATH:
            return b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        self._queries.append(dict(parse_qsl(target.query, max_num_fields=20)))
        self._arrived.set()
        body = _PAGE.encode()
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n"
        # The address of this page holds the code, which neither a cache nor another site may get.
        return head.encode() + b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n\r\n" + body
