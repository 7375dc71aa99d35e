"""Share windows between processes: each can list and ask the windows that are connected to any of them.

A process announces its windows on a bus. Asking a window of another process sends the frame there and brings the editor's
frames back, under the same id; ids begin with the name of the process that asks. When a process is gone, so are its windows
and its questions. Knows windows and a bus; it must not know what carries the bus.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from toolgate.bridge.bus_messages import (
    BusMessage,
    EditorReplyFrameMessage,
    ExchangeFailedMessage,
    ExchangeSignalMessage,
    MemberAliveMessage,
    MemberJoinedMessage,
    OpenExchangeMessage,
    WindowAnnouncedMessage,
    WindowDescriptionChangedMessage,
    WindowLeftMessage,
    decode_bus_message,
    encode_bus_message,
)
from toolgate.bridge.exchange import MAX_UNREAD, EditorExchange, EditorExchangeTimeouts, Signal
from toolgate.bridge.frames import (
    REPLACED,
    BridgeDeltaFrame,
    BridgeDoneFrame,
    BridgeErrorFrame,
    BridgeModelAskedFrame,
    BridgeWaitingFrame,
    ExchangeFrame,
    MalformedFrame,
    decode_frame,
)
from toolgate.bridge.session import BridgeSessionOptions, EditorSession
from toolgate.bridge.windows import EditorWindows, ExchangeKind, WindowState
from toolgate.conversation.errors import GatewayOverloaded, UpstreamRejected, UpstreamUnreachable
from toolgate.conversation.random_ids import random_suffix
from toolgate.scheduling import FairSlots, QueueFull

# How often a process announces that it is alive, on a bus that does not notice by itself.
ALIVE_SECONDS = 2.0
# Bytes of a frame that is passed on to another process, which decodes it on its loop; more could not wait there anyway.
MAX_RELAYED = 2 * MAX_UNREAD
# After how much silence a process is gone, if the bus has not noticed that it receives nothing.
GONE_SECONDS = 16.0

_SLOT_SECONDS = 8.0  # less than an editor may take to start
_MAX_WINDOWS = 1024


class BridgeBus(Protocol):
    """Carries messages between the processes that share windows; those of one sender arrive in their order."""

    # Whether members must announce that they are alive, because the bus does not notice when one is gone.
    heartbeat: bool

    def open(self, member: str, receive: Callable[[str, bytes], None], lost: Callable[[str | None], None]) -> None:
        """Join as this member. `receive` gets the sender and the message, `lost` a member that is gone, None for all."""

    def send(self, to: str | None, message: bytes) -> None:
        """Send a message to one member, or to all others; it never fails, and a member that is gone gets nothing."""

    async def aclose(self) -> None:
        """Leave."""


class BridgeBusMember:
    """The part of one process; `member` is its name."""

    def __init__(self, windows: EditorWindows, bus: BridgeBus | None = None) -> None:
        self.member = random_suffix(8)
        self._windows = windows
        self._bus = bus
        self._own: dict[str, EditorSession] = {}
        self._announced: dict[str, WindowState] = {}
        self._remote: dict[str, dict[str, RemoteWindow]] = {}
        self._seen: dict[str, float] = {}
        self._exchanges: dict[str, tuple[RemoteWindow, EditorExchange]] = {}
        self._served: dict[str, dict[str, _RelayedExchange]] = {}
        self._ids = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None

    @property
    def id_prefix(self) -> str:
        """The beginning of the ids of exchanges of windows that are connected here."""
        return f"{self.member}-"

    def open(self) -> None:
        """Join the bus and ask the others for their windows."""
        if self._bus is None:
            return
        self._bus.open(self.member, self._receive, self._lose_member)
        self._send(None, MemberJoinedMessage())
        if self._bus.heartbeat:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def aclose(self) -> None:
        """Say that all windows of this process leave."""
        for session in tuple(self._own):
            self._send(None, WindowLeftMessage(session))
        tasks = [*self._tasks, *([self._beating] if self._beating is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._bus is not None:
            await self._bus.aclose()

    def announce(self, session: EditorSession) -> None:
        """Publish what is known of a window of this process."""
        state = session.state
        self._own[state.session] = session
        before = self._announced.get(state.session)
        self._announced[state.session] = state
        # The focus changes often: the lists of models and tools, of up to 2 MiB, are not sent with it.
        if before is not None and before.models is state.models and before.tools is state.tools:
            message = WindowDescriptionChangedMessage(state.session, state.window, state.lends, state.focused_at)
            self._send(None, message)
        else:
            self._send(None, WindowAnnouncedMessage(state))

    def withdraw(self, session: EditorSession) -> None:
        """Publish that a window of this process is gone."""
        self._own.pop(session.state.session, None)
        self._announced.pop(session.state.session, None)
        self._send(None, WindowLeftMessage(session.state.session))

    def open_exchange(self, window: "RemoteWindow", timeouts: EditorExchangeTimeouts) -> EditorExchange:
        """Return a new exchange with a window of another process."""
        id = f"{self.member}_{next(self._ids)}"
        exchange = EditorExchange(id, window.state.title, timeouts, window.signal)
        self._exchanges[id] = window, exchange
        return exchange

    def send_frame(
        self, window: "RemoteWindow", exchange: EditorExchange, kind: ExchangeKind, caller: str, frame: bytes
    ) -> None:
        """Send the frame of an exchange to the process that has the window."""
        self._send(window.member, OpenExchangeMessage(window.state.session, exchange.id, kind, caller, Raw(frame)))

    def send_signal(self, window: "RemoteWindow", exchange: EditorExchange, signal: Signal) -> None:
        """Pass a signal on to the process that has the window."""
        if signal == "cancel":  # frames that are on their way find no exchange
            self._exchanges.pop(exchange.id, None)
        self._send(window.member, ExchangeSignalMessage(window.state.session, exchange.id, signal))

    def forget(self, exchange: EditorExchange) -> None:
        """Drop an exchange that is over."""
        self._exchanges.pop(exchange.id, None)

    def relay(self, member: str, id: str, frame: bytes, *, is_last: bool) -> None:
        """Send a frame of an editor to the process that asked."""
        if is_last:
            self._served.get(member, {}).pop(id, None)
        self._send(member, EditorReplyFrameMessage(id, Raw(frame)))

    def fail(self, member: str, id: str, message: str) -> None:
        """Tell the process that asked that the window is lost."""
        self._served.get(member, {}).pop(id, None)
        self._send(member, ExchangeFailedMessage(id, "lost", message))

    def _send(self, to: str | None, message: BusMessage) -> None:
        if self._bus is not None:
            self._bus.send(to, encode_bus_message(message))

    async def _beat(self) -> None:
        """Say that this process is alive, and drop those that have not said so for long.

        The members whose windows are used here are also addressed one by one: so the bus finds those that are gone.
        """
        clock = asyncio.get_running_loop().time
        while True:
            alive = MemberAliveMessage(tuple(self._own))
            for member in (None, *self._remote):
                self._send(member, alive)
            await asyncio.sleep(ALIVE_SECONDS)
            for member in [one for one, at in self._seen.items() if clock() - at > GONE_SECONDS]:
                self._lose_member(member)

    def _receive(self, sender: str, body: bytes) -> None:
        message = decode_bus_message(body)
        if sender == self.member or message is None:
            return
        self._seen[sender] = asyncio.get_running_loop().time()
        match message:
            case MemberJoinedMessage():
                for session in self._own.values():
                    self._send(sender, WindowAnnouncedMessage(session.state))
            case MemberAliveMessage(sessions):
                # A message about a window may be lost on the bus; the next heartbeat makes up for it.
                known = self._remote.get(sender, {})
                for session_id in set(known) - set(sessions):
                    self._remove(sender, session_id)
                if set(sessions) - set(known):
                    self._send(sender, MemberJoinedMessage())
            case WindowAnnouncedMessage(state):
                self._add(sender, state)
            case WindowDescriptionChangedMessage(session_id, window, lends, focused_at):
                if remote := self._remote.get(sender, {}).get(session_id):
                    remote.state = replace(remote.state, window=window, lends=lends, focused_at=focused_at)
                    self._windows.changed(lending=False)
            case WindowLeftMessage(session_id):
                self._remove(sender, session_id)
            case OpenExchangeMessage():
                task = asyncio.get_running_loop().create_task(self._serve(sender, message))  # it may wait for a slot
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case ExchangeSignalMessage(session_id, id, signal):
                self._signal_own(sender, session_id, id, signal)
            case EditorReplyFrameMessage(id, frame):
                self._deliver(id, bytes(frame))
            case ExchangeFailedMessage():
                self._fail_own(message)

    def _add(self, sender: str, state: WindowState) -> None:
        # A window that has reconnected through another process leaves a connection here that is not closed yet.
        for own in tuple(self._own.values()):
            if own.state.is_same_window(state) and own.state.since < state.since:
                own.end(REPLACED, "The window has connected again.")
        windows = self._remote.setdefault(sender, {})
        if remote := windows.get(state.session):
            remote.state = state
            self._windows.changed()
        elif len(windows) < _MAX_WINDOWS:
            windows[state.session] = RemoteWindow(self, sender, state)
            self._windows.add(windows[state.session])

    def _remove(self, sender: str, session: str) -> None:
        window = self._remote.get(sender, {}).pop(session, None)
        if window is not None:
            self._windows.remove(session)
            for exchange in [exchange for asked, exchange in self._exchanges.values() if asked is window]:
                self._exchanges.pop(exchange.id, None)
                exchange.lose("has left")

    def _lose_member(self, member: str | None) -> None:
        """Drop the windows and the questions of a process that is gone, or of all others."""
        for one in [member] if member is not None else {*self._remote, *self._served, *self._seen}:
            for session in tuple(self._remote.get(one, {})):
                self._remove(one, session)
            for relayed in tuple(self._served.pop(one, {}).values()):
                relayed.cancel()
            self._remote.pop(one, None)
            self._seen.pop(one, None)

    async def _serve(self, member: str, opened: OpenExchangeMessage) -> None:
        """Ask a window of this process for another one."""
        session = self._own.get(opened.session)
        if session is None:
            self._send(member, ExchangeFailedMessage(opened.id, "lost", "has left"))
            return
        relayed = _RelayedExchange(self, session, member, opened.id)
        self._served.setdefault(member, {})[opened.id] = relayed
        # Counting tokens takes no slot.
        slots = session.asks if opened.kind == "ask" else session.invocations if opened.kind == "invoke" else None
        if slots is not None and not await self._acquired(slots, opened):
            self._served.get(member, {}).pop(opened.id, None)
            text = f"{session.state.title} is answering as many requests as it may; try again shortly."
            self._send(member, ExchangeFailedMessage(opened.id, "full", text))
            return
        relayed.begin(slots)
        if relayed.cancelled:  # while it waited for the slot
            return
        try:
            await session.pass_on(bytes(opened.frame))
        except UpstreamRejected as fault:
            session.unroute(opened.id)
            self._served.get(member, {}).pop(opened.id, None)
            relayed.end()
            self._send(member, ExchangeFailedMessage(opened.id, "too_large", fault.message))
        except UpstreamUnreachable:
            relayed.lose("has left")

    async def _acquired(self, slots: FairSlots, opened: OpenExchangeMessage) -> bool:
        if slots.try_acquire():
            return True
        try:
            async with asyncio.timeout(_SLOT_SECONDS):
                await slots.wait(opened.caller)
        except (QueueFull, TimeoutError):
            return False
        return True

    def _signal_own(self, sender: str, session_id: str, id: str, signal: Signal) -> None:
        relayed = self._served.get(sender, {}).get(id)
        if relayed is None:
            return
        if signal == "cancel":
            self._served[sender].pop(id, None)
            relayed.cancel()
        elif session := self._own.get(session_id):
            session.signal(id, signal)

    def _deliver(self, id: str, raw: bytes) -> None:
        _, exchange = self._exchanges.get(id, (None, None))
        if exchange is None:
            return
        try:
            frame = decode_frame(raw)
        except MalformedFrame:  # the other process would have closed the connection
            frame = None
        if isinstance(
            frame, (BridgeDeltaFrame, BridgeModelAskedFrame, BridgeWaitingFrame, BridgeDoneFrame, BridgeErrorFrame)
        ):
            exchange.receive(frame)
            if exchange.over:
                self._exchanges.pop(id, None)

    def _fail_own(self, failed: ExchangeFailedMessage) -> None:
        _, exchange = self._exchanges.pop(failed.id, (None, None))
        if exchange is None:
            return
        match failed.reason:
            case "lost":
                exchange.lose(failed.message)
            case "full":
                exchange.fail(GatewayOverloaded(failed.message, code="upstream_full", retry_after=10))
            case "too_large":
                exchange.fail(UpstreamRejected(failed.message, code="context_length_exceeded"))


class RemoteWindow:
    """A window that is connected to another process (`toolgate.bridge.windows.EditorWindow`)."""

    def __init__(self, sharing: BridgeBusMember, member: str, state: WindowState) -> None:
        # The process that has the window shares its slots out; these only bound what is sent there to wait.
        options = BridgeSessionOptions()
        self.state = state
        self.member = member
        self.asks = FairSlots(options.queue, options.queue)
        self.invocations = FairSlots(options.queue, options.queue)
        self._sharing = sharing

    def exchange(self, timeouts: EditorExchangeTimeouts) -> EditorExchange:
        """Return a new exchange, whose frame is yet to be sent."""
        return self._sharing.open_exchange(self, timeouts)

    async def send(self, frame: bytes, exchange: EditorExchange, kind: ExchangeKind, caller: str) -> None:
        """Send the frame that begins an exchange; the process that has the window gives it a slot."""
        if len(frame) > self.state.max_frame:
            raise UpstreamRejected(
                f"The request has {len(frame)} bytes, and {self.state.title} takes {self.state.max_frame} at most.",
                code="context_length_exceeded",
            )
        self._sharing.send_frame(self, exchange, kind, caller, frame)

    def forget(self, exchange: EditorExchange) -> None:
        """Drop an exchange that is over."""
        self._sharing.forget(exchange)

    def signal(self, exchange: EditorExchange, signal: Signal) -> None:
        """Pass a signal on."""
        self._sharing.send_signal(self, exchange, signal)


class _RelayedExchange:
    """An exchange that a window of this process carries out for another process; it holds a slot until it is over."""

    def __init__(self, sharing: BridgeBusMember, session: EditorSession, member: str, id: str) -> None:
        self.cancelled = False
        self._sharing = sharing
        self._session = session
        self._member = member
        self._id = id
        self._slots: FairSlots | None = None
        self._begun = False

    def begin(self, slots: FairSlots | None) -> None:
        """Take the slot over, and the frames of this id; give the slot back if it was cancelled meanwhile."""
        self._slots = slots
        if self.cancelled:
            self.end()
            return
        self._begun = True
        self._session.route(self._id, self)

    def receive_raw(self, frame: ExchangeFrame, raw: bytes) -> None:
        if len(raw) > MAX_RELAYED:
            self.cancel()
            self._sharing.fail(self._member, self._id, f"sent a frame of more than {MAX_RELAYED >> 20} MiB")
            return
        is_last = isinstance(frame, (BridgeDoneFrame, BridgeErrorFrame))
        self._sharing.relay(self._member, self._id, raw, is_last=is_last)
        if is_last:
            self.end()

    def lose(self, how: str) -> None:
        self.end()
        self._sharing.fail(self._member, self._id, how)

    def cancel(self) -> None:
        """Cancel at the editor: the process that asked does not want the answer, or is gone."""
        self.cancelled = True
        if self._begun:
            self._session.signal(self._id, "cancel")
        self.end()

    def end(self) -> None:
        """Give the slot back; a second time does nothing."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.release()
