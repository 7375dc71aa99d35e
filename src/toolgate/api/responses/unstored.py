"""Keep unstored responses in memory while the WebSocket is open that they were made on.

A client may continue its last response by id though it does not want it stored. All items up to its end are kept, as JSON,
which takes less memory than objects. All sockets share one store: when that is full, the least recently used response is
dropped, and its client gets an error that asks for the whole conversation.
"""

import asyncio
from collections import OrderedDict
from typing import Any

from toolgate.api.encode_json import encode_json
from toolgate.wire.jsontext import decode

MIB = 1024 * 1024
_SMALL = MIB // 4  # decoding more than this in the event loop would delay other requests


class UnstoredResponses:
    """The unstored responses of all sockets, by socket and id."""

    def __init__(self, max_bytes: int = 256 * MIB, max_bytes_each: int = 16 * MIB) -> None:
        """At most `max_bytes` altogether, and `max_bytes_each` of one response; a longer one is not kept."""
        self._max_bytes = max_bytes
        self._max_bytes_each = max_bytes_each
        self._responses: OrderedDict[tuple[WebSocketUnstoredResponses, str], bytes] = OrderedDict()
        self.size = 0

    def put(self, memory: "WebSocketUnstoredResponses", id: str, items: bytes) -> None:
        """Keep a response, and drop the least recently used ones that do not fit."""
        if len(items) > self._max_bytes_each:
            return
        self._responses[memory, id] = items  # `keep` has dropped an earlier one of the same lane
        self.size += len(items)
        while self.size > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self.size -= len(oldest)

    def get(self, memory: "WebSocketUnstoredResponses", id: str) -> bytes | None:
        """Return the items of a response."""
        items = self._responses.get((memory, id))
        if items is not None:
            self._responses.move_to_end((memory, id))
        return items

    def drop(self, memory: "WebSocketUnstoredResponses", id: str) -> None:
        """Drop a response, if it is kept."""
        self.size -= len(self._responses.pop((memory, id), b""))


class WebSocketUnstoredResponses:
    """The unstored responses of one socket: the last one of each of its lanes."""

    def __init__(self, store: UnstoredResponses) -> None:
        self._store = store
        self._last: dict[str | None, str] = {}

    async def keep(self, lane: str | None, id: str, items: list[Any]) -> None:
        """Keep a response in place of the lane's last; many items are encoded in a thread."""
        encoded = await encode_json(items)
        # Each holds the whole conversation so far: to keep all of a lane would grow with the square of its length.
        self.forget(self._last.get(lane))
        self._last[lane] = id
        self._store.put(self, id, encoded)

    async def recall(self, id: Any) -> list[Any] | None:
        """Return all items up to the end of a response, or None if it is not kept; many are decoded in a thread."""
        items = self._store.get(self, id) if type(id) is str else None
        if items is None or len(items) < _SMALL:
            return None if items is None else _decode(items)
        return await asyncio.to_thread(_decode, items)

    def forget(self, id: str | None) -> None:
        """Drop a response, if it is kept."""
        if id is not None:
            self._store.drop(self, id)

    def clear(self) -> None:
        """Drop all of them."""
        for id in self._last.values():
            self._store.drop(self, id)
        self._last.clear()


def _decode(items: bytes) -> list[Any]:
    value: list[Any] = decode(items)
    return value
