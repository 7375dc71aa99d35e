"""Tools that are Python code: functions and classes in folders, modules and installed packages.

Code is first loaded in a worker process, which tells what tools it has; code that hangs or crashes there harms nobody.
Only files with tools that want to run on the server's loop are loaded by the server itself.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from toolgate.tools.authoring.authored import Authored, token_of
from toolgate.tools.authoring.loading import BrokenPlace, Place, load, unload
from toolgate.tools.authoring.registry import Registry
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.sources.places import NoPlace, find_places
from toolgate.tools.tool import Invocation, OnChange, Output, Preparation, Tool, ToolFailure, ToolSpec
from toolgate.tools.workers import frames
from toolgate.tools.workers.pool import WorkerPool
from toolgate.tools.workers.worker import Limits


class WorkerTool:
    """A tool that runs in a worker process; cancelling a call kills the process if it does not stop by itself."""

    def __init__(self, described: frames.Described, place: Place, pool: WorkerPool) -> None:
        self._described = described
        self._place = place
        self._pool = pool

    @property
    def spec(self) -> ToolSpec:
        """What it says of itself."""
        return self._described.spec

    async def prepare(self, invocation: Invocation) -> Preparation:
        """What its author wants a person to know first."""
        if not self._described.prepares:
            return Preparation()
        question = frames.Prepare(self._place, self.spec.name, invocation.arguments)
        answer = await self._pool.ask(question, clock=invocation.clock, caller=invocation.caller)
        match answer:
            case frames.Prepared(preparation):
                return preparation
        raise _failure(answer)

    async def invoke(self, invocation: Invocation) -> Output:
        """Run it in whichever worker is free."""
        question = frames.Invoke(self._place, self.spec.name, invocation.arguments, token_of(invocation))
        answer = await self._pool.ask(question, invocation.tell, invocation.clock, invocation.caller)
        match answer:
            case frames.Gave():
                return frames.decode_output(answer)
        raise _failure(answer)


class PythonSource:
    """Brings the tools of the given places; a place that is broken is told of in `trouble` and harms no other."""

    name = "python"

    def __init__(
        self,
        places: Sequence[str],
        base: Path,
        *,
        limits: Limits | None = None,
        load_seconds: float = 10.0,
        patience: float = 2.0,
        schemas: SchemaCheck | None = None,
    ) -> None:
        """Relative paths start at `base`; a file may take `load_seconds`, and `open` waits `patience` for them all."""
        self._texts = tuple(places)
        self._base = base
        self._limits = limits or Limits()
        self._load_seconds = load_seconds
        self._patience = patience
        self._schemas = schemas or SchemaCheck()
        self._pool = WorkerPool(self._limits)
        self._registry = Registry()
        self._tools: tuple[Tool, ...] = ()
        self._complaints: tuple[str, ...] = ()
        self._homes: dict[str, str] = {}
        self._loaded: list[Place] = []
        self._loading: asyncio.Task[None] | None = None

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that were found so far."""
        return self._tools

    @property
    def trouble(self) -> str | None:
        """What could not be loaded and why, a line each."""
        return "\n".join(self._complaints) or None

    @property
    def log(self) -> str:
        """The last that tools printed."""
        return self._pool.log.text

    async def open(self, on_change: OnChange) -> None:
        """Load everything, anew if it was open before; what is slow goes on loading after this returns."""
        await self.aclose()
        self._pool = WorkerPool(self._limits)
        self._loading = asyncio.create_task(self._load(on_change))
        await asyncio.wait({self._loading}, timeout=self._patience)

    async def aclose(self) -> None:
        """End every worker and forget every tool."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})
            self._loading = None
        for tool in self._tools:
            if isinstance(tool, Authored):
                await tool.aclose()
        await self._pool.aclose()
        for place in self._loaded:
            unload(place)
        self._loaded, self._homes, self._registry = [], {}, Registry()
        self._tools, self._complaints = (), ()

    async def _load(self, on_change: OnChange) -> None:
        broken: set[str | None] = set()
        for place in self._places():
            if place.module is None or place.path not in broken:  # modules of a broken package are broken with it
                try:
                    await self._add_tools(place)
                except BrokenPlace as error:
                    self._complain(str(error))
                    broken |= {place.path} if place.module is None else set()
        if self._texts and not self._tools and not self._complaints:
            self._complain(f"there are no tools in {', '.join(self._texts)}")
        on_change()

    def _places(self) -> list[Place]:
        found: dict[Place, None] = {}
        for text in self._texts:
            try:
                found |= dict.fromkeys(find_places(text, self._base))
            except (NoPlace, OSError) as error:
                self._complain(str(error))
        return list(found)

    async def _add_tools(self, place: Place) -> None:
        found = await self._described(place)
        complaints = await asyncio.to_thread(self._schema_complaints, found)
        fitting = [
            described for described, wrong in zip(found, complaints, strict=True) if self._fits(described, wrong)
        ]
        here = [described for described in fitting if not described.worker]
        if here:
            self._loaded.append(place)
            for definition in await asyncio.to_thread(load, place):
                if any(definition.spec.name == described.spec.name for described in here):
                    self._registry.define(definition)
        for described in fitting:
            if described.worker:
                self._registry.add(WorkerTool(described, place, self._pool))
            tool = self._registry.find(described.spec.name)
            self._tools += (tool,) if tool is not None else ()

    async def _described(self, place: Place) -> Sequence[frames.Described]:
        """What a worker says of the place; BrokenPlace if it cannot load it."""
        try:
            async with asyncio.timeout(self._load_seconds):
                answer = await self._pool.ask(frames.Describe(place))
        except TimeoutError:
            raise BrokenPlace(f"{place.label}: it took longer than {self._load_seconds:g} seconds to load") from None
        except ToolFailure as error:
            raise BrokenPlace(f"{place.label}: while it was loaded: {error}") from error
        match answer:
            case frames.Tools(tools):
                return tools
        raise BrokenPlace(str(_failure(answer)))

    def _schema_complaints(self, found: Sequence[frames.Described]) -> list[str | None]:
        return [self._schemas.complaint(described.spec.input_schema) for described in found]

    def _fits(self, described: frames.Described, complaint: str | None) -> bool:
        """Whether the tool can be taken; the same code found through another place is nothing to complain of."""
        name, home = described.spec.name, self._shown(described.place)
        if complaint is not None:
            self._complain(f"{home}: `{name}` is refused: its input schema {complaint}")
            return False
        if name not in self._homes:
            self._homes[name] = home
            return True
        if self._homes[name] != home:
            self._complain(f"{home}: `{name}` is refused: {self._homes[name]} has a tool of that name")
        return False

    def _shown(self, home: str) -> str:
        path, _, line = home.rpartition(":")
        root = self._base.resolve()
        return f"{Path(path).relative_to(root)}:{line}" if Path(path).is_relative_to(root) else home

    def _complain(self, complaint: str) -> None:
        self._complaints += (complaint,)


def _failure(answer: frames.Answer) -> ToolFailure:
    match answer:
        case frames.Failed(message):
            return ToolFailure(message)
    return ToolFailure("The tool's process answered another question than was asked.")
