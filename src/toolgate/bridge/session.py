"""One connection of an editor: what its window lends, and the exchanges on it.

The connection is watched all the time, so that a loss is known at once and every open exchange fails. Knows frames; it
must not know HTTP.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.bridge.bound_lent_items import bounded_window, usable_models, usable_tools
from toolgate.bridge.exchange import EditorExchange, EditorExchangeTimeouts, Signal
from toolgate.bridge.frame_connection import BridgeProtocolError, BridgeSocket, FrameConnection
from toolgate.bridge.frames import (
    NOT_A_FRAME,
    REPLACED,
    SILENCE,
    BridgeApprovalAnswerFrame,
    BridgeCancelFrame,
    BridgeDeltaFrame,
    BridgeDoneFrame,
    BridgeErrorFrame,
    BridgeHelloFrame,
    BridgeModelAskedFrame,
    BridgeModelsFrame,
    BridgePauseWritingFrame,
    BridgePingFrame,
    BridgePongFrame,
    BridgeRegisterWindowFrame,
    BridgeResumeWritingFrame,
    BridgeToolsFrame,
    BridgeWaitingFrame,
    BridgeWindowChangedFrame,
    ExchangeFrame,
    FromEditor,
    MalformedFrame,
    ToEditor,
    decode_frame_and_text,
    encode_frame,
)
from toolgate.bridge.handshake import BridgeCredentials, join
from toolgate.bridge.windows import EditorWindows, ExchangeKind, WindowState
from toolgate.conversation.errors import UpstreamRejected, UpstreamUnreachable
from toolgate.engine.json_thread import run_in_thread
from toolgate.scheduling import FairSlots

# Answers to approvals that are stored at the same time; nothing is received while there are more.
_MAX_ANSWERING = 16


class BridgeSessionOptions(Struct, frozen=True):
    """Seconds of the handshake, between two pings and until silence ends the session; slots of the window."""

    handshake: float = 10.0
    heartbeat: float = 5.0
    silence: float = 30.0
    asks: int = 16
    invocations: int = 16
    queue: int = 64


class ExchangeReceiver(Protocol):
    """Receives the frames of one exchange: its reader is in this process or in another one."""

    def receive_raw(self, frame: ExchangeFrame, raw: bytes) -> None:
        """Take a frame."""

    def lose(self, how: str) -> None:
        """Fail: the connection is lost."""


class _OwnReceiver:
    """Passes frames to an exchange of this process."""

    __slots__ = ("exchange",)

    def __init__(self, exchange: EditorExchange) -> None:
        self.exchange = exchange

    def receive_raw(self, frame: ExchangeFrame, raw: bytes) -> None:
        self.exchange.receive(frame)

    def lose(self, how: str) -> None:
        self.exchange.lose(how)


OnApprovalAnswer = Callable[["EditorSession", BridgeApprovalAnswerFrame], Awaitable[None]]


class EditorSession:
    """A window that is connected to this process (`toolgate.bridge.windows.EditorWindow`)."""

    def __init__(
        self,
        socket: BridgeSocket,
        admission: BridgeCredentials,
        windows: EditorWindows,
        options: BridgeSessionOptions | None = None,
        *,
        member: str = "",
        on_answer: OnApprovalAnswer | None = None,
        on_change: Callable[["EditorSession"], None] = lambda session: None,
        on_leave: Callable[["EditorSession"], None] = lambda session: None,
    ) -> None:
        """`member` is this process's part of exchange ids; `on_answer` takes answers to approvals.

        `on_change` is called when the window has joined, changed what it lends, or its focus; `on_leave` when it is gone.
        """
        self._connection = FrameConnection(socket)
        self._admission = admission
        self._windows = windows
        self._options = options = options or BridgeSessionOptions()
        self._member = member
        self._on_answer = on_answer
        self._on_change = on_change
        self._on_leave = on_leave
        self._ids = count(1)
        self._receivers: dict[str, ExchangeReceiver] = {}
        self._state: WindowState | None = None
        self._model_rev = self._tool_rev = -1
        self._received_at = 0.0
        self._pings = count(1)
        self._answering: set[asyncio.Task[None]] = set()
        self.asks = FairSlots(options.asks, options.queue)
        self.invocations = FairSlots(options.invocations, options.queue)

    @property
    def state(self) -> WindowState:
        """What is known of the window; a session is used only after its window has joined."""
        assert self._state is not None
        return self._state

    @property
    def owner(self) -> str:
        """The key by which the editor has joined; empty for the token of this machine."""
        return self._admission.owner

    async def serve(self) -> None:
        """Let the editor join, and receive its frames until either side closes the connection."""
        how, options = "has left", self._options
        try:
            self._state = await join(
                self._connection, self._admission, seconds=options.handshake, heartbeat=options.heartbeat
            )
            if self._state is not None:
                self._replace_earlier()
                self._windows.add(self)
                self._on_change(self)
                await self._receive_all()
        except BridgeProtocolError as fault:
            self._connection.end(fault.code, fault.reason)
        except MalformedFrame as error:
            self._connection.end(NOT_A_FRAME, f"Not a frame: {error}"[:100])
            how = "does not keep to the protocol"
        except asyncio.CancelledError:
            how = "was disconnected because the server stops or its key is not valid any more"
            self._connection.end(1012, "The server stops.")  # "service restart": the editor dials again
            raise
        finally:
            # First out of the list, so that no request chooses this window any more.
            if self._state is not None:
                self._windows.remove(self._state.session)
                self._on_leave(self)
            reason = self._connection.ending
            receivers, self._receivers = self._receivers, {}
            for receiver in receivers.values():
                receiver.lose(how if reason is None else f"{how} ({reason})")
            for task in self._answering:
                task.cancel()
            await self._connection.aclose()

    def _replace_earlier(self) -> None:
        """Close the earlier connection of the same window."""
        for other in self._windows.ordered:
            if other.state.is_same_window(self.state):
                self._windows.remove(other.state.session)
                if isinstance(other, EditorSession):  # else its own process ends it when this window is announced
                    other.end(REPLACED, "The window has connected again.")

    async def _receive_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._received_at = loop.time()
        self._watch = loop.call_later(self._options.heartbeat, self._tick)
        # Most frames are deltas: passing them on in the callback of the socket saves a task switch for each.
        self._connection.handle_at_once(self._handle_at_once)
        try:
            while await self._receive_next():
                pass
        finally:
            self._watch.cancel()

    async def _receive_next(self) -> bool:
        """Receive a frame, which is not kept while the next one is waited for; False once the connection is over."""
        received = await self._connection.receive()
        if received is None:
            return False
        self._received_at = asyncio.get_running_loop().time()
        frame, text = received
        if isinstance(frame, BridgePingFrame):  # an editor that does not read gets no more pongs
            await self._connection.send(encode_frame(BridgePongFrame(frame.n)))
        while isinstance(frame, BridgeApprovalAnswerFrame) and len(self._answering) >= _MAX_ANSWERING:
            await asyncio.wait(self._answering, return_when=asyncio.FIRST_COMPLETED)
        if isinstance(frame, BridgeToolsFrame):  # measuring many of them takes long
            frame = replace(frame, items=await run_in_thread(usable_tools, frame.items))
        self._receive(frame, text)
        return True

    def _handle_at_once(self, text: bytes) -> bool:
        """Pass a frame to its exchange without waiting for the task of this session; False for any other frame."""
        try:
            frame, text = decode_frame_and_text(text)
        except MalformedFrame:  # found again by the task, which closes the connection
            return False
        if not isinstance(
            frame, (BridgeDeltaFrame, BridgeModelAskedFrame, BridgeWaitingFrame, BridgeDoneFrame, BridgeErrorFrame)
        ):
            return False
        self._received_at = asyncio.get_running_loop().time()
        self._receive(frame, text)
        return True

    def _tick(self) -> None:
        """Send a ping; end a session that was silent for too long."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._received_at > self._options.silence:
            self.end(SILENCE, "Nothing was received for too long.")
            return
        self.write(BridgePingFrame(next(self._pings)))
        self._watch = loop.call_later(self._options.heartbeat, self._tick)

    def _receive(self, frame: FromEditor, raw: bytes) -> None:
        match frame:
            case BridgeDeltaFrame(id=id) | BridgeModelAskedFrame(id=id) | BridgeWaitingFrame(id=id):
                if receiver := self._receivers.get(id):
                    receiver.receive_raw(frame, raw)
            # An unknown id is of an exchange that was cancelled: the editor may have sent frames of it before.
            case BridgeDoneFrame(id=id) | BridgeErrorFrame(id=id):
                if receiver := self._receivers.pop(id, None):
                    receiver.receive_raw(frame, raw)
            case BridgePingFrame() | BridgePongFrame():
                pass
            case BridgeModelsFrame(rev=rev, items=items):
                if rev > self._model_rev:
                    self._model_rev = rev
                    self._lend(replace(self.state, models=usable_models(items)))
            case BridgeToolsFrame(rev=rev, items=items):
                if rev > self._tool_rev:
                    self._tool_rev = rev
                    self._lend(replace(self.state, tools=items))
            case BridgeWindowChangedFrame():
                self._update_window(frame)
            case BridgeApprovalAnswerFrame():
                if self._on_answer is not None:
                    task = asyncio.ensure_future(self._on_answer(self, frame))  # storage takes its time
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
            case BridgeHelloFrame() | BridgeRegisterWindowFrame():
                raise MalformedFrame("out of turn")

    def _lend(self, changed: WindowState) -> None:
        if changed != self._state:
            self._state = changed
            self._windows.changed()
            self._on_change(self)

    def _update_window(self, frame: BridgeWindowChangedFrame) -> None:
        state, window = self.state, bounded_window(frame.window)
        if window.id != state.window.id:
            raise MalformedFrame("a window keeps its id")
        focused_at = time.time() if window.focused else state.focused_at
        self._state = replace(state, window=window, lends=frame.lends or state.lends, focused_at=focused_at)
        # Context keys decide which tools are offered, but not which there are.
        self._windows.changed(lending=False)
        self._on_change(self)

    def exchange(self, timeouts: EditorExchangeTimeouts) -> EditorExchange:
        """Return a new exchange, whose frame is yet to be sent."""
        exchange = EditorExchange(
            f"{self._member}{next(self._ids)}",
            self.state.title,
            timeouts,
            lambda exchange, signal: self.signal(exchange.id, signal),
        )
        self._receivers[exchange.id] = _OwnReceiver(exchange)
        return exchange

    async def send(self, frame: bytes, exchange: EditorExchange, kind: ExchangeKind, caller: str) -> None:
        """Send the frame that begins an exchange."""
        await self.pass_on(frame)

    async def pass_on(self, frame: bytes) -> None:
        """Send a frame that is encoded already; UpstreamRejected if it is longer than the editor takes."""
        if len(frame) > self.state.max_frame:
            raise UpstreamRejected(
                f"The request has {len(frame)} bytes, and {self.state.title} takes {self.state.max_frame} at most.",
                code="context_length_exceeded",
            )
        if not self._connection.open:
            raise UpstreamUnreachable(f"{self.state.title} has left", status=503)
        await self._connection.send(frame)

    def forget(self, exchange: EditorExchange) -> None:
        """Drop an exchange that is over."""
        self._receivers.pop(exchange.id, None)

    def route(self, id: str, receiver: ExchangeReceiver) -> None:
        """Pass the frames of an exchange of another process to this receiver."""
        self._receivers[id] = receiver

    def unroute(self, id: str) -> None:
        """Drop an exchange of another process, whose frame was not sent."""
        self._receivers.pop(id, None)

    def signal(self, id: str, signal: Signal) -> None:
        """Cancel, pause or resume an exchange at the editor."""
        match signal:
            case "cancel":
                self._receivers.pop(id, None)
                self.write(BridgeCancelFrame(id))
            case "pause":
                self.write(BridgePauseWritingFrame(id))
            case "resume":
                self.write(BridgeResumeWritingFrame(id))

    def write(self, frame: ToEditor) -> None:
        """Send a short frame at once."""
        self._connection.write(frame)

    async def write_when_read(self, frame: ToEditor) -> None:
        """Send a frame after the editor has read enough of what was sent before."""
        await self._connection.send(encode_frame(frame))

    def end(self, code: int, reason: str) -> None:
        """Close the connection soon."""
        self._connection.end(code, reason)
