"""Tools that are registered while the server runs: HTTP callbacks and MCP servers, by URL, kept across restarts.

Each registration is a source of its own, made by a function that is given; this holds them together as one. A registration
never names a command: programs are started for the configuration file alone. Knows no HTTP and no database.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from toolgate.conversation.errors import Conflict, NotFound, ToolgateError
from toolgate.tools.registry import Quarantine, Relisting, Waiting
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.tool import NO_INPUT, Annotations, OnChange, Tool, ToolSource

NAME = "api"


class Registration(Struct, frozen=True, kw_only=True):
    """What was registered; of an MCP server only name, url and headers say something. `secret` signs calls."""

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


Make: TypeAlias = Callable[[Registration], ToolSource]


class Store(Protocol):
    """Keeps registrations by name."""

    async def all(self) -> Sequence[tuple[str, bytes]]:
        """All that are kept, the oldest first."""

    async def save(self, name: str, registration: bytes) -> None:
        """Keep one; it lasts."""

    async def delete(self, name: str) -> None:
        """Forget one."""


class ApiSource:
    """All registrations as one source of tools."""

    name = NAME

    def __init__(
        self, store: Store, make: Make, tell: Callable[[], None] = lambda: None, schemas: SchemaCheck | None = None
    ) -> None:
        """`make` gives the source of a registration; it opens nothing yet and raises ToolgateError if it cannot.

        `tell` is called when something was registered or forgotten here, so that other processes look for themselves.
        """
        self._store = store
        self._make = make
        self._tell = tell
        self._schemas = schemas or SchemaCheck()
        self._sources: dict[str, ToolSource] = {}
        self._texts: dict[str, bytes] = {}
        self._troubles: dict[str, str] = {}
        self._changing = asyncio.Lock()
        self._on_change: OnChange = _nobody_cares

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools of all registrations."""
        return [tool for source in self._sources.values() for tool in source.tools]

    @property
    def trouble(self) -> str | None:
        """What is wrong with registrations, one after the other."""
        troubles = [*self._troubles.values(), *[source.trouble for source in self._sources.values()]]
        return " ".join([trouble for trouble in troubles if trouble]) or None

    @property
    def quarantined(self) -> Sequence[Waiting]:
        """The tools of registered MCP servers that wait for a person."""
        return [
            one for source in self._sources.values() if isinstance(source, Quarantine) for one in source.quarantined
        ]

    @property
    def names(self) -> frozenset[str]:
        """The names of all registrations, those that could not be restored included."""
        return frozenset({*self._sources, *self._troubles})

    async def open(self, on_change: OnChange) -> None:
        """Restore what was registered; what cannot be restored is told as a trouble and stays registered."""
        self._on_change = on_change
        try:
            kept = await self._store.all()
        except ToolgateError as error:
            self._troubles[""] = f"The registrations could not be read: {error.message}"
            return
        for name, text in kept:
            await self._restore(name, text)

    async def refresh(self) -> None:
        """Have what is registered now, by whichever process; ToolgateError if it cannot be read."""
        async with self._changing:
            kept = dict(await self._store.all())
            gone = [name for name, text in self._texts.items() if kept.get(name) != text]
            for name in gone:
                await self._end(name)
            new = [name for name in kept if name not in self._texts]
            for name in new:
                await self._restore(name, kept[name])
            self._troubles.pop("", None)
        if gone or new:
            self._on_change()

    async def aclose(self) -> None:
        """Close every registration's source, whatever the others do."""
        await asyncio.gather(*[source.aclose() for source in self._sources.values()], return_exceptions=True)

    async def add(self, registration: Registration) -> ToolSource:
        """Register, so that it lasts; Conflict if the name is in use here."""
        async with self._changing:
            if registration.name in self.names:
                raise Conflict(f"{registration.name!r} is registered already; delete it first.", param="name")
            source = self._make(registration)  # what cannot be made is not kept
            text = msgspec.json.encode(registration)
            await self._store.save(registration.name, text)
            try:
                await self._begin(registration, source)
            except BaseException:
                await self._store.delete(registration.name)  # what is told to have failed must not come back
                raise
            self._texts[registration.name] = text
            self._on_change()
            self._tell()
            return source

    async def remove(self, name: str) -> None:
        """Forget a registration; NotFound if there is none of this name."""
        async with self._changing:
            if name not in self.names or not name:
                raise NotFound(f"Nothing is registered as {name[:80]!r}.", code="tool_not_found")
            await self._store.delete(name)
            self._tell()
            await self._end(name, self._on_change)

    async def accept(self, name: str, seen: str | None = None) -> None:
        """Use a quarantined tool from now on; NotFound if none of this name waits."""
        for source in self._sources.values():
            if isinstance(source, Quarantine) and await _accepted(source, name, seen):
                return
        raise NotFound(f"There is no tool {name[:80]!r} that waits to be accepted.", code="tool_not_found")

    def look_again(self) -> None:
        """Have registered MCP servers look again at what was accepted."""
        for source in self._sources.values():
            if isinstance(source, Relisting):
                source.look_again()

    async def _restore(self, name: str, text: bytes) -> None:
        self._texts[name] = text
        try:
            await self._begin(msgspec.json.decode(text, type=Registration))
        except Exception as error:  # noqa: BLE001  # the tool boundary: one registration harms no other
            self._troubles[name] = f"The registration {name!r} could not be restored: {str(error)[:300]}"

    async def _end(self, name: str, on_gone: OnChange = lambda: None) -> None:
        """Offer its tools no longer, tell so, then close it."""
        self._troubles.pop(name, None)
        self._texts.pop(name, None)
        source = self._sources.pop(name, None)
        on_gone()
        if source is not None:
            await source.aclose()

    async def _begin(self, registration: Registration, source: ToolSource | None = None) -> None:
        source = source or self._make(registration)
        await asyncio.to_thread(self._schemas.complaint, registration.input_schema)  # the registry asks for it again
        await source.open(self._on_change)
        self._sources[registration.name] = source


async def _accepted(source: Quarantine, name: str, seen: str | None) -> bool:
    try:
        await source.accept(name, seen)
    except NotFound:
        return False
    return True


def _nobody_cares() -> None:
    """Nobody has asked for changes yet."""
