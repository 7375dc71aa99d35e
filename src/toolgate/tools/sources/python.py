"""A source of tools that are Python code: functions and classes in folders, modules and installed packages.

Code is first loaded in a worker process, which describes its tools; code that hangs or crashes there does no harm.
Only files with tools that are to run on the server's loop are loaded by the server itself.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from toolgate.tools.authoring.in_process_tool import InProcessTool, token_of
from toolgate.tools.authoring.loading import CodeLoadError, ToolImportTarget, load, unload
from toolgate.tools.authoring.registry import PythonToolRegistry
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.sources.python_code_finder import PythonCodeNotFound, find_places
from toolgate.tools.tool import (
    CallPreview,
    OnChange,
    ServerToolDefinition,
    Tool,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)
from toolgate.tools.workers import frames
from toolgate.tools.workers.pool import ToolWorkerPool
from toolgate.tools.workers.process import WorkerLimits


class WorkerTool:
    """A tool that runs in a worker process; cancelling a call kills the process if it does not stop by itself."""

    def __init__(self, described: frames.WorkerToolInfo, place: ToolImportTarget, pool: ToolWorkerPool) -> None:
        self._described = described
        self._place = place
        self._pool = pool

    @property
    def spec(self) -> ServerToolDefinition:
        """The definition."""
        return self._described.spec

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Let the author's code describe the call, if it can."""
        if not self._described.prepares:
            return CallPreview()
        request = frames.ToolWorkerPreviewRequestFrame(self._place, self.spec.name, invocation.arguments)
        response = await self._pool.request(request, clock=invocation.clock, caller=invocation.caller)
        match response:
            case frames.ToolWorkerPreviewResponseFrame(preparation):
                return preparation
        raise _failure(response)

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Run the call in a free worker."""
        request = frames.ToolWorkerInvokeFrame(self._place, self.spec.name, invocation.arguments, token_of(invocation))
        response = await self._pool.request(request, invocation.report, invocation.clock, invocation.caller)
        match response:
            case frames.ToolWorkerResultFrame():
                return frames.decode_output(response)
        raise _failure(response)


class PythonSource:
    """Brings the tools of the given places; `problem` names places that are broken, which do not affect the others."""

    name = "python"

    def __init__(
        self,
        places: Sequence[str],
        base: Path,
        *,
        limits: WorkerLimits | None = None,
        load_seconds: float = 10.0,
        open_seconds: float = 2.0,
        schemas: ToolSchemaValidator | None = None,
    ) -> None:
        """Relative paths start at `base`; a file may take `load_seconds`, and `open` waits `open_seconds` for all."""
        self._texts = tuple(places)
        self._base = base
        self._limits = limits or WorkerLimits()
        self._load_seconds = load_seconds
        self._open_seconds = open_seconds
        self._schemas = schemas or ToolSchemaValidator()
        self._pool = ToolWorkerPool(self._limits)
        self._registry = PythonToolRegistry()
        self._tools: tuple[Tool, ...] = ()
        self._problems: tuple[str, ...] = ()
        self._locations: dict[str, str] = {}  # file and line by the name of the tool
        self._loaded: list[ToolImportTarget] = []
        self._loading: asyncio.Task[None] | None = None

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that are loaded so far."""
        return self._tools

    @property
    def problem(self) -> str | None:
        """What could not be loaded and why, in one line each."""
        return "\n".join(self._problems) or None

    @property
    def log(self) -> str:
        """The end of what tools printed."""
        return self._pool.log.text

    async def open(self, on_change: OnChange) -> None:
        """Load everything, again if it was open before; slow code continues to load after this returns."""
        await self.aclose()
        self._pool = ToolWorkerPool(self._limits)
        self._loading = asyncio.create_task(self._load(on_change))
        await asyncio.wait({self._loading}, timeout=self._open_seconds)

    async def aclose(self) -> None:
        """End every worker and remove every tool."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})
            self._loading = None
        for tool in self._tools:
            if isinstance(tool, InProcessTool):
                await tool.aclose()
        await self._pool.aclose()
        for place in self._loaded:
            unload(place)
        self._loaded, self._locations, self._registry = [], {}, PythonToolRegistry()
        self._tools, self._problems = (), ()

    async def _load(self, on_change: OnChange) -> None:
        places: dict[ToolImportTarget, None] = {}
        for text in self._texts:
            try:
                places |= dict.fromkeys(find_places(text, self._base))
            except (PythonCodeNotFound, OSError) as error:
                self._add_problem(str(error))
        broken: set[str | None] = set()
        for place in places:
            if place.module is None or place.path not in broken:  # modules of a broken package are broken with it
                try:
                    await self._add_tools(place)
                except CodeLoadError as error:
                    self._add_problem(str(error))
                    broken |= {place.path} if place.module is None else set()
        if self._texts and not self._tools and not self._problems:
            self._add_problem(f"there are no tools in {', '.join(self._texts)}")
        on_change()

    async def _add_tools(self, place: ToolImportTarget) -> None:
        found = await self._describe(place)
        schemas = [described.spec.input_schema for described in found]
        problems = await asyncio.to_thread(lambda: [self._schemas.problem(schema) for schema in schemas])
        usable: list[frames.WorkerToolInfo] = []
        root = self._base.resolve()
        for described, problem in zip(found, problems, strict=True):
            name = described.spec.name
            path, _, line = described.place.rpartition(":")
            location = f"{Path(path).relative_to(root)}:{line}" if Path(path).is_relative_to(root) else described.place
            if problem is not None:
                self._add_problem(f"{location}: `{name}` is refused: its input schema {problem}")
            elif name not in self._locations:
                self._locations[name] = location
                usable.append(described)
            # The same code that is found through another place is no problem.
            elif self._locations[name] != location:
                self._add_problem(f"{location}: `{name}` is refused: {self._locations[name]} has a tool of that name")
        # A worker has shown that the code loads. Tools that run on the server's loop need it here, too.
        here = [described for described in usable if not described.worker]
        if here:
            self._loaded.append(place)
            for definition in await asyncio.to_thread(load, place):
                if any(definition.spec.name == described.spec.name for described in here):
                    self._registry.define(definition)
        for described in usable:
            if described.worker:
                self._registry.add(WorkerTool(described, place, self._pool))
            tool = self._registry.find(described.spec.name)
            self._tools += (tool,) if tool is not None else ()

    async def _describe(self, place: ToolImportTarget) -> Sequence[frames.WorkerToolInfo]:
        """Let a worker load the code and describe its tools; CodeLoadError if it cannot."""
        try:
            async with asyncio.timeout(self._load_seconds):
                response = await self._pool.request(frames.ToolWorkerDescribeRequestFrame(place))
        except TimeoutError:
            raise CodeLoadError(f"{place.label}: it took longer than {self._load_seconds:g} seconds to load") from None
        except ToolCallFailed as error:
            raise CodeLoadError(f"{place.label}: while it was loaded: {error}") from error
        match response:
            case frames.WorkerToolList(tools):
                return tools
        raise CodeLoadError(str(_failure(response)))

    def _add_problem(self, problem: str) -> None:
        self._problems += (problem,)


def _failure(response: frames.WorkerResponse) -> ToolCallFailed:
    match response:
        case frames.ToolWorkerErrorFrame(message):
            return ToolCallFailed(message)
    return ToolCallFailed("The tool's process sent a response of the wrong kind.")
