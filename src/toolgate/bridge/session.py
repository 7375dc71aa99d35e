"""One connection of an editor: the handshake, what its window lends, and the exchanges on it.

Nothing is told to the other side before it has proven that it knows the token. The connection is watched all the time, so
that a loss is known at once and every open exchange fails. Knows frames and a socket that carries messages; it must not
know HTTP.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from toolgate import __version__
from toolgate.bridge.exchange import EditorExchange, ExchangeTimeouts, Signal
from toolgate.bridge.frames import (
    BAD_PROOF,
    LARGE_FRAME,
    MAX_FRAME,
    NO_COMMON_PROTOCOL,
    NOT_A_FRAME,
    REPLACED,
    SILENCE,
    ApprovalAnswerFrame,
    BridgePingFrame,
    BridgePongFrame,
    BridgeWelcomeFrame,
    CancelExchangeFrame,
    ChallengeFrame,
    EditorHelloFrame,
    ExchangeDoneFrame,
    ExchangeErrorFrame,
    ExchangeFrame,
    FromEditor,
    GatewayIdentity,
    LentModel,
    LentModelsFrame,
    LentTool,
    LentToolsFrame,
    MalformedFrame,
    PauseFrame,
    PiecesFrame,
    RegisterFrame,
    ResumeFrame,
    StartedFrame,
    ToEditor,
    WaitingFrame,
    WindowDescription,
    WindowFrame,
    decode_frame,
    encode_frame,
)
from toolgate.bridge.proof import PROTOCOL, is_proof, new_nonce, prove
from toolgate.bridge.windows import EditorWindows, ExchangeKind, WindowState
from toolgate.conversation import ids
from toolgate.conversation.errors import UpstreamRejected, UpstreamUnreachable
from toolgate.engine.json_thread import run_in_thread
from toolgate.scheduling import FairSlots

OWN_VENDOR, OWN_TOOLS = "toolgate", "mcp_toolgate_"
"""What an editor has from us is not taken back: requests would go round in a ring."""

MAX_MODELS, MAX_TOOLS = 256, 1024
_MAX_FOLDERS, _MAX_CONTEXT, _MAX_CONTEXT_TEXT = 32, 64, 256
_MAX_NAME, _MAX_DESCRIPTION, _MAX_TAGS = 128, 16 * 1024, 32
_VENDOR = re.compile(r"[^\s/]+")
_BLANK = re.compile(r"\s")
_TOOL_NAME = re.compile(r"[\w-]+")
_Kind = TypeVar("_Kind", EditorHelloFrame, RegisterFrame)


class BridgeSocket(Protocol):
    """The socket, as far as a session uses it."""

    gone: bool

    @property
    def has_messages(self) -> bool:
        """Whether a message waits for `receive`."""

    def handle_at_once(self, handle: Callable[[bytes], bool]) -> None:
        """Offer every message to `handle` as soon as it is read; one that it does not take waits for `receive`."""

    async def receive(self) -> bytes | None:
        """Return the next message; None if the connection is gone or `wake` was called."""

    async def send(self, *texts: bytes) -> None:
        """Send messages, after the other side has read enough of what was sent before."""

    def write(self, *texts: bytes) -> None:
        """Send messages at once."""

    def wake(self) -> None:
        """Let `receive` return."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""


class SessionOptions(Struct, frozen=True):
    """Seconds of the handshake, between two pings and until silence ends the session; slots of the window."""

    handshake: float = 10.0
    heartbeat: float = 5.0
    silence: float = 30.0
    asks: int = 16
    invocations: int = 16
    queue: int = 64


class Admission(Struct, frozen=True):
    """How the other side may join: by proving the `token` for this `port`, or by the key of this `owner`."""

    token: str = ""
    port: int = 0
    owner: str = ""


class FrameReceiver(Protocol):
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


OnApprovalAnswer = Callable[["EditorSession", ApprovalAnswerFrame], Awaitable[None]]


