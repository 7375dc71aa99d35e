"""A source of the tools that editors lend over the bridge.

Its tools come and go with windows. They are trusted as the editor is: their definitions are not pinned, because every update
of the editor changes some, and the editor itself asks its person about calls with effects. Arguments are checked by the
runner before the editor sees them, because the editor checks none.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Raw

from toolgate.bridge.exchange import EditorExchangeTimeouts
from toolgate.bridge.frames import (
    AnswerPiece,
    BridgeDataPart,
    BridgeInvokeToolFrame,
    BridgeTextPart,
    LentTool,
    encode_frame,
)
from toolgate.bridge.windows import EditorWindow, EditorWindows
from toolgate.conversation.errors import GatewayOverloaded, UpstreamError
from toolgate.conversation.message import Media, Text
from toolgate.scheduling import QueueFull
from toolgate.tools.registry import fitting_name
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.tool import (
    NO_INPUT,
    CallDenied,
    CallPreview,
    CallTimedOut,
    OnChange,
    ServerToolDefinition,
    Tool,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
)
from toolgate.wire.jsontext import encode

NAME = "vscode"
# A call waits no longer than this while its window runs as many tools as it may.
_QUEUE_SECONDS = 30.0
_FEW = 16  # new tools whose schemas are checked on the loop


class VscodeToolSource:
    """Brings the tools of all windows; a tool that several windows lend is one tool."""

    name = NAME
    problem: str | None = None

    def __init__(self, windows: EditorWindows, seconds: float, schemas: ToolSchemaValidator | None = None) -> None:
        """A call may take so many seconds: a person may have to answer a dialog."""
        self._windows = windows
        self._seconds = seconds
        self._schemas = schemas or ToolSchemaValidator()
        self._known: list[tuple[LentTool, VscodeTool]] = []
        self._on_change: OnChange = lambda: None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._checking: asyncio.Task[None] | None = None

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that are lent now; many new ones only when their schemas are checked."""
        return [tool for _, tool in self._known]

    async def open(self, on_change: OnChange) -> None:
        """Watch the windows."""
        self._on_change = on_change
        self._unsubscribe = self._windows.subscribe(self._update)
        self._update()

    def configure(self, seconds: float) -> None:
        """Let calls take so many seconds from now on."""
        if seconds != self._seconds:
            self._seconds = seconds
            self._known = [(lent, VscodeTool(self._windows, lent, seconds)) for lent, _ in self._known]
            if self._checking is not None:  # it would bring tools with the former time
                self._checking.cancel()
                self._checking = None
            self._update()
            self._on_change()

    async def aclose(self) -> None:
        """Stop watching: the windows belong to the bridge."""
        self._unsubscribe()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})

    def _update(self) -> None:
        """Take over what is lent now; the schemas of many new tools are checked in a thread first."""
        # A check that has begun is not begun anew: a window that changes its tools all the time would keep out all others.
        if self._checking is not None and not self._checking.done():
            return
        lent = self._windows.tools()
        # By identity: a window that sends its tools again lends new objects. `_known` keeps the old ones alive.
        known = {id(one): tool for one, tool in self._known}
        found = [(one, known.get(id(one)) or VscodeTool(self._windows, one, self._seconds)) for one in lent]
        new = [tool for one, tool in found if id(one) not in known]
        if len(new) > _FEW:
            self._checking = asyncio.get_running_loop().create_task(self._check_then_use(found, new))
        elif found != self._known:
            self._known = found
            self._on_change()

    async def _check_then_use(self, found: "list[tuple[LentTool, VscodeTool]]", new: "list[VscodeTool]") -> None:
        schemas = [tool.spec.input_schema for tool in new]
        # The registry checks them again, on the loop, and finds the results in the cache.
        await asyncio.to_thread(lambda: [self._schemas.problem(schema) for schema in schemas])
        self._known, self._checking = found, None
        self._on_change()
        self._update()  # what was lent or withdrawn meanwhile


class VscodeTool:
    """One tool; a call goes to a window that lends it now."""

    def __init__(self, windows: EditorWindows, lent: LentTool, seconds: float) -> None:
        self._windows = windows
        self._origin = lent.name
        self._seconds = seconds
        schema = lent.input_schema
        self._spec = ServerToolDefinition(
            name=fitting_name(lent.name),
            description=lent.description or lent.name,
            source=NAME,
            # Extensions may leave the schema out, or write one that no upstream accepts.
            input_schema=schema if schema and schema.get("type", "object") == "object" else NO_INPUT,
            origin=lent.name,
            tags=lent.tags,
            timeout=seconds,
        )

    @property
    def spec(self) -> ServerToolDefinition:
        """The definition as the editor gives it."""
        return self._spec

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Name the window that will run the call."""
        return CallPreview(message=f"Run {self._origin} in {self._window(invocation).state.title}")

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Have the editor run the call; cancelling the task cancels it there."""
        window = self._window(invocation)
        slots = window.invocations
        if not slots.try_acquire():
            try:
                async with asyncio.timeout(_QUEUE_SECONDS):
                    await slots.wait(invocation.caller)
            except (QueueFull, TimeoutError):
                raise ToolCallFailed(f"{window.state.title} runs as many tools as it may; try again later.") from None
        try:
            return await self._run(window, invocation)
        finally:
            slots.release()

    def _window(self, invocation: ToolCallInput) -> EditorWindow:
        window = self._windows.tool_lender(self._origin, invocation.window)
        if window is None:
            raise ToolCallFailed(f"No editor lends {self._origin} now. It was not run.")
        return window

    async def _run(self, window: EditorWindow, invocation: ToolCallInput) -> ToolOutput:
        seconds = self._seconds
        exchange = window.exchange(
            EditorExchangeTimeouts(start=seconds, consent=seconds, first_byte=seconds, total=seconds)
        )
        frame = BridgeInvokeToolFrame(
            exchange.id, self._origin, Raw(encode(invocation.arguments)), seconds, invocation.caller, invocation.run
        )
        try:
            await window.send(encode_frame(frame), exchange, "invoke", invocation.caller)
            await exchange.begin()
            pieces = await exchange.more()
        except (UpstreamError, GatewayOverloaded) as fault:
            match fault.code:
                case "cancelled_in_editor":
                    raise CallDenied(
                        f"The person in the editor did not allow the call of {self._origin}. It was not run."
                    ) from None
                case "upstream_timeout":
                    raise CallTimedOut(
                        f"{self._origin} did not answer in time; a dialog may be open in the editor."
                    ) from None
            raise ToolCallFailed(f"{self._origin} failed in the editor: {fault.message}") from None
        finally:  # after an answer, too: cancelling an exchange that has ended sends nothing
            exchange.cancel()
            window.forget(exchange)
        return ToolOutput(tuple(map(_part, pieces)))


def _part(piece: AnswerPiece) -> Text | Media:
    match piece:
        case BridgeTextPart(text):
            return Text(text)
        case BridgeDataPart(mime, data):
            return Media("image" if mime.startswith("image/") else "file", mime, data)
    return Text(encode(piece).decode())
