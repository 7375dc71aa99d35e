"""The place a browser comes back to after a login: a page on loopback that is gone when the login is over."""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_LONGEST = 16 * 1024
_MOST_WAITING = 64
_PATH = "/callback"
_PAGE = "<!doctype html><meta charset=utf-8><title>Toolgate</title><p>Thank you. You may close this window."


class LoopbackRedirect:
    """Listens on a free port of this machine for as long as it is entered."""

    async def __aenter__(self) -> Self:
        self._answers: deque[Mapping[str, str]] = deque(maxlen=_MOST_WAITING)
        self._arrived = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LONGEST)
        self.uri = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{_PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def answer(self, state: str) -> Mapping[str, str]:
        """Wait for the browser that was given this state; any page and any program can come here with another."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._answers:
                answer = self._answers.popleft()
                if secrets.compare_digest(answer.get("state", "").encode(), state.encode()):
                    return answer

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
        self._answers.append(dict(parse_qsl(target.query, max_num_fields=20)))
        self._arrived.set()
        body = _PAGE.encode()
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n\r\n" + body
