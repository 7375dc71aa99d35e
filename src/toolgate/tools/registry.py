"""Register the server tools of all sources: unique names, checked definitions, one order.

The order is that of the sources, then that of the names, and it is the same after every start. A name belongs to the tool
that had it first, for as long as its source is there: another tool of that name is namespaced and never takes its place.
A tool that cannot be used is left out and reported as a problem. Knows sources by their Protocol; runs no tool.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import NotFound
from toolgate.tools.schema_check import ToolSchemaLinter
from toolgate.tools.tool import CallPreview, OnChange, Tool, ToolCallInput, ToolOutput, ToolSource, ToolSpec
from toolgate.tools.tool_search import ToolSearchIndex
from toolgate.tools.when_clauses import WhenClause, WhenError, parse

LONGEST_NAME = 64
QUIET_SECONDS = 0.05
_SETTLE_SECONDS = 60.0
_MAX_RESERVED = 10_000
"""Names that are reserved for tools of sources that are away, so that no source can fill our memory with them."""

_MAX_CHOICES = 32
"""Selections that are cached while the tools stay the same."""

_NAMED_BY_OTHERS = ("http/", "api")
"""Sources whose tools are named by documents and clients; MCP sources prefix the names of their tools themselves."""

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class SourceProblem(Struct, frozen=True):
    """Why a tool, or all tools of a source, are missing or renamed, in a sentence for a person."""

    source: str
    message: str
    tool: str | None = None


class RegistryEntry(Struct, frozen=True, eq=False):
    """A tool that may be used, with its when-clause parsed."""

    tool: Tool
    spec: ToolSpec
    when: WhenClause | None = None


class ChangedTool(Protocol):
    """A tool that waits for a person to accept its definition; `old` is the accepted one, None if the tool is new."""

    name: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    digest: str


@runtime_checkable
class QuarantiningSource(Protocol):
    """A source that holds back tools whose definition has changed, until a person has accepted it."""

    @property
    def quarantined(self) -> Sequence[ChangedTool]:
        """The tools that are held back."""

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use the definition with the digest `seen`, by default the present one; NotFound if no such tool is held back."""


@runtime_checkable
class RefreshableSource(Protocol):
    """A source that can read again which tools are offered and accepted."""

    def request_refresh(self) -> None:
        """Read soon what another process has changed."""


@runtime_checkable
class ConnectingSource(Protocol):
    """A source that brings its tools some time after it was opened."""

    async def settled(self) -> None:
        """Wait until it has brought its tools or failed to for the first time."""


