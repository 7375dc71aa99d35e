"""Offer a model more tools than it accepts: in groups that the model opens, and by a search over all of them.

Above a limit the tools are put in groups, each behind a virtual `activate_…` tool without parameters: by source, a large
source by tags, by the beginning of names or by the alphabet, and groups within groups until each can be opened whole. The
offer begins with tools that never change during a conversation, so that prompt caches stay valid, followed by what was
opened, in the order of opening. When there are too many, the group that was not used for the longest time is closed.
Knows tools by their specs. It runs none of them, and who may use which was decided before.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, count, islice
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from toolgate.conversation.message import Message, Text, ToolCall
from toolgate.conversation.request import ToolDef
from toolgate.conversation.tool_definition_cache import MemoizedTools
from toolgate.tools.group_layout import ToolCluster, ToolGroup, all_groups, clusters_by_source, group_tools
from toolgate.tools.registry import fitting_name
from toolgate.tools.tool import NO_INPUT, ServerToolDefinition, Tool, ToolOutput
from toolgate.tools.tool_search_index import ToolSearchIndex

_T = TypeVar("_T")
# OpenAI accepts no more functions in one request.
LIMIT = 128
MAX_FOUND = 10
# Calls of a history that are looked at to find out what is open, and searches among them: whatever was opened before so
# many others is closed again, or nearly so. A client may send thousands.
_MAX_REOPENED, _MAX_SEARCHES = 64, 16
# The built-in tools are few and often used, so that they are offered without a group where they fit.
UNGROUPED_SOURCE = "builtin"
_SOURCE = "toolgate"
# Tools that the description of a group names: enough to guess what else is in it.
_MAX_NAMES = 20
# Groupings that are cached; requests differ in their tools by caller and by query.
_MAX_CACHED = 32
_UNSAFE = re.compile(r"[^a-z0-9]+")
_FIND = (
    "Finds further tools by what they do and opens those that fit best. Describe in a few words what is to be done; "
    "afterwards the tools that were found can be called."
)
_QUERY: Mapping[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool should do, in a few words."}},
    "required": ["query"],
    "additionalProperties": False,
}


class VirtualToolSetFactory:
    """Makes the offers of runs; the grouping of the same tools is computed once, not for every request."""

    def __init__(self) -> None:
        self._available: OrderedDict[Any, _AvailableTools] = OrderedDict()
        self._layouts: OrderedDict[Any, _Layout] = OrderedDict()

    def offer(
        self,
        tools: Sequence[Tool],
        search: ToolSearchIndex,
        *,
        limit: int = LIMIT,
        threshold: int | None = None,
        taken: Collection[str] = (),
        pinned: Collection[str] = (),
    ) -> "VirtualToolSet":
        """Make the offer of one run. At most `limit` tools are offered; above `threshold`, if less, they are grouped.

        `taken` are the names of the client's own tools, which hide ours of the same name;
        `pinned` are those of ours that are offered before all others.
        """
        layout = self._layout(tools, limit, threshold, frozenset())
        # Almost always no name is taken, and then requests with different tools of their own share one layout.
        if any(name in layout.tools or name in layout.groups or name == layout.search for name in taken):
            layout = self._layout(tools, limit, threshold, frozenset(taken))
        return VirtualToolSet(layout, search, pinned)

    def _layout(self, tools: Sequence[Tool], limit: int, threshold: int | None, taken: frozenset[str]) -> "_Layout":
        # An id identifies a tool because the cached value keeps the tool alive.
        available = _cached(self._available, (*map(id, tools), taken), lambda: _available(tools, taken))
        key = (available, limit, threshold)
        return _cached(self._layouts, key, lambda: _layout(available, limit, threshold, taken))


def _cached(cache: OrderedDict[Any, _T], key: Any, make: Callable[[], _T]) -> _T:
    """Return the value of the key, made if it is missing; the value that was not used for the longest is dropped."""
    if key not in cache:
        cache[key] = make()
    cache.move_to_end(key)
    if len(cache) > _MAX_CACHED:
        cache.popitem(last=False)
    return cache[key]


class VirtualToolSet:
    """The tools of one run: those that are offered now, and those that virtual ones open."""

    def __init__(self, layout: "_Layout", search: ToolSearchIndex, pinned: Collection[str] = ()) -> None:
        self._layout = layout
        self._search = search
        self._tools = layout.tools
        extra = sorted([name for name in pinned if name in layout.tools and name not in layout.front])
        # What differs from turn to turn comes after what is the same in every request.
        self._front = layout.front | {name: layout.tools[name].spec for name in extra[: layout.pins]}
        self._offered = layout.front_cache if len(self._front) == len(layout.front) else None
        self._opened: dict[str, tuple[ServerToolDefinition, ...]] = {}  # in the order of opening
        self._used: dict[str, None] = {}  # the same names, the longest unused first

    def offered(self) -> MemoizedTools:
        """The tools that the model is offered now: never more than the limit, and always in the same order."""
        if self._offered is None:
            self._offered = _tool_cache(self._shown().values())
        return self._offered

    def is_virtual(self, name: str) -> bool:
        """Whether a call of this name opens a group or searches, and runs nothing."""
        return name == self._layout.search or name in self._layout.groups

    def open(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolOutput:
        """Execute the call of a virtual tool: from the next step on, what it opens is offered."""
        if name != self._layout.search:
            self._show(name, self._layout.inside(name))
            return _output(f"Tools activated: {', '.join([spec.name for spec in self._opened[name]])}")
        query = _query(arguments)
        return _NO_QUERY if query is None else self._show_found(name, query, self._found(query))

    async def execute(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolOutput:
        """Execute the call as `open` does, but search in a thread: that takes long among thousands of tools."""
        query = _query(arguments)
        if name != self._layout.search or query is None:
            return self.open(name, arguments)
        return self._show_found(name, query, await asyncio.to_thread(self._found, query))

    def _found(self, query: str) -> tuple[str, ...]:
        # No more than can be shown at once, or the first results would be closed for the last.
        room = self._layout.limit - len(self._front)
        return self._search.best(query, min(MAX_FOUND, room), self._tools.keys())

    def _show_found(self, name: str, query: str, found: Sequence[str]) -> ToolOutput:
        if not found:
            return _output(f"No tool fits {query[:200]!r}. Try other words.")
        self._show(f"{name} {query}", tuple([self._tools[one].spec for one in found]))
        return _output(f"Tools activated: {', '.join(found)}")

    def resolve(self, name: str) -> Tool | None:
        """Find the tool of this name; the group of one that is not on offer is opened."""
        tool = self._tools.get(name)
        if tool is None:
            return None
        holders = [key for key, specs in self._opened.items() if any(spec.name == name for spec in specs)]
        for key in holders:
            self._touch(key)
        group = self._layout.group_of.get(name)
        if not holders and group is not None and name not in self._front:
            self._show(group, self._layout.inside(group))
        return tool

    def reopen(self, names: Iterable[str]) -> None:
        """Open again what earlier calls of these names had opened; unknown names are ignored."""
        for name in names:
            if name in self._layout.groups:
                self.open(name)
            else:
                self.resolve(name)

    async def reopen_from(self, messages: Iterable[Message]) -> None:
        """Open again what the last calls in these messages had opened, searches included, in the order of opening."""
        if self._layout.search is None:  # all tools are offered as they are
            return
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
        first: dict[tuple[str, str], int] = {}
        for number, call in enumerate(calls):
            first.setdefault(self._identity(call), number)
        places: dict[str, int] = {}
        # In the order of their last use, by which groups are closed.
        for call in self._last_calls(calls):
            if call.name == self._layout.search:
                await self.execute(call.name, call_arguments(call))
            else:
                self.reopen([call.name])
            if self._used:
                opened = next(reversed(self._used))
                places[opened] = min(first[self._identity(call)], places.get(opened, len(calls)))
        self._opened = dict(sorted(self._opened.items(), key=lambda one: places.get(one[0], len(calls))))
        self._offered = None if self._opened else self._offered

    def _last_calls(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return the last different calls of tools that are not always offered, in their order."""
        found: dict[tuple[str, str], ToolCall] = {}
        searches = 0
        for call in reversed(calls):
            is_search = call.name == self._layout.search
            known = is_search or call.name in self._layout.groups or call.name in self._layout.group_of
            if not known or self._identity(call) in found or (is_search and searches == _MAX_SEARCHES):
                continue
            found[self._identity(call)] = call
            searches += is_search
            if len(found) == _MAX_REOPENED:
                break
        return list(found.values())[::-1]

    def _identity(self, call: ToolCall) -> tuple[str, str]:
        """Return what calls that open the same have in common."""
        return call.name, call.arguments if call.name == self._layout.search else ""

    def _shown(self) -> dict[str, ServerToolDefinition]:
        opened = {spec.name: spec for specs in self._opened.values() for spec in specs}
        return {**self._front, **opened}

    def _show(self, key: str, specs: tuple[ServerToolDefinition, ...]) -> None:
        self._offered = None
        # A group that is open keeps its place: a changed order would make the upstream's prompt cache useless.
        self._opened.setdefault(key, specs)
        self._touch(key)
        while len(self._shown()) > self._layout.limit and len(self._used) > 1:
            longest_unused = next(iter(self._used))
            del self._used[longest_unused], self._opened[longest_unused]

    def _touch(self, key: str) -> None:
        self._used.pop(key, None)
        self._used[key] = None


