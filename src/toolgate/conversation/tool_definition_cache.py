"""Cache what is derived from tools that many requests share, such as their encoding in a dialect.

A cached value follows from the tools alone and lives as long as they do, so the cache changes nothing but the time taken.
The server's own tools are shared, and those that clients have sent before (`wire/decoded_list_cache.py`). Others are in a
plain tuple, and nothing is cached for them.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from toolgate.conversation.request import ToolDef

P = ParamSpec("P")
T = TypeVar("T")
_NAME = attrgetter("name")


class MemoizedTools(tuple[ToolDef, ...]):
    """A tuple of tools that are offered repeatedly, with the values that were derived from them."""

    def __init__(self, tools: Iterable[ToolDef]) -> None:
        self.derived: dict[Any, Any] = {}


def cached_by_tools(
    derive: Callable[Concatenate[tuple[ToolDef, ...], P], T],
) -> Callable[Concatenate[tuple[ToolDef, ...], P], T]:
    """Decorate a function so that its result is cached in a `MemoizedTools`; its arguments must have few distinct values."""

    @wraps(derive)
    def cached(tools: tuple[ToolDef, ...], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if type(tools) is not MemoizedTools:
            return derive(tools, *args, **kwargs)
        # One dict has the results of all functions, so the function is part of the key.
        key = (derive, *args, *kwargs.values())
        if key not in tools.derived:
            tools.derived[key] = derive(tools, *args, **kwargs)
        value: T = tools.derived[key]
        return value

    return cached


@cached_by_tools
def tool_names(tools: tuple[ToolDef, ...]) -> frozenset[str]:
    """Return the names of the tools."""
    return frozenset(map(_NAME, tools))
