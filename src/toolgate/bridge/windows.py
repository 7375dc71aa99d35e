"""The open windows of all editors that this process can reach: what they lend, and which one a request goes to.

A window is a connection of this process (`session.py`) or of another worker or node (`remote_windows.py`); who uses it
need not know which. Knows no sockets.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from toolgate.bridge.exchange import EditorExchange, EditorExchangeTimeouts
from toolgate.bridge.frames import EditorNameAndVersion, LendingSwitches, LentModel, LentTool, WindowDescription
from toolgate.scheduling import FairSlots

ExchangeKind: TypeAlias = Literal["ask", "invoke", "count"]


class WindowState(Struct, frozen=True):
    """What is known of a window. `owner` is the key by which it has joined, empty for the token of this machine.

    `focused_at` is when it was focused last, `since` when it joined, both in seconds since the epoch.
    """

    session: str
    window: WindowDescription
    editor: EditorNameAndVersion = EditorNameAndVersion()
    lends: LendingSwitches = LendingSwitches()
    models: tuple[LentModel, ...] = ()
    tools: tuple[LentTool, ...] = ()
    owner: str = ""
    focused_at: float = 0.0
    since: float = 0.0
    max_frame: int = 0

    @property
    def title(self) -> str:
        """The window's name in messages to people."""
        name = self.editor.name or "The editor"
        return f"{name} ({', '.join(self.window.folders[:3])})" if self.window.folders else name

    def is_same_window(self, other: "WindowState") -> bool:
        """Whether both are connections of one window."""
        return self.window.id == other.window.id and self.owner == other.owner


class EditorWindow(Protocol):
    """A window that can be asked."""

    @property
    def state(self) -> WindowState:
        """What is known of it now."""

    # The slots for questions to its models, and for calls of its tools.
    asks: FairSlots
    invocations: FairSlots

    def exchange(self, timeouts: EditorExchangeTimeouts) -> EditorExchange:
        """Return a new exchange, whose frame is yet to be sent."""

    async def send(self, frame: bytes, exchange: EditorExchange, kind: ExchangeKind, caller: str) -> None:
        """Send the frame that begins an exchange, on behalf of a caller."""

    def forget(self, exchange: EditorExchange) -> None:
        """Drop an exchange that is over."""


class EditorWindows:
    """All windows by session; the one that was focused last comes first."""

    def __init__(self) -> None:
        self._windows: dict[str, EditorWindow] = {}
        self._ordered: tuple[EditorWindow, ...] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.revision = 0  # grows with every change of what is lent

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener after every change of what is lent; return what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def add(self, window: EditorWindow) -> None:
        """Add a window, or replace the one of its session."""
        self._windows[window.state.session] = window
        self.changed()

    def remove(self, session: str) -> None:
        """Remove a window."""
        if self._windows.pop(session, None) is not None:
            self.changed()

    def changed(self, *, lending: bool = True) -> None:
        """Note that a window has changed; without `lending` only its focus or its folders."""
        self._ordered = None
        if lending:
            self.revision += 1
            for listener in tuple(self._listeners):
                listener()

    def get(self, session: str) -> EditorWindow | None:
        """Find a window by its session."""
        return self._windows.get(session)

    @property
    def ordered(self) -> tuple[EditorWindow, ...]:
        """All windows, the one that was focused last first."""
        if self._ordered is None:
            windows = list(self._windows.values())
            windows.sort(key=lambda w: (w.state.window.focused, w.state.focused_at, w.state.since), reverse=True)
            self._ordered = tuple(windows)
        return self._ordered

    def named(self, name: str) -> Sequence[EditorWindow]:
        """List the windows that a client names by id or by folder; all if it names none."""
        if not name:
            return self.ordered
        return [one for one in self.ordered if name == one.state.window.id or name in one.state.window.folders]

    def lender(self, vendor: str | None, model: str, name: str = "") -> tuple[EditorWindow, LentModel] | None:
        """Find the window, among those of this name, that lends a model, by its id or its family."""
        for window in self.named(name):
            candidates = [one for one in window.state.models if vendor is None or one.vendor == vendor]
            by_id = next((one for one in candidates if one.id == model), None)
            # Of several models of one family, the first that the editor lists.
            lent = by_id or next((one for one in candidates if one.family == model), None)
            if lent is not None:
                return window, lent
        return None

    def tool_lender(self, tool: str, name: str = "") -> EditorWindow | None:
        """Find the window, among those of this name, that lends a tool."""
        for window in self.named(name):
            if any(one.name == tool for one in window.state.tools):
                return window
        return None

    def models(self) -> list[LentModel]:
        """List every model that a window lends, once, in the order of the windows."""
        found: dict[tuple[str, str], LentModel] = {}
        for window in self.ordered:
            for lent in window.state.models:
                found.setdefault((lent.vendor, lent.id), lent)
        return list(found.values())

    def tools(self) -> list[LentTool]:
        """List every tool that a window lends, once, in the order of the windows."""
        found: dict[str, LentTool] = {}
        for window in self.ordered:
            for lent in window.state.tools:
                found.setdefault(lent.name, lent)
        return list(found.values())

    def context(self, name: str = "") -> Mapping[str, Any]:
        """Return the context keys of the window that was focused last."""
        windows = self.named(name)
        return windows[0].state.window.context if windows else {}
