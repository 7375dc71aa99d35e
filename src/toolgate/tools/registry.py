"""All server tools of all sources under one roof: unique names, checked definitions, one order.

The order is that of the sources, then that of the names, and it is the same after every start. A name belongs to the tool
that brought it first, for as long as its source is there: another tool of that name is namespaced and never takes its place.
What cannot be used is left out and told as a trouble. Knows sources by their Protocol; runs no tool.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import NotFound
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.search import Search
from toolgate.tools.tool import Invocation, OnChange, Output, Preparation, Tool, ToolSource, ToolSpec
from toolgate.tools.when import When, WhenError, parse

LONGEST_NAME = 64
QUIET_SECONDS = 0.05
_MISSED = 10_000
"""Names that are kept for tools which are not there, so that no source can fill our memory with them."""

_PICKED = 32
"""Choices that are remembered while the tools stay the same."""

_NAMED_BY_OTHERS = ("http/", "api")
"""Sources whose tools are named by documents and clients; MCP servers see to their names themselves."""

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Trouble(Struct, frozen=True):
    """Why a tool, or all tools of a source, are missing or not what they seem, in words for a person."""

    source: str
    message: str
    tool: str | None = None


class Entry(Struct, frozen=True, eq=False):
    """A tool that may be used, with its clause already read."""

    tool: Tool
    spec: ToolSpec
    when: When | None = None


class Waiting(Protocol):
    """A tool that waits for a person: `old` is the definition that was accepted, None if it is new."""

    name: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    digest: str


@runtime_checkable
class Quarantine(Protocol):
    """A source that holds back tools whose definition has changed, until a person has looked at it."""

    @property
    def quarantined(self) -> Sequence[Waiting]:
        """The tools that wait."""

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use the definition whose digest was `seen`, by default the present one; NotFound if no such tool waits."""


@runtime_checkable
class Relisting(Protocol):
    """A source that can look again at what is offered and what was accepted."""

    def look_again(self) -> None:
        """Something has changed elsewhere: look soon."""