class _AvailableTools(Struct, frozen=True, eq=False, dict=True):
    """The tools that a run may use, whatever its limit. `all_tools` only keeps them alive."""

    all_tools: tuple[Tool, ...]
    tools: Mapping[str, Tool]
    specs: Sequence[ServerToolDefinition]

    @cached_property
    def clusters(self) -> tuple[ToolCluster, ...]:
        """The tools by source."""
        return clusters_by_source(self.specs)


class _Layout(Struct, frozen=True, eq=False, dict=True):
    """The grouping of tools: `front` is always offered, `groups` hold the rest.

    `pins` is how many pinned tools can be added to the front.
    """

    tools: Mapping[str, Tool]
    limit: int
    front: dict[str, ServerToolDefinition]
    pins: int = 0
    search: str | None = None
    groups: Mapping[str, ToolGroup] = {}
    names: Mapping[ToolGroup, str] = {}

    @cached_property
    def front_cache(self) -> MemoizedTools:
        """The offer while nothing is opened or pinned."""
        return _tool_cache(self.front.values())

    @cached_property
    def group_of(self) -> Mapping[str, str]:
        """The name of the group of each tool, by tool name."""
        places = [(child, name) for group, name in self.names.items() for child in group.children]
        return {child.name: name for child, name in places if isinstance(child, ServerToolDefinition)}

    def inside(self, name: str) -> tuple[ServerToolDefinition, ...]:
        """The tools that are offered when the group is opened."""
        return tuple([_offered_as(child, self.names) for child in self.groups[name].children])


