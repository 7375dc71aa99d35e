"""Cache the outputs of tools that allow it, for as long as they allow, by caller and arguments."""

import time
from collections import OrderedDict

import msgspec

from toolgate.conversation.message import Text
from toolgate.tools.tool import ServerToolDefinition, ToolCallInput, ToolOutput

MAX_BYTES = 32 * 1024 * 1024
_MAX_ENTRIES = 1024
# One large output must not push out all others.
_MAX_ENTRY_BYTES = 1024 * 1024


class ResultCache:
    """A bounded number of outputs of bounded size; the oldest are dropped first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str, bytes], tuple[float, ToolOutput, int]] = OrderedDict()
        self._size = 0

    def get(self, spec: ServerToolDefinition, invocation: ToolCallInput) -> ToolOutput | None:
        """Return the output of the same call, if it has not expired."""
        entry = self._entries.get(_key(spec, invocation))
        return entry[1] if entry is not None and entry[0] > time.monotonic() else None

    def put(self, spec: ServerToolDefinition, invocation: ToolCallInput, output: ToolOutput) -> None:
        """Store an output for as long as its tool allows."""
        key = _key(spec, invocation)
        size = len(key[2]) + _size(output)
        if size > _MAX_ENTRY_BYTES:
            return
        # Removed first, so that the new entry stands at the end: the oldest is dropped at the beginning.
        old = self._entries.pop(key, None)
        self._entries[key] = (time.monotonic() + spec.cache_seconds, output, size)
        self._size += size - (old[2] if old is not None else 0)
        while len(self._entries) > _MAX_ENTRIES or self._size > MAX_BYTES:
            self._size -= self._entries.popitem(last=False)[1][2]


def _size(output: ToolOutput) -> int:
    """Estimate how many bytes an output takes."""
    pieces = sum([len(piece.text) if isinstance(piece, Text) else len(piece.data or "") for piece in output.content])
    try:
        return pieces + len(msgspec.json.encode((output.structured, output.meta)))
    except (TypeError, ValueError, RecursionError):  # of a size that cannot be known: not cached
        return _MAX_ENTRY_BYTES + 1


def _key(spec: ServerToolDefinition, invocation: ToolCallInput) -> tuple[str, str, bytes]:
    # The caller is part of the key: a tool may answer each caller by other rights.
    return (spec.name, invocation.caller, msgspec.json.encode(invocation.arguments, order="sorted"))