class Registry:
    """The tools of these sources, as they are now; reading it costs nothing until a source changes."""

    def __init__(
        self,
        sources: Iterable[ToolSource],
        schemas: SchemaCheck | None = None,
        quiet_seconds: float = QUIET_SECONDS,
        prefixes: Mapping[str, str] = {},
    ) -> None:
        """Subscribers are told once in `quiet_seconds`, however many changes there were.

        `prefixes` says by the names of sources what their tools' names begin with. A tool of an HTTP service or of a
        registration that would be named into another source's prefix is namespaced, for rules mean the other's tools.
        """
        check = schemas or SchemaCheck()
        self._stocks = [_Stock(source, check) for source in sources]
        self._names = _Names(prefixes)
        self._index = _Index((), ())
        self._told: tuple[Entry, ...] = ()
        self._stale = True
        self._listeners: list[OnChange] = []
        self._quiet = quiet_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Open every source; one that fails is told as a trouble and harms no other."""
        self._loop = asyncio.get_running_loop()
        await asyncio.gather(*[stock.open(self._changed) for stock in self._stocks])
        self._stale = True
        self._told = self.entries()

    async def aclose(self) -> None:
        """Close every source, the last first."""
        if self._telling is not None:
            self._telling.cancel()
        self._loop = None
        for stock in reversed(self._stocks):
            await stock.aclose()

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, in their order."""
        return tuple([stock.source.name for stock in self._stocks])

    def entries(self) -> tuple[Entry, ...]:
        """All that may be listed, in order; the very same tuple until something changes."""
        return self._current().listed

    def tools(self) -> tuple[Tool, ...]:
        """All tools that may be listed, in order; the very same tuple until something changes."""
        return self._current().tools

    def picked(self, key: Hashable, pick: Callable[[Sequence[Entry]], Sequence[Entry]]) -> Sequence[Entry]:
        """What is picked of the listed entries: done once for a key, as long as they stay the same."""
        return self._current().picked(key, pick)

    def entry(self, name: str) -> Entry | None:
        """What is known under this name, private tools included."""
        return self._current().by_name.get(name)

    def get(self, name: str) -> Tool | None:
        """The tool of this name, private ones included."""
        entry = self.entry(name)
        return entry.tool if entry else None

    def find(self, tags: Iterable[str] = (), name: str | None = None) -> tuple[Tool, ...]:
        """The tools that have any of the tags, if tags are given, and whose name fits the pattern, if one is."""
        wanted, tools = frozenset(tags), self.tools()
        if wanted:
            tools = tuple([tool for tool in tools if not wanted.isdisjoint(tool.spec.tags)])
        return tools if name is None else tuple([tool for tool in tools if fnmatchcase(tool.spec.name, name)])

    def owner_of_prefix(self, name: str, source: str) -> str | None:
        """The other source that names of its tools begin like this one, None if there is none; `source` brings it."""
        return self._names.owner(name, source)

    def referenced(self, reference: str) -> tuple[Tool, ...]:
        """The tools that are called so in a prompt: those of this reference name, for want of any the one of this name."""
        return self._current().references.get(reference, ())

    @property
    def search(self) -> Search:
        """The words of all listed tools."""
        return self._current().search()

    def troubles(self) -> tuple[Trouble, ...]:
        """What is wrong now: first with sources, then with single tools."""
        index = self._current()
        return (*[trouble for stock in self._stocks for trouble in stock.troubles()], *index.troubles)

    def quarantined(self) -> list[tuple[str, Waiting]]:
        """The tools that wait for a person, each with the name of its source."""
        return [(stock.source.name, one) for stock in self._stocks for one in stock.quarantined()]

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use a quarantined tool from now on; NotFound if there is none of this name."""
        for stock in self._stocks:
            if isinstance(stock.source, Quarantine):
                with suppress(NotFound):
                    return await stock.source.accept(name, seen)
        raise NotFound(f"There is no tool {name[:80]!r} that waits to be accepted.", code="tool_not_found")

    def look_again(self) -> None:
        """Have all sources that can look again at what was accepted, perhaps by another process."""
        for stock in self._stocks:
            if isinstance(stock.source, Relisting):
                stock.source.look_again()

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        """Be told when the listed tools have changed, until the returned function is called."""
        self._listeners.append(on_change)
        return lambda: self._listeners.remove(on_change)

    def _changed(self) -> None:
        self._stale = True
        if self._loop is not None and self._telling is None:
            self._telling = self._loop.call_later(self._quiet, self._tell)

    def _tell(self) -> None:
        self._telling = None
        listed = self.entries()
        if listed == self._told:
            return
        self._told = listed
        for listener in tuple(self._listeners):
            listener()

    def _current(self) -> "_Index":
        """The index, made anew if any source has changed since."""
        if self._stale:
            self._stale = False
            for stock in self._stocks:
                stock.refresh()
            self._index = self._names.index(self._stocks)
        return self._index


class _Stock:
    """What one source brings; a definition is checked once, however often the source changes."""

    def __init__(self, source: ToolSource, schemas: SchemaCheck) -> None:
        self.source = source
        self.entries: tuple[Entry, ...] = ()
        self.bad: tuple[Trouble, ...] = ()
        self._schemas = schemas
        self._failure: str | None = None
        self._stale = False

    async def open(self, on_change: OnChange) -> None:
        def changed() -> None:
            self._stale = True
            on_change()

        try:
            await self.source.open(changed)
        except Exception as error:  # noqa: BLE001  # the tool boundary: whatever one source does, the others serve
            self._failure = f"It could not be opened: {str(error)[:300] or type(error).__name__}"
        self._stale = True

    async def aclose(self) -> None:
        try:
            await self.source.aclose()
        except Exception as error:  # noqa: BLE001  # the tool boundary: the others must be closed, too
            self._failure = f"It could not be closed: {str(error)[:300] or type(error).__name__}"

    @property
    def trouble(self) -> str | None:
        return self._failure or self.source.trouble

    def troubles(self) -> list[Trouble]:
        trouble = self.trouble
        return [Trouble(self.source.name, trouble)] if trouble else []

    def quarantined(self) -> Sequence[Waiting]:
        return self.source.quarantined if isinstance(self.source, Quarantine) else ()

    def refresh(self) -> None:
        """Look at the source again if it has changed."""
        if not self._stale:
            return
        self._stale = False
        known = {entry.spec.name: entry for entry in self.entries}
        entries: dict[str, Entry] = {}
        bad: list[Trouble] = []
        for tool in sorted(self.source.tools, key=lambda tool: tool.spec.name):
            spec = tool.spec
            try:
                if spec.name in entries:
                    raise ValueError("the source brings two tools of this name")
                entries[spec.name] = self._entry(tool, spec, known.get(spec.name))
            except ValueError as error:
                bad.append(Trouble(spec.source, f"It is left out: {error}.", spec.name[:LONGEST_NAME]))
        self.entries, self.bad = tuple(entries.values()), tuple(bad)

    def _entry(self, tool: Tool, spec: ToolSpec, old: Entry | None) -> Entry:
        if old is None or old.spec != spec:
            return self._checked(tool, spec)
        return old if old.tool is tool else Entry(tool, old.spec, old.when)

    def _checked(self, tool: Tool, spec: ToolSpec) -> Entry:
        if not _NAME.fullmatch(spec.name):
            raise ValueError(f"a name is 1 to {LONGEST_NAME} letters, digits, _ and -")
        if complaint := self._schemas.complaint(spec.input_schema):
            raise ValueError(f"its schema {complaint}")
        try:
            return Entry(tool, spec, parse(spec.when) if spec.when is not None else None)
        except WhenError as error:
            raise ValueError(f"its when-clause cannot be read: {error}") from None


class _Index:
    """The tools as they are known to everybody, by name and in order."""

    def __init__(self, entries: Sequence[Entry], troubles: Sequence[Trouble]) -> None:
        self.by_name = {entry.spec.name: entry for entry in entries}
        self.listed = tuple([entry for entry in entries if not entry.spec.private])
        self.tools = tuple([entry.tool for entry in self.listed])
        self.troubles = tuple(troubles)
        self._search: Search | None = None
        self._picked: dict[Hashable, Sequence[Entry]] = {}
        called: dict[str, list[Tool]] = {}
        for entry in self.listed:
            if entry.spec.reference_name is not None:
                called.setdefault(entry.spec.reference_name, []).append(entry.tool)
        by_name = {entry.spec.name: (entry.tool,) for entry in self.listed}
        self.references = {**by_name, **{name: tuple(tools) for name, tools in called.items()}}

    def search(self) -> Search:
        if self._search is None:
            self._search = Search([entry.spec for entry in self.listed])
        return self._search

    def picked(self, key: Hashable, pick: Callable[[Sequence[Entry]], Sequence[Entry]]) -> Sequence[Entry]:
        if key not in self._picked:
            if len(self._picked) >= _PICKED:
                self._picked.clear()
            self._picked[key] = pick(self.listed)
        return self._picked[key]


class _Names:
    """Who has which name: once given, a tool keeps it as long as its source has the tool or is in trouble.

    So a name that somebody trusts cannot pass to another tool because its own source is away for a moment.
    """

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._prefixes = prefixes
        self._given: dict[tuple[str, str, str], str] = {}
        self._renamed: dict[str, tuple[Entry, Entry]] = {}
        """By new name: the entry as it was brought, and as it is known."""

    def index(self, stocks: Sequence[_Stock]) -> _Index:
        """All entries of the stocks under the names they have from now on."""
        brought = [((stock.source.name, e.spec.source, e.spec.name), e) for stock in stocks for e in stock.entries]
        absent = {stock.source.name for stock in stocks if stock.trouble}
        present = {key for key, _ in brought}
        missing = [key for key in self._given if key not in present and key[0] in absent][-_MISSED:]
        self._given = {key: self._given[key] for key in (*missing, *[key for key in self._given if key in present])}
        taken = set(self._given.values())
        entries, troubles = [], [trouble for stock in stocks for trouble in stock.bad]
        for key, entry in brought:
            name = self._given.get(key) or self._free_name(entry.spec, taken)
            if name is None:
                troubles.append(Trouble(entry.spec.source, "It is left out: its name is taken.", entry.spec.name))
                continue
            if name != entry.spec.name:
                owner = self.owner(entry.spec.name, entry.spec.source)
                why = f"begins as the names of {owner} do" if owner else "is taken"
                troubles.append(Trouble(entry.spec.source, f"{entry.spec.name!r} {why}: it is called {name!r}.", name))
            self._given[key] = name
            taken.add(name)
            entries.append(entry if name == entry.spec.name else self._called(entry, name))
        self._renamed = {name: pair for name, pair in self._renamed.items() if name in taken}
        return _Index(entries, troubles)

    def owner(self, name: str, source: str) -> str | None:
        """The source into whose prefix a tool of another would be named, if that one's names come from strangers."""
        if not source.startswith(_NAMED_BY_OTHERS):
            return None
        own = self._prefixes.get(source, "")
        longer = [item for item in self._prefixes.items() if len(item[1]) > len(own) and name.startswith(item[1])]
        return next((owner for owner, _ in longer if owner != source), None)

    def _free_name(self, spec: ToolSpec, taken: set[str]) -> str | None:
        """Its own name, or one with its source in front; None when neither can be had."""
        namespaced = fitting_name(f"{_UNSAFE.sub('_', spec.source)}__{spec.name}")
        names = [name for name in (spec.name, namespaced) if name not in taken]
        return next((name for name in names if self.owner(name, spec.source) is None), None)

    def _called(self, entry: Entry, name: str) -> Entry:
        """The entry under this name: the same object as last time, so that caches hold."""
        before = self._renamed.get(name)
        if before is None or before[0] is not entry:
            spec = replace(entry.spec, name=name, origin=entry.spec.origin or entry.spec.name)
            before = self._renamed[name] = (entry, Entry(_Renamed(entry.tool, spec), spec, entry.when))
        return before[1]


class _Renamed:
    """A tool under another name."""

    def __init__(self, tool: Tool, spec: ToolSpec) -> None:
        self.spec = spec
        self._tool = tool

    async def prepare(self, invocation: Invocation) -> Preparation:
        return await self._tool.prepare(invocation)

    async def invoke(self, invocation: Invocation) -> Output:
        return await self._tool.invoke(invocation)


def fitting_name(name: str) -> str:
    """The name, or its beginning and a digest if it is longer than upstreams take."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
