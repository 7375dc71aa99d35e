"""Outputs of tools that allow it, kept for the seconds that they allow, for the same caller and the same arguments."""

import time
from collections import OrderedDict

import msgspec

from toolgate.tools.tool import Invocation, Output, ToolSpec

_MOST = 1024


class OutputCache:
    """Remembers a bounded number of outputs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, bytes], tuple[float, Output]] = OrderedDict()

    def get(self, spec: ToolSpec, invocation: Invocation) -> Output | None:
        """The output of the same call, if it is fresh."""
        kept = self._kept.get(_key(spec, invocation))
        return kept[1] if kept is not None and kept[0] > time.monotonic() else None

    def put(self, spec: ToolSpec, invocation: Invocation, output: Output) -> None:
        """Remember an output for as long as its tool allows."""
        self._kept[_key(spec, invocation)] = (time.monotonic() + spec.cache_seconds, output)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)


def _key(spec: ToolSpec, invocation: Invocation) -> tuple[str, str, bytes]:
    return (spec.name, invocation.caller, msgspec.json.encode(invocation.arguments, order="sorted"))
