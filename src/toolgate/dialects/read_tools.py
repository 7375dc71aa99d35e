"""Decode the tools of a request, once for all requests that have the same ones."""

from collections.abc import Callable
from typing import Any

from toolgate.conversation.request import ToolDef
from toolgate.conversation.tool_definition_cache import MemoizedTools
from toolgate.wire.decoded_list_cache import CachedDecodedList


def read_tools(values: list[Any], read: Callable[[list[Any]], list[ToolDef]]) -> tuple[ToolDef, ...]:
    """Return the tools that `read` decodes of these values; those of a cached list are decoded by each `read` once."""
    if type(values) is not CachedDecodedList:
        return tuple(read(values))
    # The function is the key, because two APIs may receive the same bytes and decode them differently.
    tools: MemoizedTools | None = values.derived.get(read)
    if tools is None:
        tools = values.derived[read] = MemoizedTools(read(values))
    return tools