class EditorSession:
    """A window that is connected to this process (`toolgate.bridge.windows.EditorWindow`)."""

    def __init__(
        self,
        socket: BridgeSocket,
        admission: Admission,
        windows: EditorWindows,
        options: SessionOptions | None = None,
        *,
        member: str = "",
        on_answer: OnApprovalAnswer | None = None,
        on_change: Callable[["EditorSession"], None] = lambda session: None,
        on_leave: Callable[["EditorSession"], None] = lambda session: None,
    ) -> None:
        """`member` is this process's part of exchange ids; `on_answer` takes answers to approvals.

        `on_change` is called when the window has joined, changed what it lends, or its focus; `on_leave` when it is gone.
        """
        self._socket = socket
        self._admission = admission
        self._windows = windows
        self._options = options = options or SessionOptions()
        self._member = member
        self._on_answer = on_answer
        self._on_change = on_change
        self._on_leave = on_leave
        self._ids = count(1)
        self._receivers: dict[str, FrameReceiver] = {}
        self._closing: tuple[int, str] | None = None
        self._state: WindowState | None = None
        self._model_rev = self._tool_rev = -1
        self._received_at = 0.0
        self._at_once = False  # whether nothing that was received before is still to be handled
        self._pings = count(1)
        self._answering: set[asyncio.Task[None]] = set()
        self.asks = FairSlots(options.asks, options.queue)
        self.invocations = FairSlots(options.invocations, options.queue)

    @property
    def state(self) -> WindowState:
        """What is known of the window; it has joined, or nobody would have this session."""
        assert self._state is not None
        return self._state

    @property
    def owner(self) -> str:
        """The key by which the editor has joined; empty for the token of this machine."""
        return self._admission.owner

    async def serve(self) -> None:
        """Let the editor join, and receive its frames until either side closes the connection."""
        how = "has left"
        try:
            if await self._join():
                self._windows.add(self)
                await self._receive_all()
        except MalformedFrame as error:
            self._close(NOT_A_FRAME, f"Not a frame: {error}"[:100])
            how = "does not keep to the protocol"
        except asyncio.CancelledError:
            how = "was disconnected because the server stops or its key is not valid any more"
            self._close(1012, "The server stops.")
            raise
        finally:
            if self._state is not None:
                self._windows.remove(self._state.session)
                self._on_leave(self)
            self._lose_all(how if self._closing is None else f"{how} ({self._closing[1]})")
            for task in self._answering:
                task.cancel()
            code, reason = self._closing or (1000, "")
            await self._socket.close(code, reason)

    async def _join(self) -> bool:
        """Exchange proofs and learn who joins; False if the connection must be closed."""
        nonce, admission = new_nonce(), self._admission
        self._write(ChallengeFrame((PROTOCOL,), nonce, "key" if admission.owner else "token"))
        hello = await self._first(EditorHelloFrame)
        if hello is None:
            return False
        if hello.protocol != PROTOCOL:
            return self._close(NO_COMMON_PROTOCOL, f"Only {PROTOCOL} is spoken here.")
        proof: str | None = None
        if not admission.owner:
            token, address = admission.token, hello.address
            right_port = address.rpartition(":")[2] == str(admission.port)
            if not is_proof(hello.proof or "", token, "editor", nonce, hello.nonce, address) or not right_port:
                return self._close(BAD_PROOF, "The proof is wrong.")
            proof = prove(token, "gateway", nonce, hello.nonce, address)
        session = f"bridge_{ids.random_suffix(16)}"
        identity = GatewayIdentity("toolgate", __version__)
        self._write(BridgeWelcomeFrame(PROTOCOL, session, self._options.heartbeat, MAX_FRAME, identity, proof))
        register = await self._first(RegisterFrame)
        if register is None:
            return False
        now = time.time()
        self._state = WindowState(
            session=session,
            window=_bounded(register.window),
            editor=register.editor,
            lends=register.lends,
            owner=admission.owner,
            focused_at=now if register.window.focused else 0.0,
            since=now,
            max_frame=min(register.max_frame, MAX_FRAME),
        )
        self._replace_earlier()
        self._on_change(self)
        return True

    async def _first(self, kind: type[_Kind]) -> _Kind | None:
        """Return the next frame if it is of this kind; None if the connection is or must be closed."""
        try:
            async with asyncio.timeout(self._options.handshake):
                while not self._socket.gone and self._closing is None:
                    message = await self._socket.receive()
                    if message is None:
                        continue
                    frame = await self._decode(message)
                    if isinstance(frame, kind):
                        return frame
                    if frame is not None and not isinstance(frame, (BridgePingFrame, BridgePongFrame)):
                        raise MalformedFrame("out of turn")
        except TimeoutError:
            self._close(SILENCE, "The handshake took too long.")
        return None

    def _replace_earlier(self) -> None:
        """Close the earlier connection of the same window."""
        for other in self._windows.ordered:
            state = other.state
            if state.window.id == self.state.window.id and state.owner == self.state.owner:
                self._windows.remove(state.session)
                if isinstance(other, EditorSession):
                    other.end(REPLACED, "The window has connected again.")

    async def _receive_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._received_at = loop.time()
        watch = loop.call_later(self._options.heartbeat, self._tick)
        self._watch = watch
        self._socket.handle_at_once(self._handle_at_once)
        try:
            while not self._socket.gone and self._closing is None:
                self._at_once = not self._socket.has_messages
                message = await self._socket.receive()
                self._at_once = False
                if message is not None:
                    self._received_at = loop.time()
                    frame = await self._decode(message)
                    if frame is not None:
                        self._receive(frame, message)
        finally:
            self._watch.cancel()

    def _handle_at_once(self, message: bytes) -> bool:
        """Pass a frame to its exchange without waiting for the task of this session; False for any other frame."""
        if not self._at_once or len(message) > LARGE_FRAME or self._closing is not None:
            self._at_once = False
            return False
        try:
            frame = decode_frame(message)
        except MalformedFrame:  # found again by the task, which closes the connection
            frame = None
        if isinstance(frame, (PiecesFrame, StartedFrame, WaitingFrame, ExchangeDoneFrame, ExchangeErrorFrame)):
            self._received_at = asyncio.get_running_loop().time()
            self._receive(frame, message)
            return True
        self._at_once = False
        return False

    async def _decode(self, message: bytes) -> FromEditor | None:
        if len(message) <= LARGE_FRAME:
            return decode_frame(message)
        return await run_in_thread(decode_frame, message)

    def _tick(self) -> None:
        """Send a ping; end a session that was silent for too long."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._received_at > self._options.silence:
            self.end(SILENCE, "Nothing was received for too long.")
            return
        self._write(BridgePingFrame(next(self._pings)))
        self._watch = loop.call_later(self._options.heartbeat, self._tick)

    def _receive(self, frame: FromEditor, raw: bytes) -> None:
        match frame:
            case PiecesFrame(id=id) | StartedFrame(id=id) | WaitingFrame(id=id):
                if receiver := self._receivers.get(id):
                    receiver.receive_raw(frame, raw)
            case ExchangeDoneFrame(id=id) | ExchangeErrorFrame(id=id):
                if receiver := self._receivers.pop(id, None):
                    receiver.receive_raw(frame, raw)
            case BridgePongFrame():
                pass
            case BridgePingFrame(n=n):
                self._write(BridgePongFrame(n))
            case LentModelsFrame(rev=rev, items=items):
                if rev > self._model_rev:
                    self._model_rev = rev
                    self._update(models=usable_models(items))
            case LentToolsFrame(rev=rev, items=items):
                if rev > self._tool_rev:
                    self._tool_rev = rev
                    self._update(tools=usable_tools(items))
            case WindowFrame():
                self._update_window(frame)
            case ApprovalAnswerFrame():
                if self._on_answer is not None:
                    task = asyncio.get_running_loop().create_task(self._answer(frame))  # storage takes its time
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
            case EditorHelloFrame() | RegisterFrame():
                raise MalformedFrame("out of turn")

    async def _answer(self, frame: ApprovalAnswerFrame) -> None:
        assert self._on_answer is not None
        await self._on_answer(self, frame)

    def _update(
        self, *, models: tuple[LentModel, ...] | None = None, tools: tuple[LentTool, ...] | None = None
    ) -> None:
        state = self.state
        changed = replace(
            state,
            models=state.models if models is None else models,
            tools=state.tools if tools is None else tools,
        )
        if changed != state and self._closing is None:
            self._state = changed
            self._windows.changed()
            self._on_change(self)

    def _update_window(self, frame: WindowFrame) -> None:
        state, window = self.state, _bounded(frame.window)
        if window.id != state.window.id:
            raise MalformedFrame("a window keeps its id")
        if self._closing is not None:
            return
        focused_at = time.time() if window.focused else state.focused_at
        self._state = replace(state, window=window, lends=frame.lends or state.lends, focused_at=focused_at)
        # Context keys decide which tools are offered, but not which there are.
        self._windows.changed(lending=False)
        self._on_change(self)

    def exchange(self, timeouts: ExchangeTimeouts) -> EditorExchange:
        """Return a new exchange, whose frame is yet to be sent."""
        exchange = EditorExchange(f"{self._member}{next(self._ids)}", self.state.title, timeouts, self._signal)
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
        if self._socket.gone or self._closing is not None:
            raise UpstreamUnreachable(f"{self.state.title} has left", status=503)
        await self._socket.send(frame)

    def forget(self, exchange: EditorExchange) -> None:
        """Drop an exchange that is over."""
        self._receivers.pop(exchange.id, None)

    def route(self, id: str, receiver: FrameReceiver) -> None:
        """Pass the frames of an exchange of another process to this receiver."""
        self._receivers[id] = receiver

    def signal(self, id: str, signal: Signal) -> None:
        """Cancel, pause or resume an exchange at the editor."""
        match signal:
            case "cancel":
                self._receivers.pop(id, None)
                self._write(CancelExchangeFrame(id))
            case "pause":
                self._write(PauseFrame(id))
            case "resume":
                self._write(ResumeFrame(id))

    def write(self, frame: ToEditor) -> None:
        """Send a short frame at once."""
        self._write(frame)

    def end(self, code: int, reason: str) -> None:
        """Close the connection soon."""
        self._close(code, reason)
        self._socket.wake()

    def _signal(self, exchange: EditorExchange, signal: Signal) -> None:
        self.signal(exchange.id, signal)

    def _write(self, frame: ToEditor) -> None:
        if not self._socket.gone and self._closing is None:
            self._socket.write(encode_frame(frame))

    def _close(self, code: int, reason: str) -> bool:
        self._closing = self._closing or (code, reason)
        return False

    def _lose_all(self, how: str) -> None:
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver.lose(how)


def usable_models(items: tuple[LentModel, ...]) -> tuple[LentModel, ...]:
    """Return the models that can be asked: named, with room for a prompt, not denied by the person, and not our own."""
    return tuple(
        [
            one
            for one in items[:MAX_MODELS]
            if one.access is not False
            and one.max_input_tokens > 0
            and one.vendor != OWN_VENDOR
            and _VENDOR.fullmatch(one.vendor)
            and one.id
            and len(one.vendor) + len(one.id) + len(one.family) <= _MAX_NAME
            and one.id.isprintable()
            and not _BLANK.search(one.id + one.family)
        ]
    )


def usable_tools(items: tuple[LentTool, ...]) -> tuple[LentTool, ...]:
    """Return the tools that can be called: named as the editor itself demands, and not our own."""
    return tuple(
        [
            replace(one, description=one.description[:_MAX_DESCRIPTION], tags=one.tags[:_MAX_TAGS])
            for one in items[:MAX_TOOLS]
            if _TOOL_NAME.fullmatch(one.name) and len(one.name) <= _MAX_NAME and not one.name.startswith(OWN_TOOLS)
        ]
    )


def _bounded(window: WindowDescription) -> WindowDescription:
    """Return the description with as many folders and context keys as are kept."""
    context = {
        name[:_MAX_NAME]: value
        for name, value in list(window.context.items())[:_MAX_CONTEXT]
        if _is_context_value(value)
    }
    return replace(window, folders=tuple([one[:_MAX_NAME] for one in window.folders[:_MAX_FOLDERS]]), context=context)


def _is_context_value(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= _MAX_FOLDERS and all(isinstance(one, str) and _is_context_value(one) for one in value)
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= _MAX_CONTEXT_TEXT)
