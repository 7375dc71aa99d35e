"""An editor for tests: a client of the bridge that lends models and tools and answers by a script.

It speaks `toolgate-bridge.v1` over a real socket, as the extension does, and keeps every frame that it received. A test says
what a model answers with a function of the `ask` frame that yields frames or parts; the default echoes the last text.
"""

import asyncio
import hmac
import json
import os
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

Frame = dict[str, Any]
Script = Callable[["ScriptedEditor", Frame], AsyncGenerator[Frame, None]]

PROTOCOL = "toolgate-bridge.v1"
GUARD = 30.0
"""Seconds after which a test that hangs fails."""

GPT: Frame = {
    "vendor": "copilot",
    "id": "gpt-4o",
    "family": "gpt-4o",
    "version": "2024-11-20",
    "name": "GPT-4o",
    "max_input_tokens": 64000,
    "access": True,
    "tools": True,
    "images": True,
}
SONNET: Frame = {**GPT, "id": "claude-sonnet-4", "family": "claude-sonnet-4", "name": "Claude Sonnet 4"}


def text(*fragments: str) -> list[Frame]:
    """Parts of text."""
    return [{"type": "text", "text": one} for one in fragments]


def call(name: str, input: Any, id: str = "call_1") -> Frame:
    """A part that calls a tool."""
    return {"type": "tool_call", "call_id": id, "name": name, "input": input}


def delta(*parts: Frame) -> Frame:
    """A frame with more of an answer."""
    return {"type": "delta", "parts": list(parts)}


def done(**fields: Any) -> Frame:
    """The last frame of an answer."""
    return {"type": "done", **fields}


def failure(code: str, message: str = "it failed", **fields: Any) -> Frame:
    """A frame that ends an exchange with an error."""
    return {"type": "error", "code": code, "message": message, **fields}


def replies(*frames: Frame) -> Script:
    """A script that sends these frames, whatever is asked."""

    async def script(editor: "ScriptedEditor", ask: Frame) -> AsyncGenerator[Frame, None]:
        for frame in frames:
            yield frame

    return script


async def echo(editor: "ScriptedEditor", ask: Frame) -> AsyncGenerator[Frame, None]:
    """Answer a question with its last text, a call with its input, and a count with the lengths."""
    match ask["type"]:
        case "ask":
            texts = [part["text"] for message in ask["messages"] for part in message["parts"] if part["type"] == "text"]
            yield {"type": "started"}
            yield delta(*text("You said: "))
            yield delta(*text(texts[-1] if texts else "nothing"))
            yield done(usage={"input": 7, "output": 5})
        case "invoke":
            yield done(parts=text(json.dumps(ask["input"])))
        case "count":
            yield done(tokens=[len(one) for one in ask["texts"]])


def proof(token: str, side: str, gateway_nonce: str, editor_nonce: str, address: str) -> str:
    """The proof of one side, computed apart from the code under test."""
    message = "\n".join([PROTOCOL, side, gateway_nonce, editor_nonce, address])
    return hmac.new(token.encode(), message.encode(), "sha256").hexdigest()


def token() -> str:
    """The token of this machine's gateways, from the file that they made."""
    return Path(os.environ["TOOLGATE_BRIDGE_TOKEN_FILE"]).read_text().strip()