def _available(all_tools: Sequence[Tool], taken: frozenset[str]) -> _AvailableTools:
    pairs = [(tool.spec, tool) for tool in all_tools]
    tools = {spec.name: (spec, tool) for spec, tool in pairs if spec.name not in taken}
    by_name = {name: tool for name, (_, tool) in tools.items()}
    return _AvailableTools(tuple(all_tools), by_name, [spec for spec, _ in tools.values()])


def _layout(available: _AvailableTools, limit: int, threshold: int | None, taken: frozenset[str]) -> _Layout:
    tools, specs = available.tools, available.specs
    if len(specs) <= min(limit, limit if threshold is None else threshold):
        return _Layout(tools, limit, _by_name(specs))
    if limit < 2:  # too few for a search and something found
        return _Layout(tools, limit, {}, pins=max(0, limit))
    # One place is the search's; a quarter each is reserved for pinned tools and for the largest group that can be opened.
    quarter = (limit - 1) // 4
    ungrouped = [one for one in available.clusters if one.title == UNGROUPED_SOURCE and len(one.specs) <= quarter]
    own = [spec for cluster in ungrouped for spec in cluster.specs]
    rest = [cluster for cluster in available.clusters if cluster not in ungrouped]
    children = group_tools(rest, limit - 1 - len(own) - 2 * quarter, quarter) if quarter > 1 else ()
    used: set[str] = set(taken)
    search = _free("search_tools", tools, used)
    names = {group: _free(_group_name(group.title), tools, used) for group in all_groups(children)}
    front = _by_name([_virtual(search, _FIND, _QUERY), *own, *[_offered_as(child, names) for child in children]])
    return _Layout(tools, limit, front, quarter, search, {name: group for group, name in names.items()}, names)


def _tool_cache(specs: Iterable[ServerToolDefinition]) -> MemoizedTools:
    return MemoizedTools([ToolDef(spec.name, spec.description, spec.input_schema) for spec in specs])


def _by_name(specs: Iterable[ServerToolDefinition]) -> dict[str, ServerToolDefinition]:
    return {spec.name: spec for spec in specs}


# Cached because a layout that is made anew, for another limit or other tools, has mostly the same groups.
@lru_cache(maxsize=1024)
def _group_name(title: str) -> str:
    return fitting_name(f"activate_{_UNSAFE.sub('_', title.lower()).strip('_')}")


def _free(name: str, tools: Collection[str], used: set[str]) -> str:
    """Reserve the name, with a number appended if a tool has it or it is used already."""
    numbered = (fitting_name(f"{name}_{number}") for number in count(2))
    free = next(one for one in chain([name], numbered) if one not in used and one not in tools)
    used.add(free)
    return free


def _offered_as(child: ServerToolDefinition | ToolGroup, names: Mapping[ToolGroup, str]) -> ServerToolDefinition:
    """Return the tool itself, or the virtual tool that opens a group."""
    if isinstance(child, ServerToolDefinition):
        return child
    shown = [spec.name for spec in islice(child.tools(), _MAX_NAMES)]
    more = f" and {child.size - len(shown)} more" if len(shown) < child.size else ""
    return _virtual(
        names[child],
        f"Opens {child.size} further tools ({child.title}): {', '.join(shown)}{more}. "
        "Call this first, without arguments, when one of them is needed; afterwards they can be called.",
    )


def _virtual(name: str, description: str, input_schema: Mapping[str, Any] = NO_INPUT) -> ServerToolDefinition:
    return ServerToolDefinition(name=name, description=description, source=_SOURCE, input_schema=input_schema)


def _output(text: str, is_error: bool = False) -> ToolOutput:
    return ToolOutput((Text(text),), is_error)


_NO_QUERY = _output("The query is missing: say in a few words what the tool should do.", is_error=True)


def _query(arguments: Mapping[str, Any] | None) -> str | None:
    """Return what a call searches for; None if it does not say that."""
    query = (arguments or {}).get("query")
    return query if type(query) is str and query.strip() else None


def call_arguments(call: ToolCall) -> Mapping[str, Any]:
    """Parse the arguments of a virtual tool's call; empty if they are malformed."""
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}  # `open` then reports what is missing
    return value if type(value) is dict else {}
