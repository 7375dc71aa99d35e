"""Recognise lists that clients send again and again, such as their tools, by their bytes, and decode them once.

An agent sends the same definitions with every step; decoding, checking and encoding ten tools took a third of a request.
"""

from collections import OrderedDict
from typing import Any


class CachedDecodedList(list[Any]):
    """A decoded list that later bodies have in common; it must not be changed.

    `derived` has what was made of it, by the function that made it.
    """

    __slots__ = ("derived",)

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.derived: dict[Any, Any] = {}


class DecodedListCache:
    """The lists that were received last, by their bytes: as many as fit into `max_bytes` of JSON."""

    def __init__(self, max_bytes: int = 512 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lists: OrderedDict[bytes, CachedDecodedList] = OrderedDict()

    def get(self, raw: bytes) -> CachedDecodedList | None:
        """Return the list of these bytes, if it is cached."""
        found = self._lists.get(raw)
        if found is not None:
            self._lists.move_to_end(raw)
        return found

    def add(self, raw: bytes, items: list[Any]) -> CachedDecodedList:
        """Cache a list of these bytes, and forget those that were not used for longest."""
        added = self._lists[raw] = CachedDecodedList(items)
        self._bytes += len(raw)
        # A list that is larger than the whole cache goes at once, with all others; the caller still has it.
        while self._bytes > self._max_bytes:
            forgotten, _ = self._lists.popitem(last=False)
            self._bytes -= len(forgotten)
        return added
