"""A measured server as a process of its own, its upstream in a thread of the test, and what a case may do with both.

A case says what the upstream answers, then sends something, and reads the answer to its end. Every request to the upstream
takes the next of the answers that were set; the last one serves all further requests.
"""

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.laws.loop import Overrun, decoded

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DIALECTS = ("openai_chat", "openai_responses", "anthropic", "ollama")
PATHS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "ollama": "/api/chat",
}
KEY = "key-of-the-loop-law"
HANG_SECONDS = 120.0
_LAST_EVENTS = (b'"type":"response.completed"', b'"type":"error"')
"""Only so that a server that never answers does not stop the tests for ever."""


def size(usual: int, all_cases: int) -> int:
    """How large a case is: of its usual size, or with `TOOLGATE_LAW_CASES=all` as large as the server takes it."""
    return all_cases if os.environ.get("TOOLGATE_LAW_CASES") == "all" else usual


class Served(Struct, frozen=True):
    """What the upstream sends for one request."""

    body: bytes | Iterable[bytes]
    content_type: str = "application/json"
    status: int = 200


def sse(body: bytes | Iterable[bytes]) -> Served:
    """A stream of server-sent events."""
    return Served(body, "text/event-stream")


def ndjson(body: bytes | Iterable[bytes]) -> Served:
    """A stream of JSON lines."""
    return Served(body, "application/x-ndjson")


def chat_answer(content: str = "Done.", **message: Any) -> Served:
    """A whole answer of a Chat Completions upstream."""
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return Served(json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode())


