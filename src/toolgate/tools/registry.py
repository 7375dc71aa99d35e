"""Register the server tools of all sources: unique names, checked definitions, one order.

The order is that of the sources, then that of the names, and it is the same after every start. A name belongs to the tool
that had it first, for as long as its source is there: another tool of that name is namespaced and never takes its place.
A tool that cannot be used is left out and reported as a problem. Knows sources by their Protocol; runs no tool.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import NotFound
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.tool import CallPreview, OnChange, ServerToolDefinition, Tool, ToolCallInput, ToolOutput, ToolSource
from toolgate.tools.tool_search_index import ToolSearchIndex
from toolgate.tools.when_clauses import WhenClause, WhenError, parse

# OpenAI refuses functions with longer names, and with other characters than those of `_NAME`.
LONGEST_NAME = 64
# Each notification makes MCP clients list all tools again, so that changes in quick succession are announced once.
QUIET_SECONDS = 0.05
_SETTLE_SECONDS = 60.0
# Names that are reserved for tools of sources that are away, so that no source can fill our memory with them.
_MAX_RESERVED = 10_000
# Selections that are cached while the tools stay the same.
_MAX_CHOICES = 32
# Sources whose tools are named by documents and clients; MCP sources prefix the names of their tools themselves.
_NAMED_BY_OTHERS = ("http/", "api")

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class ToolProblem(Struct, frozen=True):
    """Why a tool, or all tools of a source, are missing or renamed, in a sentence for a person."""

    source: str
    message: str
    tool: str | None = None


class RegistryEntry(Struct, frozen=True, eq=False):
    """A tool that may be used, with its when-clause parsed."""

    tool: Tool
    spec: ServerToolDefinition
    when: WhenClause | None = None


class UnacceptedTool(Protocol):
    """A tool that waits for a person to accept its definition; `old` is the accepted one, None if the tool is new."""

    name: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    digest: str


@runtime_checkable
class SourceWithQuarantine(Protocol):
    """A source that holds back tools whose definition has changed, until a person has accepted it."""

    @property
    def quarantined(self) -> Sequence[UnacceptedTool]:
        """The tools that are held back."""

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use the definition with the digest `seen`, by default the present one; NotFound if no such tool is held back."""


@runtime_checkable
class RefreshableSource(Protocol):
    """A source that can read again which tools are offered and accepted."""

    def request_refresh(self) -> None:
        """Read soon what another process has changed."""


@runtime_checkable
class AwaitableToolSource(Protocol):
    """A source that brings its tools some time after it was opened."""

    async def settled(self) -> None:
        """Wait until it has brought its tools or failed to for the first time."""


@runtime_checkable
class ConnectingSource(Protocol):
    """A source that connects to a server after it was opened."""

    @property
    def connecting(self) -> bool:
        """Whether it connects for the first time; its `problem` is then no failure."""


