"""What clients see of a server that comes and goes: they ask, and if no answer comes they do not know what became of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from msgspec import Struct

from tests.chaos.server import KEY, Server

UNKNOWN = frozenset((500, 502, 503, 504))
"""Answers after which a client knows no more than if none had come."""


class Violation(Struct, frozen=True):
    """Something that must never happen: lost, doubled, twice (a harmful call), stuck, slow, or wrong in any
    other way."""

    kind: str
    what: str


class World:
    """The server as its clients know it; `up` says whether somebody has seen it up."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.up = asyncio.Event()
        headers = {"authorization": f"Bearer {KEY}"}
        self.client = httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60.0)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response | None:
        """One request; None if nobody knows what became of it."""
        await self.up.wait()
        try:
            response = await self.client.request(method, path, json=body, headers=headers)
        except httpx.TransportError:
            response = None
        if response is None or response.status_code in UNKNOWN:
            await self._pause()
            return None
        return response

    async def insist(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """The same request until it is answered, for those that may be repeated."""
        while True:
            response = await self.ask(method, path, body, **headers)
            if response is not None and response.status_code != 409:
                return response
            await self._pause()

    async def events(self, method: str, path: str, body: Any = None) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream, until it ends or breaks."""
        await self.up.wait()
        try:
            async with self.client.stream(method, path, json=body) as response:
                if response.status_code != 200:
                    return
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line[6:])
        except httpx.TransportError:
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(0.05)
        await self.up.wait()
