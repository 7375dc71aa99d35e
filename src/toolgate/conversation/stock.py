"""Tools that many requests are offered alike: what is made of them, such as their words in a dialect, is made once.

Whatever is remembered follows from the tools alone and lives as long as they do, so only the time that it takes shows.
The tools that a client sends come anew with every request; they stand in a plain tuple, and nothing is remembered of them.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from toolgate.conversation.request import ToolDef

P = ParamSpec("P")
T = TypeVar("T")


class Stock(tuple[ToolDef, ...]):
    """Tools that are offered again and again."""

    def __init__(self, tools: Iterable[ToolDef]) -> None:
        self.made: dict[Any, Any] = {}


def made_once(
    make: Callable[Concatenate[tuple[ToolDef, ...], P], T],
) -> Callable[Concatenate[tuple[ToolDef, ...], P], T]:
    """The function, which of a stock makes the same thing once; its arguments must be few words of a configuration."""

    @wraps(make)
    def found(tools: tuple[ToolDef, ...], /, *given: P.args, **named: P.kwargs) -> T:
        if type(tools) is not Stock:
            return make(tools, *given, **named)
        key = (make, *given, *named.values())
        if key not in tools.made:
            tools.made[key] = make(tools, *given, **named)
        known: T = tools.made[key]
        return known

    return found


@made_once
def names_of(tools: tuple[ToolDef, ...]) -> frozenset[str]:
    """The names of the tools."""
    return frozenset([tool.name for tool in tools])
