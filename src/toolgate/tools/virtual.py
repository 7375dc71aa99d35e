"""More tools than a model takes: shelves of groups that the model opens, and a search over all of them.

Above a limit the tools stand in groups, each behind an `activate_…` tool without parameters: by source, a large source by
tags, by the beginning of names or by the alphabet, and groups within groups until each can be opened whole. What is
offered is a beginning that never changes during a conversation, so that prompt caches hold, and behind it what was opened,
in the order of opening. When room is short, whatever was not used for the longest time is put back.
Knows tools by their specs. It runs none of them, and who may use which was decided before.
"""

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
from toolgate.conversation.stock import Stock
from toolgate.tools.grouping import Group, Heap, all_groups, grouped, heaped
from toolgate.tools.registry import fitting_name
from toolgate.tools.search import Search
from toolgate.tools.tool import NO_INPUT, Output, Tool, ToolSpec

_T = TypeVar("_T")
LIMIT = 128
FOUND = 10
FLAT_SOURCE = "builtin"
_SOURCE = "toolgate"
_NAMED = 20
_REMEMBERED = 32
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


class Shelves:
    """Makes shelves; how the same tools stand is worked out once, not for every request."""

    def __init__(self) -> None:
        self._goods: OrderedDict[Any, _Goods] = OrderedDict()
        self._layouts: OrderedDict[Any, _Layout] = OrderedDict()

    def shelf(
        self,
        tools: Sequence[Tool],
        search: Search,
        *,
        limit: int = LIMIT,
        threshold: int | None = None,
        taken: Collection[str] = (),
        pinned: Collection[str] = (),
    ) -> "Shelf":
        """A shelf for one run. `limit` is how many tools may be offered; above `threshold`, if less, they are grouped.

        `taken` are the names of the client's own tools, which go before ours of the same name;
        `pinned` are those of ours that are offered before all others.
        """
        layout = self._layout(tools, limit, threshold, frozenset())
        if not layout.names_apart(taken):
            layout = self._layout(tools, limit, threshold, frozenset(taken))
        return Shelf(layout, search, pinned)

    def _layout(self, tools: Sequence[Tool], limit: int, threshold: int | None, taken: frozenset[str]) -> "_Layout":
        # Tools are known by their identity, which is theirs alone because they are kept here.
        goods = _remembered(self._goods, (*map(id, tools), taken), lambda: _goods(tools, taken))
        return _remembered(self._layouts, (goods, limit, threshold), lambda: _layout(goods, limit, threshold, taken))


def _remembered(known: OrderedDict[Any, _T], key: Any, make: Callable[[], _T]) -> _T:
    """What is known under the key, made if nothing is; what was not asked for the longest is forgotten."""
    if key not in known:
        known[key] = make()
    known.move_to_end(key)
    if len(known) > _REMEMBERED:
        known.popitem(last=False)
    return known[key]


class Shelf:
    """The tools of one run: which are offered now, and what opening a virtual one does."""

    def __init__(self, layout: "_Layout", search: Search, pinned: Collection[str] = ()) -> None:
        self._layout = layout
        self._search = search
        self._tools = layout.tools
        wanted = sorted([name for name in pinned if name in layout.tools and name not in layout.front])
        # What differs from turn to turn stands behind what is the same in every request.
        self._front = layout.front | {name: layout.tools[name].spec for name in wanted[: layout.pins]}
        self._offered = layout.stock if len(self._front) == len(layout.front) else None
        self._opened: dict[str, tuple[ToolSpec, ...]] = {}  # in the order of opening
        self._used: dict[str, None] = {}  # the same names, the longest unused first

    def offered(self) -> Stock:
        """What the model is told of now: never more than the limit, and always in the same order."""
        if self._offered is None:
            self._offered = _stock(self._shown().values())
        return self._offered

    def is_virtual(self, name: str) -> bool:
        """Whether a call of this name opens something and runs nothing."""
        return name == self._layout.search or name in self._layout.groups

    def open(self, name: str, arguments: Mapping[str, Any] | None = None) -> Output:
        """Do what a call of a virtual tool asks: from the next step on, what it opens is offered."""
        if name != self._layout.search:
            self._show(name, self._layout.inside(name))
            return _said(f"Tools activated: {', '.join([spec.name for spec in self._opened[name]])}")
        query = (arguments or {}).get("query")
        if type(query) is not str or not query.strip():
            return _said("The query is missing: say in a few words what the tool should do.", is_error=True)
        found = self._search.best(query, min(FOUND, self._room()), self._tools.keys())
        if not found:
            return _said(f"No tool fits {query[:200]!r}. Try other words.")
        self._show(f"{name} {query}", tuple([self._tools[one].spec for one in found]))
        return _said(f"Tools activated: {', '.join(found)}")

    def resolve(self, name: str) -> Tool | None:
        """The tool that a call of this name means; one that is not on offer is taken from the shelf with its group."""
        tool = self._tools.get(name)
        if tool is None:
            return None
        holders = [key for key, specs in self._opened.items() if any(spec.name == name for spec in specs)]
        for key in holders:
            self._touch(key)
        home = self._layout.homes.get(name)
        if not holders and home is not None and name not in self._front:
            self._show(home, self._layout.inside(home))
        return tool

    def reopen(self, names: Iterable[str]) -> None:
        """Open what earlier calls of these names had opened; names that mean nothing here are passed over."""
        for name in names:
            if name in self._layout.groups:
                self.open(name)
            else:
                self.resolve(name)

    def recall(self, messages: Iterable[Message]) -> None:
        """Open what the calls in these messages had opened, searches included."""
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
        for call in calls:
            if call.name == self._layout.search:
                self.open(call.name, _arguments(call))
            else:
                self.reopen([call.name])

    def _shown(self) -> dict[str, ToolSpec]:
        opened = {spec.name: spec for specs in self._opened.values() for spec in specs}
        return {**self._front, **opened}

    def _room(self) -> int:
        return self._layout.limit - len(self._front)

    def _show(self, key: str, specs: tuple[ToolSpec, ...]) -> None:
        self._offered = None
        self._opened.setdefault(key, specs)
        self._touch(key)
        while len(self._shown()) > self._layout.limit and len(self._used) > 1:
            longest_unused = next(iter(self._used))
            del self._used[longest_unused], self._opened[longest_unused]

    def _touch(self, key: str) -> None:
        self._used.pop(key, None)
        self._used[key] = None


