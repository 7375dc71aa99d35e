"""Cache the outputs of tools that allow it, for as long as they allow, by caller and arguments."""

import time
from collections import OrderedDict

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Text
from toolgate.tools.tool import Tool, ToolCallInput, ToolOutput

MAX_BYTES = 32 * 1024 * 1024
_MAX_ENTRIES = 1024
# One large output must not push out all others.
_MAX_ENTRY_BYTES = 1024 * 1024


class _CachedOutput(Struct, frozen=True):
    """An output, the tool that gave it, when it expires and how many bytes it takes."""

    tool: Tool
    expires: float
    output: ToolOutput
    size: int


class ResultCache:
    """A bounded number of outputs of bounded size; the oldest are dropped first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str, bytes], _CachedOutput] = OrderedDict()
        self._size = 0

    def get(self, tool: Tool, invocation: ToolCallInput) -> ToolOutput | None:
        """Return the output of the same call, if it has not expired."""
        entry = self._entries.get(_key(tool, invocation))
        # Another tool object is other code or another address, even under the same name and definition.
        if entry is None or entry.tool is not tool or entry.expires <= time.monotonic():
            return None
        return entry.output

    def put(self, tool: Tool, invocation: ToolCallInput, output: ToolOutput) -> None:
        """Store an output for as long as its tool allows."""
        key = _key(tool, invocation)
        size = len(key[2]) + _size(output)
        if size > _MAX_ENTRY_BYTES:
            return
        # Removed first, so that the new entry stands at the end: the oldest is dropped at the beginning.
        old = self._entries.pop(key, None)
        self._entries[key] = _CachedOutput(tool, time.monotonic() + tool.spec.cache_seconds, output, size)
        self._size += size - (old.size if old is not None else 0)
        while len(self._entries) > _MAX_ENTRIES or self._size > MAX_BYTES:
            self._size -= self._entries.popitem(last=False)[1].size


def _size(output: ToolOutput) -> int:
    """Estimate how many bytes an output takes."""
    pieces = sum([len(piece.text) if isinstance(piece, Text) else len(piece.data or "") for piece in output.content])
    try:
        return pieces + len(msgspec.json.encode((output.structured, output.meta)))
    except (TypeError, ValueError, RecursionError):  # of a size that cannot be known: not cached
        return _MAX_ENTRY_BYTES + 1


def _key(tool: Tool, invocation: ToolCallInput) -> tuple[str, str, bytes]:
    # The caller is part of the key: a tool may answer each caller by other rights.
    return (tool.spec.name, invocation.caller, msgspec.json.encode(invocation.arguments, order="sorted"))
