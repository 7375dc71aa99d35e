"""Outputs of tools that allow it, kept for the seconds that they allow, for the same caller and the same arguments."""

import time
from collections import OrderedDict

import msgspec

from toolgate.conversation.message import Text
from toolgate.tools.tool import Invocation, Output, ToolSpec

MOST_BYTES = 32 * 1024 * 1024
_MOST = 1024
_LARGEST = 1024 * 1024


class OutputCache:
    """Remembers a bounded number of outputs of bounded size."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, bytes], tuple[float, Output, int]] = OrderedDict()
        self._size = 0

    def get(self, spec: ToolSpec, invocation: Invocation) -> Output | None:
        """The output of the same call, if it is fresh."""
        kept = self._kept.get(_key(spec, invocation))
        return kept[1] if kept is not None and kept[0] > time.monotonic() else None

    def put(self, spec: ToolSpec, invocation: Invocation, output: Output) -> None:
        """Remember an output for as long as its tool allows."""
        key = _key(spec, invocation)
        size = len(key[2]) + _size(output)
        if size > _LARGEST:
            return
        old = self._kept.pop(key, None)
        self._kept[key] = (time.monotonic() + spec.cache_seconds, output, size)
        self._size += size - (old[2] if old is not None else 0)
        while len(self._kept) > _MOST or self._size > MOST_BYTES:
            self._size -= self._kept.popitem(last=False)[1][2]


def _size(output: Output) -> int:
    """About how many bytes an output takes."""
    pieces = sum([len(piece.text) if isinstance(piece, Text) else len(piece.data or "") for piece in output.content])
    try:
        return pieces + len(msgspec.json.encode((output.structured, output.meta)))
    except (TypeError, ValueError, RecursionError):
        return _LARGEST + 1


def _key(spec: ToolSpec, invocation: Invocation) -> tuple[str, str, bytes]:
    return (spec.name, invocation.caller, msgspec.json.encode(invocation.arguments, order="sorted"))