def call_answer(name: str, arguments: Any, count: int = 1) -> Served:
    """A whole answer that calls a tool."""
    function = {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    calls = [{"id": f"call_{number}", "type": "function", "function": function} for number in range(count)]
    return chat_answer("", tool_calls=calls)


class ReceivedResponse(Struct, frozen=True):
    """Status and body of an answer; status 0 if the connection was closed without one."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Upstream:
    """An HTTP server in a thread that answers every request by its script."""

    def __init__(self) -> None:
        self._answers: list[Served] = [chat_answer()]
        self._opened: queue.Queue[int] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._opened.get(timeout=30)}"

    def play(self, answers: Iterable[Served]) -> None:
        """Answer the next requests so."""
        self._answers = list(answers)

    def close(self) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._opened.put(server.sockets[0].getsockname()[1])
        await self._stopped.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, length = head.partition(b"content-length:")
            left = int(length.split(b"\r\n")[0] or 0) if length else 0
            while left:
                left -= len(await reader.read(min(left, 1 << 20)))
            served = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            writer.write(
                f"HTTP/1.1 {served.status} X\r\ncontent-type: {served.content_type}\r\nconnection: close\r\n\r\n".encode()
            )
            for piece in (served.body,) if isinstance(served.body, bytes) else served.body:
                writer.write(piece)
                await writer.drain()
        writer.close()


class Gateway:
    """The measured server; `url` is where it listens."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.upstream = Upstream()
        self._file = place / "toolgate.yaml"
        (place / "tools").mkdir()
        (place / "files").mkdir()
        (place / "tools" / "hostile.py").write_text((HERE / "tools_of_the_server.py").read_text())
        self._start()

    def _start(self) -> None:
        self._file.write_text(json.dumps(self.configuration()))
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._log = (self.place / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.laws.measured_server", str(self._file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": paths, "ENABLE_EMBEDDED_MODEL": "false"},
        )
        self.url = self._line()
        self.port = int(self.url.rpartition(":")[2])

    def configuration(self, **changes: Any) -> dict[str, Any]:
        """What the server is configured with: a model for each dialect, and tools of every kind."""
        bases = dict.fromkeys(DIALECTS, f"{self.upstream.url}/v1") | {"ollama": self.upstream.url}
        models: list[dict[str, Any]] = [{"name": name, "upstream": name, "retries": 0} for name in DIALECTS]
        models.append({"name": "text", "upstream": "openai_chat", "tools": "emulated", "syntax": "auto", "retries": 0})
        models.append({"name": "promoted", "upstream": "openai_chat", "promote": True, "retries": 0})
        return {
            "server": {"port": 0},
            # With a limit that is never reached, so that every body is searched for what it may use.
            "keys": [
                {"name": "law", "key": KEY, "scopes": ["chat", "tools", "admin"], "tokens_per_minute": 1_000_000_000}
            ],
            "upstreams": {
                name: {"dialect": name, "base_url": base, "breaker": {"failures": 0}} for name, base in bases.items()
            },
            "models": models,
            "tools": {
                "builtin": {"roots": [str(self.place / "files")], "commands": True},
                "python": ["tools"],
                "reach": ["127.0.0.1"],
                "mcp": {
                    "pipe": {"command": [sys.executable, str(HERE / "mcp_server.py")], "trust": "always"},
                    "pinned": {"command": [sys.executable, str(HERE / "mcp_server.py")]},
                },
                "approvals": {
                    "default": "allow",
                    "open_world": "allow",
                    "hold_seconds": 0.2,
                    "self_approval": True,
                    "rules": [{"stance": "ask", "tools": ["harmful"]}],
                    "auto_approve_commands": [["seq"]],
                },
                "limits": {"rounds": 200, "repeats": 0},
            },
            "storage": f"sqlite:///{self.place}/toolgate.db",
            "log": {"level": "info"},
            **changes,
        }

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def begin(self) -> None:
        """Forget what was measured."""
        self._command("begin")

    def end(self) -> list[Overrun]:
        """What was measured since then."""
        return decoded(self._command("end"))

    def close(self) -> None:
        """End the server and the upstream."""
        self._kill()
        self.upstream.close()

    def restart(self) -> None:
        """Begin anew, after a case that the server did not survive."""
        self._kill()
        self._start()

    def _kill(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def _command(self, word: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        assert line, f"the server ended: {(self.place / 'log').read_text()[-3000:]}"
        return line

    def play(self, *answers: Served) -> None:
        """Say what the upstream answers to the next requests."""
        self.upstream.play(answers or (chat_answer(),))

    async def reload(self, text: str | None = None) -> str:
        """Give the server this configuration, by default its own, and wait until it took or refused it."""
        log = self.place / "log"
        before = log.stat().st_size
        await asyncio.to_thread(self._file.write_text, text or json.dumps(self.configuration()))
        self._process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                with log.open("rb") as file:
                    file.seek(before)
                    output = file.read().decode("utf-8", "replace")
                if '"reloaded"' in output or '"reload refused"' in output or not self.alive:
                    return output
                await asyncio.sleep(0.02)

    async def send(self, raw: bytes | Iterable[bytes]) -> bytes:
        """Send raw bytes on a connection, and return whatever comes back until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                return await _exchanged(reader, writer, (raw,) if isinstance(raw, bytes) else raw)
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)

    async def request(self, method: str, path: str, body: Any = None, *headers: str) -> ReceivedResponse:
        """One request on a connection of its own; `body` is bytes or a value to be written as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = (
            []
            if any(line.lower().startswith("content-type") for line in headers)
            else ["content-type: application/json"]
        )
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            f"authorization: Bearer {KEY}",
            "connection: close",
            *kind,
            *headers,
            f"content-length: {len(data)}",
        ]
        response = await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head, _, rest = response.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            rest = _unchunked(rest)
        status = int(head.split()[1]) if head.startswith(b"HTTP/") else 0
        assert status != 500, f"{method} {path[:200]}: {rest[:500]!r}"  # no input is an internal error
        return ReceivedResponse(status, rest)

    async def post(self, path: str, body: Any, *headers: str) -> ReceivedResponse:
        """A POST."""
        return await self.request("POST", path, body, *headers)

    async def get(self, path: str) -> ReceivedResponse:
        """A GET."""
        return await self.request("GET", path)

    async def ask(
        self, client: str, model: str, text: str = "Hi", stream: bool = False, **more: Any
    ) -> ReceivedResponse:
        """A plain question of a client of this dialect."""
        body: dict[str, Any] = {"model": model, "stream": stream, **more}
        if client == "openai_responses":
            body = {"input": text, **body}
        else:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 100, **body}
            if client == "ollama":
                del body["max_tokens"]
        return await self.post(PATHS[client], body)

    async def ask_with_tools(self, stream: bool = False, **more: Any) -> ReceivedResponse:
        """A question of a Chat client that lets the server run its tools."""
        return await self.ask(
            "openai_chat", "openai_chat", stream=stream, tool_execution="auto", use_server_tools=True, **more
        )

    async def run_tool(self, name: str, **arguments: Any) -> ReceivedResponse:
        """Have the model call a server tool once, and then say that it is done."""
        self.play(call_answer(name, arguments), chat_answer())
        return await self.ask_with_tools()

    async def websocket(self, frames: Iterable[bytes], path: str = "/v1/responses") -> bytes:
        """Open a WebSocket, send raw frames, say goodbye once one was answered, and return what comes back."""
        lines = [
            f"GET {path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            f"authorization: Bearer {KEY}",
            "connection: Upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")  # frames that come before it are no messages
                assert head.startswith(b"HTTP/1.1 101 "), head
                return await _exchanged(reader, writer, frames, goodbye=frame(8, b"\x03\xe8"))
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)


async def _exchanged(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pieces: Iterable[bytes], goodbye: bytes = b""
) -> bytes:
    async def write() -> None:
        with contextlib.suppress(ConnectionError):  # refused before all was sent
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

    writing = asyncio.create_task(write())
    response = []
    try:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                response.append(piece)
                if goodbye and any(last in piece for last in _LAST_EVENTS):
                    await writing
                    writer.write(goodbye)
                    goodbye = b""
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return b"".join(response)


def _unchunked(body: bytes) -> bytes:
    pieces, position = [], 0
    while (end := body.find(b"\r\n", position)) >= 0 and (size := int(body[position:end], 16)):
        pieces.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2
    return b"".join(pieces)


def frame(opcode: int, payload: bytes = b"", final: bool = True) -> bytes:
    """A WebSocket frame as a client sends it, masked by zeros."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    return bytes([(0x80 if final else 0) | opcode]) + length + bytes(4) + payload


@contextlib.contextmanager
def measured_gateway() -> Iterator[Gateway]:
    """A measured server in a folder of its own, until the block ends."""
    with tempfile.TemporaryDirectory() as name:
        gateway = Gateway(Path(name))
        try:
            yield gateway
        finally:
            gateway.close()
