"""A source of tools that are registered at runtime: HTTP callbacks and MCP servers, by URL, stored across restarts.

Each registration is a source of its own, made by a function that is given; this combines them into one. A registration
never names a command: only the configuration file can start programs. Knows no HTTP and no database.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import Conflict, NotFound, ToolgateError
from toolgate.tools.registry import (
    AwaitableToolSource,
    ConnectingSource,
    RefreshableSource,
    SourceWithQuarantine,
    UnacceptedTool,
)
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.tool import NO_INPUT, Annotations, OnChange, Tool, ToolSource

NAME = "api"


class ToolRegistration(Struct, frozen=True, kw_only=True):
    """What was registered; for an MCP server only name, url and headers count. `secret` signs calls."""

    type: Literal["http", "mcp"]
    name: str
    url: str
    headers: Mapping[str, str] = {}
    secret: str | None = None
    description: str = ""
    input_schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: NO_INPUT)
    output_schema: Mapping[str, Any] | None = None
    display_name: str | None = None
    reference_name: str | None = None
    user_description: str | None = None
    icon: str | None = None
    tags: tuple[str, ...] = ()
    when: str | None = None
    private: bool = False
    annotations: Annotations = Annotations()
    approval: Literal["allow", "ask", "deny"] | None = None
    timeout: float | None = None
    cache_seconds: float = 0.0


MakeSource: TypeAlias = Callable[[ToolRegistration], ToolSource]


class RegisteredSourceStoreProtocol(Protocol):
    """Stores registrations by name."""

    async def all(self) -> Sequence[tuple[str, bytes]]:
        """List all registrations, the oldest first."""

    async def save(self, name: str, registration: bytes) -> None:
        """Store a registration durably."""

    async def delete(self, name: str) -> None:
        """Delete a registration."""


class RegisteredToolSource:
    """Brings the tools of all registrations."""

    name = NAME

    def __init__(
        self,
        store: RegisteredSourceStoreProtocol,
        make: MakeSource,
        on_registration: Callable[[], None] = lambda: None,
        schemas: ToolSchemaValidator | None = None,
    ) -> None:
        """`make` makes the source of a registration without opening it, and raises ToolgateError if it cannot.

        `on_registration` is called when a registration was added or deleted here, so that other processes can refresh.
        """
        self._store = store
        self._make = make
        self._on_registration = on_registration
        self._schemas = schemas or ToolSchemaValidator()
        self._sources: dict[str, ToolSource] = {}
        self._encoded: dict[str, bytes] = {}  # as stored: `refresh` compares, to find what other processes changed
        self._problems: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._on_change: OnChange = lambda: None

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools of all registrations."""
        return [tool for source in self._sources.values() for tool in source.tools]

    @property
    def problem(self) -> str | None:
        """The problems of all registrations."""
        problems = [*self._problems.values(), *[source.problem for source in self._sources.values()]]
        return " ".join([problem for problem in problems if problem]) or None

    @property
    def connecting(self) -> bool:
        """Whether registered MCP servers are connected to for the first time, and nothing else is wrong."""
        unready = [source for source in self._sources.values() if source.problem]
        connecting = [isinstance(source, ConnectingSource) and source.connecting for source in unready]
        return bool(unready) and all(connecting) and not self._problems

    @property
    def quarantined(self) -> Sequence[UnacceptedTool]:
        """The tools of registered MCP servers that wait to be accepted."""
        return [
            one
            for source in self._sources.values()
            if isinstance(source, SourceWithQuarantine)
            for one in source.quarantined
        ]

    @property
    def names(self) -> frozenset[str]:
        """The names of all registrations, those that could not be restored included."""
        return frozenset({*self._sources, *self._problems})

    async def open(self, on_change: OnChange) -> None:
        """Open the stored registrations; one that cannot be opened is reported as a problem and stays registered."""
        self._on_change = on_change
        try:
            stored = await self._store.all()
        except ToolgateError as error:
            self._problems[""] = f"The registrations could not be read: {error.message}"
            return
        for name, text in stored:
            await self._restore(name, text)

    async def settled(self) -> None:
        """Wait until every registered MCP server has brought its tools or failed to for the first time."""
        await asyncio.gather(*[one.settled() for one in self._sources.values() if isinstance(one, AwaitableToolSource)])

    async def refresh(self) -> None:
        """Open and close sources by what is stored now, by any process; ToolgateError if that cannot be read."""
        async with self._changing:
            stored = dict(await self._store.all())
            gone = [name for name, text in self._encoded.items() if stored.get(name) != text]
            for name in gone:
                await self._remove_source(name)
            new = [name for name in stored if name not in self._encoded]
            for name in new:
                await self._restore(name, stored[name])
            self._problems.pop("", None)
        if gone or new:
            self._on_change()

    async def aclose(self) -> None:
        """Close all sources, even if some fail."""
        await asyncio.gather(*[source.aclose() for source in self._sources.values()], return_exceptions=True)

    async def add(self, registration: ToolRegistration) -> ToolSource:
        """Store and open a registration; Conflict if its name is in use here."""
        async with self._changing:
            if registration.name in self.names:
                raise Conflict(f"{registration.name!r} is registered already; delete it first.", param="name")
            source = self._make(registration)  # a registration that cannot be used is not stored
            text = msgspec.json.encode(registration)
            await self._store.save(registration.name, text)
            try:
                await self._open_source(registration, source)
            except BaseException:
                # A registration that failed must not come back after a restart.
                await self._store.delete(registration.name)
                raise
            self._encoded[registration.name] = text
            self._on_change()
            self._on_registration()
            return source

    async def remove(self, name: str) -> None:
        """Delete a registration; NotFound if there is none of this name."""
        async with self._changing:
            if name not in self.names or not name:  # "" stands for a store that could not be read
                raise NotFound(f"Nothing is registered as {name[:80]!r}.", code="tool_not_found")
            await self._store.delete(name)
            self._on_registration()
            await self._remove_source(name, self._on_change)

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use a quarantined tool from now on; NotFound if there is none of this name."""
        for source in self._sources.values():
            if isinstance(source, SourceWithQuarantine):
                with suppress(NotFound):
                    return await source.accept(name, seen)
        raise NotFound(f"There is no tool {name[:80]!r} that waits to be accepted.", code="tool_not_found")

    def request_refresh(self) -> None:
        """Let registered MCP servers read again which definitions were accepted."""
        for source in self._sources.values():
            if isinstance(source, RefreshableSource):
                source.request_refresh()

    async def _restore(self, name: str, text: bytes) -> None:
        self._encoded[name] = text
        try:
            await self._open_source(msgspec.json.decode(text, type=ToolRegistration))
        except Exception as error:  # noqa: BLE001  # the tool boundary: the others must open
            self._problems[name] = f"The registration {name!r} could not be restored: {str(error)[:300]}"

    async def _remove_source(self, name: str, on_gone: OnChange = lambda: None) -> None:
        """Remove the source of a registration, then close it; its tools are no longer offered meanwhile."""
        self._problems.pop(name, None)
        self._encoded.pop(name, None)
        source = self._sources.pop(name, None)
        on_gone()
        if source is not None:
            await source.aclose()

    async def _open_source(self, registration: ToolRegistration, source: ToolSource | None = None) -> None:
        source = source or self._make(registration)
        # The registry checks the schema on the loop; here, in a thread, the result is cached for it.
        await asyncio.to_thread(self._schemas.problem, registration.input_schema)
        await source.open(self._on_change)
        self._sources[registration.name] = source