class ScriptedEditor:
    """One window that has joined; `frames` keeps what it received, `script` answers what it is asked."""

    def __init__(self, socket: ClientConnection, window: Frame) -> None:
        self.frames: list[Frame] = []
        self.script: Script = echo
        self.window = window
        self.welcome: Frame = {}
        self._socket = socket
        self._arrived = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._revisions = 0

    async def send(self, frame: Frame) -> None:
        """Send a frame."""
        await self._socket.send(json.dumps(frame))

    async def send_text(self, text: str) -> None:
        """Send a message that need be no frame."""
        with suppress(ConnectionClosed):
            await self._socket.send(text)

    async def send_fragments(self, fragments: Iterable[str]) -> None:
        """Send a message in fragments."""
        with suppress(ConnectionClosed):
            await self._socket.send(fragments)

    async def lend(self, models: list[Frame] | None = None, tools: list[Frame] | None = None) -> None:
        """Lend these models and tools; None leaves the others as they are."""
        self._revisions += 1
        if models is not None:
            await self.send({"type": "models", "rev": self._revisions, "items": models})
        if tools is not None:
            await self.send({"type": "tools", "rev": self._revisions, "items": tools})
        await self.round_trip()

    async def focus(self, focused: bool = True, **changes: Any) -> None:
        """Tell that the window was focused, or has changed."""
        self.window = {**self.window, "focused": focused, **changes}
        await self.send({"type": "window", "window": self.window})
        await self.round_trip()

    async def round_trip(self) -> None:
        """Wait until the gateway has handled everything that was sent before."""
        self._revisions += 1
        number = self._revisions
        await self.send({"type": "ping", "n": number})
        await self.received("pong", n=number)

    async def round_trip_or_close(self) -> None:
        """Wait until the gateway has handled everything that was sent before, or has closed the connection."""
        with suppress(ConnectionClosed):
            trip = asyncio.ensure_future(self.round_trip())
            gone = asyncio.ensure_future(self._socket.wait_closed())
            await asyncio.wait({trip, gone}, return_when=asyncio.FIRST_COMPLETED)
            trip.cancel()
            gone.cancel()

    async def received(self, type: str, **fields: Any) -> Frame:
        """Wait for a frame of this type and fields, and return the first."""
        async with asyncio.timeout(GUARD):
            while True:
                self._arrived.clear()
                for frame in self.frames:
                    if frame["type"] == type and fields.items() <= frame.items():
                        return frame
                await self._arrived.wait()

    def all(self, type: str) -> list[Frame]:
        """All frames of this type so far."""
        return [frame for frame in self.frames if frame["type"] == type]

    @contextmanager
    def not_reading(self) -> Iterator[None]:
        """Read nothing from the socket meanwhile, whose kernel keeps little for it."""
        self._socket.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 65536)
        self._socket.transport.pause_reading()
        try:
            yield
        finally:
            self._socket.transport.resume_reading()

    def kill(self) -> None:
        """Break the connection off, as a killed process does."""
        self._socket.transport.abort()

    async def closed(self) -> int:
        """Wait until the connection is closed, and return its code."""
        async with asyncio.timeout(GUARD):
            await self._socket.wait_closed()
        return self._socket.close_code or 0

    async def listen(self) -> None:
        """Receive frames and answer them until the connection is closed."""
        with suppress(ConnectionClosed):
            async for message in self._socket:
                frame = json.loads(message)
                self.frames.append(frame)
                self._handle(frame)
                self._arrived.set()
        for task in self._tasks.values():
            task.cancel()

    def _handle(self, frame: Frame) -> None:
        loop = asyncio.get_running_loop()
        match frame["type"]:
            case "ping":
                self._tasks[f"ping {frame['n']}"] = loop.create_task(self.send({"type": "pong", "n": frame["n"]}))
            case "ask" | "invoke" | "count":
                self._tasks[frame["id"]] = loop.create_task(self._answer(frame))
            case "cancel":
                if task := self._tasks.get(frame["id"]):
                    task.cancel()

    async def _answer(self, frame: Frame) -> None:
        with suppress(ConnectionClosed):
            async for reply in self.script(self, frame):
                await self.send({"id": frame["id"], **reply})


async def dial(url: str, **options: Any) -> ClientConnection:
    """Open a socket to the bridge of the gateway at this URL."""
    return await connect(f"ws://{urlsplit(url).netloc}/bridge", max_size=None, proxy=None, **options)


async def greet(
    socket: ClientConnection, url: str, secret: str | None, nonce: str | None = None, address: str | None = None
) -> Frame:
    """Exchange proofs, and return the welcome."""
    challenge = json.loads(await socket.recv())
    nonce, address = nonce or uuid.uuid4().hex, urlsplit(url).netloc if address is None else address
    hello = {"type": "hello", "protocol": PROTOCOL, "nonce": nonce, "address": address}
    if secret is not None:
        hello["proof"] = proof(secret, "editor", challenge["nonce"], nonce, address)
    await socket.send(json.dumps(hello))
    welcome: Frame = json.loads(await socket.recv())
    if secret is not None:
        assert welcome["proof"] == proof(secret, "gateway", challenge["nonce"], nonce, address)
    return welcome


@asynccontextmanager
async def editor(
    url: str,
    *,
    models: list[Frame] | None = None,
    tools: list[Frame] | None = None,
    key: str | None = None,
    approvals: bool = False,
    script: Script | None = None,
    **window: Any,
) -> AsyncIterator[ScriptedEditor]:
    """A window that has joined the gateway at this URL and lends these models and tools."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    socket = await dial(url, additional_headers=headers)
    try:
        welcome = await greet(socket, url, None if key else token())
        described: Frame = {
            "id": str(uuid.uuid4()),
            "folders": ["project"],
            "remote": None,
            "focused": True,
            "context": {},
        }
        one = ScriptedEditor(socket, {**described, **window})
        one.welcome = welcome
        one.script = script or echo
        register = {
            "type": "register",
            "editor": {"name": "Scripted", "version": "1.139.1"},
            "extension": {"version": "0.0.1"},
            "window": one.window,
            "lends": {"models": True, "tools": True, "approvals": approvals},
            "max_frame": 16 * 1024 * 1024,
        }
        await one.send(register)
        listening = asyncio.get_running_loop().create_task(one.listen())
        try:
            await one.lend([GPT] if models is None else models, tools or [])
            yield one
        finally:
            if socket.state is State.OPEN:
                await socket.close()
            await listening
    finally:
        if not socket.transport.is_closing():
            socket.transport.abort()