class ToolRegistry:
    """The present tools of all sources, indexed anew when a source has changed."""

    def __init__(
        self,
        sources: Iterable[ToolSource],
        schemas: ToolSchemaValidator | None = None,
        quiet_seconds: float = QUIET_SECONDS,
        prefixes: Mapping[str, str] = {},
    ) -> None:
        """Subscribers are notified once in `quiet_seconds`, however many changes there were.

        `prefixes` are the beginnings of tool names by source. A tool of an HTTP service or of a registration whose name
        has the prefix of another source is namespaced, because rules with that prefix mean the other source's tools.
        """
        checker = schemas or ToolSchemaValidator()
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
        # What the sources brought while they were opened is no change for subscribers.
        self._notified = self.entries()

    async def settled(self) -> None:
        """Wait for the sources that are connecting for the first time: until they have failed, and a minute at most."""
        connecting = [one.source for one in self._sources if isinstance(one.source, AwaitableToolSource)]
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await asyncio.gather(*[source.settled() for source in connecting])

    async def aclose(self) -> None:
        """Close every source, the last first."""
        if self._notification is not None:
            self._notification.cancel()
        self._loop = None  # sources report changes while they close, which must not start another timer
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
        if name is None:
            return tools
        # Not `fnmatchcase`, which keeps 32,768 patterns of clients; `re` keeps 512.
        matches = re.compile(translate(name)).match
        return tuple([tool for tool in tools if matches(tool.spec.name)])

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

    def problems(self) -> tuple[ToolProblem, ...]:
        """The present problems: first of sources, then of single tools."""
        index = self._current()
        sources = [ToolProblem(one.source.name, one.problem) for one in self._sources if one.problem]
        return (*sources, *index.problems)

    def connecting(self) -> frozenset[str]:
        """The names of sources that connect for the first time: what they report as a problem is no failure yet."""
        sources = [one.source for one in self._sources]
        return frozenset([one.name for one in sources if isinstance(one, ConnectingSource) and one.connecting])

    def quarantined(self) -> list[tuple[str, UnacceptedTool]]:
        """The tools that wait to be accepted, each with the name of its source."""
        sources = [one.source for one in self._sources]
        return [
            (source.name, tool)
            for source in sources
            if isinstance(source, SourceWithQuarantine)
            for tool in source.quarantined
        ]

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use a quarantined tool from now on; NotFound if there is none of this name."""
        for one in self._sources:
            if isinstance(one.source, SourceWithQuarantine):
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
        # The index is made by the next reader: a source may change many times before there is one.
        self._stale = True
        if self._loop is not None and self._notification is None:
            self._notification = self._loop.call_later(self._quiet_seconds, self._notify)

    def _notify(self) -> None:
        self._notification = None
        listed = self.entries()
        if listed == self._notified:
            return
        self._notified = listed
        for subscriber in tuple(self._subscribers):  # a copy, because a subscriber may end its subscription
            subscriber()

    def _current(self) -> "_Index":
        """Return the index, made anew if a source has changed since."""
        if self._stale:
            # First, so that a change during the refresh leads to another one.
            self._stale = False
            for source in self._sources:
                source.refresh()
            self._index = self._names.index(self._sources)
        return self._index


class _CheckedSource:
    """A source and its checked tools; a definition is checked once, however often the source changes."""

    def __init__(self, source: ToolSource, schemas: ToolSchemaValidator) -> None:
        self.source = source
        self.entries: tuple[RegistryEntry, ...] = ()
        self.left_out: tuple[ToolProblem, ...] = ()
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
        left_out: list[ToolProblem] = []
        for tool in sorted(self.source.tools, key=lambda tool: tool.spec.name):
            spec = tool.spec
            try:
                if spec.name in entries:
                    raise ValueError("the source brings two tools of this name")
                # A tool object may be new although its definition is not: an MCP server that lists its tools again.
                old = known.get(spec.name)
                if old is None or (old.spec is not spec and old.spec != spec):
                    entries[spec.name] = self._checked(tool, spec)
                else:
                    entries[spec.name] = old if old.tool is tool else RegistryEntry(tool, old.spec, old.when)
            except ValueError as error:
                left_out.append(ToolProblem(spec.source, f"It is left out: {error}.", spec.name[:LONGEST_NAME]))
        self.entries, self.left_out = tuple(entries.values()), tuple(left_out)

    def _checked(self, tool: Tool, spec: ServerToolDefinition) -> RegistryEntry:
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

    def __init__(self, entries: Sequence[RegistryEntry], problems: Sequence[ToolProblem]) -> None:
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
        # A reference name wins over the name of another tool: its author chose it for prompts.
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
        # Public names by source, the source that the definition names, and the tool's name there.
        self._public_names: dict[tuple[str, str, str], str] = {}
        # By public name: the entry as its source brought it, and under its public name.
        self._renamed: dict[str, tuple[RegistryEntry, RegistryEntry]] = {}

    def index(self, sources: Sequence[_CheckedSource]) -> _Index:
        """Index the entries of all sources under their public names."""
        brought = [((one.source.name, e.spec.source, e.spec.name), e) for one in sources for e in one.entries]
        absent = {one.source.name for one in sources if one.problem}
        present = {key for key, _ in brought}
        # A name is given up only when its source works and has no such tool any more.
        missing = [key for key in self._public_names if key not in present and key[0] in absent][-_MAX_RESERVED:]
        self._public_names = {
            key: self._public_names[key] for key in (*missing, *[key for key in self._public_names if key in present])
        }
        taken = set(self._public_names.values())
        entries, problems = [], [problem for one in sources for problem in one.left_out]
        for key, entry in brought:
            spec, name = entry.spec, self._public_names.get(key)
            if name is None:
                free = (one for one in _possible_names(spec) if one not in taken)
                name = next((one for one in free if self.owner(one, spec.source) is None), None)
            if name is None:
                problems.append(ToolProblem(spec.source, "It is left out: its name is taken.", spec.name))
                continue
            if name != spec.name:
                owner = self.owner(spec.name, spec.source)
                why = f"begins as the names of {owner} do" if owner else "is taken"
                problems.append(ToolProblem(spec.source, f"{spec.name!r} {why}: it is called {name!r}.", name))
                # The same object as last time, so that caches stay valid.
                before = self._renamed.get(name)
                if before is None or before[0] is not entry:
                    public = replace(spec, name=name, origin=spec.origin or spec.name)
                    before = (entry, RegistryEntry(_Renamed(entry.tool, public), public, entry.when))
                    self._renamed[name] = before
                entry = before[1]
            self._public_names[key] = name
            taken.add(name)
            entries.append(entry)
        self._renamed = {name: pair for name, pair in self._renamed.items() if name in taken}
        return _Index(entries, problems)

    def owner(self, name: str, source: str) -> str | None:
        """Find the source whose prefix the name has, for a tool of another source whose names come from outside."""
        if not source.startswith(_NAMED_BY_OTHERS):
            return None
        # With its own prefix in front, a name belongs to its source, unless a longer prefix claims it:
        # `git_` and `git_hub_` both fit `git_hub_issues`.
        own = self._prefixes.get(source, "")
        longer = [item for item in self._prefixes.items() if len(item[1]) > len(own) and name.startswith(item[1])]
        return next((owner for owner, _ in longer if owner != source), None)


class _Renamed:
    """A tool under another name."""

    def __init__(self, tool: Tool, spec: ServerToolDefinition) -> None:
        self.spec = spec
        self._tool = tool

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        return await self._tool.prepare(invocation)

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        return await self._tool.invoke(invocation)


def _possible_names(spec: ServerToolDefinition) -> Iterator[str]:
    """Yield the name that the source gave to the tool, and the one that says which source it is of."""
    yield spec.name
    yield fitting_name(f"{_UNSAFE.sub('_', spec.source)}__{spec.name}")


def fitting_name(name: str) -> str:
    """Shorten a name that is longer than upstreams accept to its beginning and a digest."""
    if len(name) <= LONGEST_NAME:
        return name
    # The digest keeps names apart that begin alike, and is the same after every start.
    return f"{name[: LONGEST_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
