"""A queue in which keys take turns: one key's thousand entries hold up another key's entry by one at most."""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Entries in lines, one for each key that has any; the keys are served in turn, each line in its order."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}  # in the order of their turns
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, key: str, entry: T) -> None:
        """Add an entry at the end of its key's line; a key that had none has its turn after all others."""
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque((entry,))
        else:
            line.append(entry)
        self._size += 1

    def take(self) -> T:
        """Remove the first entry of the key whose turn it is; IndexError if there is none."""
        if not self._lines:
            raise IndexError("take from an empty queue")
        key = next(iter(self._lines))
        line = self._lines.pop(key)
        entry = line.popleft()
        if line:
            self._lines[key] = line
        self._size -= 1
        return entry

    def discard(self, key: str, entry: T) -> bool:
        """Remove an entry; whether it was there."""
        line = self._lines.get(key)
        if line is None or entry not in line:
            return False
        line.remove(entry)
        self._shrunk(key, line)
        return True

    def make_room(self, key: str) -> T | None:
        """Remove the last entry of the longest line, if that stays no shorter than the key's own with one more."""
        longest = max(self._lines, key=self._length, default=None)
        if longest is None or self._length(longest) < self._length(key) + 2:
            return None
        line = self._lines[longest]
        entry = line.pop()
        self._shrunk(longest, line)
        return entry

    def _shrunk(self, key: str, line: deque[T]) -> None:
        self._size -= 1
        if not line:
            del self._lines[key]

    def _length(self, key: str) -> int:
        return len(self._lines.get(key, ()))
