"""Responses that are stored nowhere, remembered while the WebSocket is open that they were made on.

A client may continue its last response by id though it wanted none of it stored. What is remembered of one is all items
up to its end, as JSON, which takes less room than objects do. All sockets share one shelf: when that is full, whatever was
not asked for the longest makes room, and its client is told to send the whole conversation again.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import msgspec

from toolgate.wire.jsontext import encode

MIB = 1024 * 1024
_SMALL = MIB // 4


class Shelf:
    """What all sockets remember, by socket and id."""

    def __init__(self, most: int = 256 * MIB, most_each: int = 16 * MIB) -> None:
        """`most` bytes altogether, and of one response; a longer one is not remembered."""
        self._most = most
        self._most_each = most_each
        self._kept: OrderedDict[tuple[Memory, str], bytes] = OrderedDict()
        self.size = 0

    def put(self, memory: "Memory", id: str, items: bytes) -> None:
        """Remember, and forget what there is no room for."""
        if len(items) > self._most_each:
            return
        self._kept[memory, id] = items
        self.size += len(items)
        while self.size > self._most:
            _, oldest = self._kept.popitem(last=False)
            self.size -= len(oldest)

    def get(self, memory: "Memory", id: str) -> bytes | None:
        """What is remembered of a response."""
        items = self._kept.get((memory, id))
        if items is not None:
            self._kept.move_to_end((memory, id))
        return items

    def drop(self, memory: "Memory", id: str) -> None:
        """Forget a response, if it is remembered."""
        self.size -= len(self._kept.pop((memory, id), b""))


class Memory:
    """What one socket remembers: the last response of each of its lanes."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._last: dict[str | None, str] = {}

    def keep(self, lane: str | None, id: str, items: list[Any]) -> None:
        """Remember a response in place of the lane's last."""
        self.forget(self._last.get(lane))
        self._last[lane] = id
        self._shelf.put(self, id, encode(items))

    async def recall(self, id: Any) -> list[Any] | None:
        """All items up to the end of a response, or None if it is not remembered; many are decoded in a thread."""
        items = self._shelf.get(self, id) if type(id) is str else None
        if items is None or len(items) < _SMALL:
            return None if items is None else _decode(items)
        return await asyncio.to_thread(_decode, items)

    def forget(self, id: str | None) -> None:
        """Forget a response, if it is remembered."""
        if id is not None:
            self._shelf.drop(self, id)

    def clear(self) -> None:
        """Forget all of it."""
        for id in self._last.values():
            self._shelf.drop(self, id)
        self._last.clear()


def _decode(items: bytes) -> list[Any]:
    return msgspec.json.decode(items, type=list[Any])
