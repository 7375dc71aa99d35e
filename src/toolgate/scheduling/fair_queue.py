"""A queue in which keys take turns: a thousand entries of one key delay an entry of another key by one entry."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """One first-in-first-out queue per key; `take` serves the keys in turn."""

    def __init__(self) -> None:
        self._by_key: dict[str, deque[T]] = {}  # the first key is the next to be served
        self.size = 0  # an attribute, because each released slot reads it and `len` costs a call

    def __len__(self) -> int:
        return self.size

    def put(self, key: str, entry: T) -> None:
        """Add an entry behind those of its key; a key without entries is served after all others."""
        entries = self._by_key.get(key)
        if entries is None:
            self._by_key[key] = deque((entry,))
        else:
            entries.append(entry)
        self.size += 1

    def take(self) -> T:
        """Remove the first entry of the next key; IndexError if the queue is empty."""
        if not self._by_key:
            raise IndexError("take from an empty queue")
        key = next(iter(self._by_key))
        entries = self._by_key.pop(key)
        entry = entries.popleft()
        if entries:  # a dict keeps the order of insertion: the key goes behind all others
            self._by_key[key] = entries
        self.size -= 1
        return entry

    def discard(self, key: str, entry: T) -> bool:
        """Remove an entry and return whether it was there."""
        entries = self._by_key.get(key)
        if entries is None or entry not in entries:
            return False
        entries.remove(entry)
        self._removed(key, entries)
        return True

    def evict_for(self, key: str) -> T | None:
        """Remove the last entry of the key with the most, if that still leaves it no fewer than this key with one more."""
        # With a smaller difference the two keys would evict each other in turn.
        longest = max(self._by_key, key=self._length, default=None)
        if longest is None or self._length(longest) < self._length(key) + 2:
            return None
        return self.take_last(longest)

    def take_last(self, key: str) -> T:
        """Remove the last entry of a key, which must have one."""
        entries = self._by_key[key]
        entry = entries.pop()
        self._removed(key, entries)
        return entry

    def _removed(self, key: str, entries: deque[T]) -> None:
        self.size -= 1
        if not entries:
            del self._by_key[key]

    def _length(self, key: str) -> int:
        return len(self._by_key.get(key, ()))
