"""The place a browser comes back to after a login: one request on loopback, then it is gone."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_LONGEST = 16 * 1024
_PATH = "/callback"
_PAGE = "<!doctype html><meta charset=utf-8><title>Toolgate</title><p>Thank you. You may close this window."


class LoopbackRedirect:
    """Listens on a free port of this machine for as long as it is entered."""

    async def __aenter__(self) -> Self:
        self._told: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LONGEST)
        self.uri = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{_PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        self._told.cancel()

    async def answer(self) -> Mapping[str, str]:
        """Wait for the browser; what stands in the query of its address."""
        return await asyncio.shield(self._told)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                async with asyncio.timeout(10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._page(head.split(b"\r\n", 1)[0].decode("latin-1")))
                    await writer.drain()
        finally:
            writer.close()

    def _page(self, line: str) -> bytes:
        method, _, rest = line.partition(" ")
        try:
            target = urlsplit(rest.partition(" ")[0])
        except ValueError:
            target = urlsplit("")
        if method != "GET" or target.path != _PATH:
            return b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        if not self._told.done():
            self._told.set_result(dict(parse_qsl(target.query, max_num_fields=20)))
        body = _PAGE.encode()
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n\r\n" + body