class ToolRegistry:
    """The present tools of all sources, indexed anew when a source has changed."""

    def __init__(
        self,
        sources: Iterable[ToolSource],
        schemas: ToolSchemaLinter | None = None,
        quiet_seconds: float = QUIET_SECONDS,
        prefixes: Mapping[str, str] = {},
    ) -> None:
        """Subscribers are notified once in `quiet_seconds`, however many changes there were.

        `prefixes` are the beginnings of tool names by source. A tool of an HTTP service or of a registration whose name
        has the prefix of another source is namespaced, because rules with that prefix mean the other source's tools.
        """
        checker = schemas or ToolSchemaLinter()
        self._sources = [_CheckedSource(source, checker) for source in sources]
        self._names = _NameTable(prefixes)
        self._index = _Index((), ())
        self._notified: tuple[RegistryEntry, ...] = ()
        self._stale = True
        self._subscribers: list[OnChange] = []
        self._quiet_seconds = quiet_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notification: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Open every source; one that fails is reported as a problem, and the others are opened all the same."""
        self._loop = asyncio.get_running_loop()
        await asyncio.gather(*[source.open(self._mark_changed) for source in self._sources])
        self._stale = True
        self._notified = self.entries()

    async def settled(self) -> None:
        """Wait for the sources that are connecting for the first time: until they have failed, and a minute at most."""
        connecting = [one.source for one in self._sources if isinstance(one.source, ConnectingSource)]
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await asyncio.gather(*[source.settled() for source in connecting])

    async def aclose(self) -> None:
        """Close every source, the last first."""
        if self._notification is not None:
            self._notification.cancel()
        self._loop = None
        for source in reversed(self._sources):
            await source.aclose()

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources, in their order."""
        return tuple([one.source.name for one in self._sources])

    def entries(self) -> tuple[RegistryEntry, ...]:
        """All tools that may be listed, in order; the same tuple object until a tool changes."""
        return self._current().listed

    def tools(self) -> tuple[Tool, ...]:
        """All tools that may be listed, in order; the same tuple object until a tool changes."""
        return self._current().tools

    def cached_choice(
        self, key: Hashable, choose: Callable[[Sequence[RegistryEntry]], Sequence[RegistryEntry]]
    ) -> Sequence[RegistryEntry]:
        """Choose among the listed tools, and cache the choice under `key` until a tool changes."""
        choices = self._current().choices
        if key not in choices:
            if len(choices) >= _MAX_CHOICES:
                choices.clear()
            choices[key] = choose(self._current().listed)
        return choices[key]

    def entry(self, name: str) -> RegistryEntry | None:
        """Find a tool and its definition by name, private ones included."""
        return self._current().by_name.get(name)

    def get(self, name: str) -> Tool | None:
        """Find a tool by name, private ones included."""
        entry = self.entry(name)
        return entry.tool if entry else None

    def find(self, tags: Iterable[str] = (), name: str | None = None) -> tuple[Tool, ...]:
        """List the tools that have any of the tags, if tags are given, and whose name matches the pattern, if one is."""
        any_of, tools = frozenset(tags), self.tools()
        if any_of:
            tools = tuple([tool for tool in tools if not any_of.isdisjoint(tool.spec.tags)])
        return tools if name is None else tuple([tool for tool in tools if fnmatchcase(tool.spec.name, name)])

    def owner_of_prefix(self, name: str, source: str) -> str | None:
        """Find the other source whose prefix a tool of `source` would have under this name; None if there is none."""
        return self._names.owner(name, source)

    def referenced(self, reference: str) -> tuple[Tool, ...]:
        """List the tools that a `#reference` in a prompt means: those of this reference name, else the one of this name."""
        return self._current().references.get(reference, ())

    @property
    def search(self) -> ToolSearchIndex:
        """The search index of all listed tools."""
        return self._current().search

    def problems(self) -> tuple[SourceProblem, ...]:
        """The present problems: first of sources, then of single tools."""
        index = self._current()
        sources = [SourceProblem(one.source.name, one.problem) for one in self._sources if one.problem]
        return (*sources, *index.problems)

    def quarantined(self) -> list[tuple[str, ChangedTool]]:
        """The tools that wait to be accepted, each with the name of its source."""
        sources = [one.source for one in self._sources]
        return [
            (source.name, tool)
            for source in sources
            if isinstance(source, QuarantiningSource)
            for tool in source.quarantined
        ]

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use a quarantined tool from now on; NotFound if there is none of this name."""
        for one in self._sources:
            if isinstance(one.source, QuarantiningSource):
                with suppress(NotFound):
                    return await one.source.accept(name, seen)
        raise NotFound(f"There is no tool {name[:80]!r} that waits to be accepted.", code="tool_not_found")

    def request_refresh(self) -> None:
        """Let all sources that can read again what was accepted, perhaps by another process."""
        for one in self._sources:
            if isinstance(one.source, RefreshableSource):
                one.source.request_refresh()

    def subscribe(self, on_change: OnChange) -> Callable[[], None]:
        """Call `on_change` when the listed tools have changed, until the returned function is called."""
        self._subscribers.append(on_change)
        return lambda: self._subscribers.remove(on_change)

    def _mark_changed(self) -> None:
        self._stale = True
        if self._loop is not None and self._notification is None:
            self._notification = self._loop.call_later(self._quiet_seconds, self._notify)

    def _notify(self) -> None:
        self._notification = None
        listed = self.entries()
        if listed == self._notified:
            return
        self._notified = listed
        for subscriber in tuple(self._subscribers):
            subscriber()

    def _current(self) -> "_Index":
        """Return the index, made anew if a source has changed since."""
        if self._stale:
            self._stale = False
            for source in self._sources:
                source.refresh()
            self._index = self._names.index(self._sources)
        return self._index


class _CheckedSource:
    """A source and its checked tools; a definition is checked once, however often the source changes."""

    def __init__(self, source: ToolSource, schemas: ToolSchemaLinter) -> None:
        self.source = source
        self.entries: tuple[RegistryEntry, ...] = ()
        self.left_out: tuple[SourceProblem, ...] = ()
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
    def problem(self) -> str | None:
        return self._failure or self.source.problem

    def refresh(self) -> None:
        """Check the tools of the source again if it has changed."""
        if not self._stale:
            return
        self._stale = False
        known = {entry.spec.name: entry for entry in self.entries}
        entries: dict[str, RegistryEntry] = {}
        left_out: list[SourceProblem] = []
        for tool in sorted(self.source.tools, key=lambda tool: tool.spec.name):
            spec = tool.spec
            try:
                if spec.name in entries:
                    raise ValueError("the source brings two tools of this name")
                old = known.get(spec.name)
                if old is None or old.spec != spec:
                    entries[spec.name] = self._checked(tool, spec)
                else:
                    entries[spec.name] = old if old.tool is tool else RegistryEntry(tool, old.spec, old.when)
            except ValueError as error:
                left_out.append(SourceProblem(spec.source, f"It is left out: {error}.", spec.name[:LONGEST_NAME]))
        self.entries, self.left_out = tuple(entries.values()), tuple(left_out)

    def _checked(self, tool: Tool, spec: ToolSpec) -> RegistryEntry:
        if not _NAME.fullmatch(spec.name):
            raise ValueError(f"a name is 1 to {LONGEST_NAME} letters, digits, _ and -")
        if problem := self._schemas.problem(spec.input_schema):
            raise ValueError(f"its schema {problem}")
        try:
            return RegistryEntry(tool, spec, parse(spec.when) if spec.when is not None else None)
        except WhenError as error:
            raise ValueError(f"its when-clause cannot be parsed: {error}") from None


class _Index:
    """All tools under their public names, by name and in order."""

    def __init__(self, entries: Sequence[RegistryEntry], problems: Sequence[SourceProblem]) -> None:
        self.by_name = {entry.spec.name: entry for entry in entries}
        self.listed = tuple([entry for entry in entries if not entry.spec.private])
        self.tools = tuple([entry.tool for entry in self.listed])
        self.problems = tuple(problems)
        self.choices: dict[Hashable, Sequence[RegistryEntry]] = {}
        by_reference: dict[str, list[Tool]] = {}
        for entry in self.listed:
            if entry.spec.reference_name is not None:
                by_reference.setdefault(entry.spec.reference_name, []).append(entry.tool)
        by_name = {entry.spec.name: (entry.tool,) for entry in self.listed}
        self.references = {**by_name, **{name: tuple(tools) for name, tools in by_reference.items()}}

    @cached_property
    def search(self) -> ToolSearchIndex:
        return ToolSearchIndex([entry.spec for entry in self.listed])


class _NameTable:
    """The public names of tools. A tool keeps its name as long as its source has the tool or has a problem.

    So a name that people trust cannot pass to another tool because its own source is away for a moment.
    """

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._prefixes = prefixes
        self._given: dict[tuple[str, str, str], str] = {}
        self._renamed: dict[str, tuple[RegistryEntry, RegistryEntry]] = {}
        """By public name: the entry as its source brought it, and under its public name."""

    def index(self, sources: Sequence[_CheckedSource]) -> _Index:
        """Index the entries of all sources under their public names."""
        brought = [((one.source.name, e.spec.source, e.spec.name), e) for one in sources for e in one.entries]
        absent = {one.source.name for one in sources if one.problem}
        present = {key for key, _ in brought}
        missing = [key for key in self._given if key not in present and key[0] in absent][-_MAX_RESERVED:]
        self._given = {key: self._given[key] for key in (*missing, *[key for key in self._given if key in present])}
        taken = set(self._given.values())
        entries, problems = [], [problem for one in sources for problem in one.left_out]
        for key, entry in brought:
            name = self._given.get(key) or self._free_name(entry.spec, taken)
            if name is None:
                problems.append(SourceProblem(entry.spec.source, "It is left out: its name is taken.", entry.spec.name))
                continue
            if name != entry.spec.name:
                owner = self.owner(entry.spec.name, entry.spec.source)
                why = f"begins as the names of {owner} do" if owner else "is taken"
                problems.append(
                    SourceProblem(entry.spec.source, f"{entry.spec.name!r} {why}: it is called {name!r}.", name)
                )
            self._given[key] = name
            taken.add(name)
            entries.append(entry if name == entry.spec.name else self._renamed_entry(entry, name))
        self._renamed = {name: pair for name, pair in self._renamed.items() if name in taken}
        return _Index(entries, problems)

    def owner(self, name: str, source: str) -> str | None:
        """Find the source whose prefix the name has, for a tool of another source whose names come from outside."""
        if not source.startswith(_NAMED_BY_OTHERS):
            return None
        own = self._prefixes.get(source, "")
        longer = [item for item in self._prefixes.items() if len(item[1]) > len(own) and name.startswith(item[1])]
        return next((owner for owner, _ in longer if owner != source), None)

    def _free_name(self, spec: ToolSpec, taken: set[str]) -> str | None:
        """Choose the tool's own name, or one with its source in front; None if neither is free."""
        namespaced = fitting_name(f"{_UNSAFE.sub('_', spec.source)}__{spec.name}")
        names = [name for name in (spec.name, namespaced) if name not in taken]
        return next((name for name in names if self.owner(name, spec.source) is None), None)

    def _renamed_entry(self, entry: RegistryEntry, name: str) -> RegistryEntry:
        """Return the entry under this name: the same object as last time, so that caches stay valid."""
        before = self._renamed.get(name)
        if before is None or before[0] is not entry:
            spec = replace(entry.spec, name=name, origin=entry.spec.origin or entry.spec.name)
            before = self._renamed[name] = (entry, RegistryEntry(_Renamed(entry.tool, spec), spec, entry.when))
        return before[1]


class _Renamed:
    """A tool under another name."""

    def __init__(self, tool: Tool, spec: ToolSpec) -> None:
        self.spec = spec
        self._tool = tool

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        return await self._tool.prepare(invocation)

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        return await self._tool.invoke(invocation)


def fitting_name(name: str) -> str:
    """Shorten a name that is longer than upstreams accept to its beginning and a digest."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