class _Goods(Struct, frozen=True, eq=False, dict=True):
    """The tools of a shelf, however much room there is on it."""

    all_tools: tuple[Tool, ...]
    tools: Mapping[str, Tool]
    specs: Sequence[ToolSpec]

    @cached_property
    def heaps(self) -> tuple[Heap, ...]:
        """The tools by their sources."""
        return heaped(self.specs)


class _Layout(Struct, frozen=True, eq=False, dict=True):
    """How the tools stand: what is always offered and what the groups hold.

    `pins` is how many more can be offered always.
    """

    tools: Mapping[str, Tool]
    limit: int
    front: dict[str, ToolSpec]
    pins: int = 0
    search: str | None = None
    groups: Mapping[str, Group] = {}
    names: Mapping[Group, str] = {}

    @cached_property
    def stock(self) -> Stock:
        """What is offered while nothing is opened or pinned."""
        return _stock(self.front.values())

    @cached_property
    def homes(self) -> Mapping[str, str]:
        """The group that each tool stands in, by their names."""
        places = [(child, name) for group, name in self.names.items() for child in group.children]
        return {child.name: name for child, name in places if isinstance(child, ToolSpec)}

    def names_apart(self, taken: Collection[str]) -> bool:
        """Whether none of these names is one of ours, so that whoever has them can share this."""
        return not any(name in self.tools or name in self.groups or name == self.search for name in taken)

    def inside(self, name: str) -> tuple[ToolSpec, ...]:
        """What a group shows when it is opened."""
        return tuple([_face(child, self.names) for child in self.groups[name].children])


def _goods(all_tools: Sequence[Tool], taken: frozenset[str]) -> _Goods:
    pairs = [(tool.spec, tool) for tool in all_tools]
    tools = {spec.name: (spec, tool) for spec, tool in pairs if spec.name not in taken}
    by_name = {name: tool for name, (_, tool) in tools.items()}
    return _Goods(tuple(all_tools), by_name, [spec for spec, _ in tools.values()])


def _layout(goods: _Goods, limit: int, threshold: int | None, taken: frozenset[str]) -> _Layout:
    tools, specs = goods.tools, goods.specs
    if len(specs) <= min(limit, limit if threshold is None else threshold):
        return _Layout(tools, limit, _by_name(specs))
    if limit < 2:  # too few for a search and something found
        return _Layout(tools, limit, {}, pins=max(0, limit))
    # One place is the search's; a quarter each is kept for pinned tools and for the largest group that can be opened.
    quarter = (limit - 1) // 4
    flat = [heap for heap in goods.heaps if heap.title == FLAT_SOURCE and len(heap.specs) <= quarter]
    own = [spec for heap in flat for spec in heap.specs]
    rest = [heap for heap in goods.heaps if heap not in flat]
    children = grouped(rest, limit - 1 - len(own) - 2 * quarter, quarter) if quarter > 1 else ()
    used: set[str] = set(taken)
    search = _free("search_tools", tools, used)
    names = {group: _free(_group_name(group.title), tools, used) for group in all_groups(children)}
    front = _by_name([_virtual(search, _FIND, _QUERY), *own, *[_face(child, names) for child in children]])
    return _Layout(tools, limit, front, quarter, search, {name: group for group, name in names.items()}, names)


def _stock(specs: Iterable[ToolSpec]) -> Stock:
    return Stock([ToolDef(spec.name, spec.description, spec.input_schema) for spec in specs])


def _by_name(specs: Iterable[ToolSpec]) -> dict[str, ToolSpec]:
    return {spec.name: spec for spec in specs}


@lru_cache(maxsize=1024)
def _group_name(title: str) -> str:
    return fitting_name(f"activate_{_UNSAFE.sub('_', title.lower()).strip('_')}")


def _free(name: str, tools: Collection[str], used: set[str]) -> str:
    """The name, with a number behind it if a tool has it or it is used already; from now on it is used."""
    numbered = (fitting_name(f"{name}_{number}") for number in count(2))
    free = next(one for one in chain([name], numbered) if one not in used and one not in tools)
    used.add(free)
    return free


def _face(child: ToolSpec | Group, names: Mapping[Group, str]) -> ToolSpec:
    """The tool itself, or the virtual one that a group stands behind."""
    return child if isinstance(child, ToolSpec) else _virtual(names[child], _promise(child))


def _virtual(name: str, description: str, input_schema: Mapping[str, Any] = NO_INPUT) -> ToolSpec:
    return ToolSpec(name=name, description=description, source=_SOURCE, input_schema=input_schema)


def _promise(group: Group) -> str:
    """What a group is opened for."""
    shown = [spec.name for spec in islice(group.tools(), _NAMED)]
    more = f" and {group.size - len(shown)} more" if len(shown) < group.size else ""
    return (
        f"Opens {group.size} further tools ({group.title}): {', '.join(shown)}{more}. "
        "Call this first, without arguments, when one of them is needed; afterwards they can be called."
    )


def _said(text: str, is_error: bool = False) -> Output:
    return Output((Text(text),), is_error)


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return value if type(value) is dict else {}
