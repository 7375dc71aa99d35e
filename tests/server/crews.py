"""A server of several processes, started by its command line, and an upstream that streams as long as it is told."""

import http.client
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-c", "from toolgate.cli import main; main()", "serve"]
ASKED = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


class Slow(http.server.BaseHTTPRequestHandler):
    """An upstream whose streams begin at once and end when `enough` is set."""

    enough = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._say({"role": "assistant", "content": "begun "}, None)
        self.enough.wait(60)
        with suppress(BrokenPipeError):  # a server that was told twice to end does not listen any more
            self._say({"content": "ended"}, None)
            self._say({}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, delta: dict[str, Any], reason: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def slow_upstream() -> Iterator[str]:
    Slow.enough.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            Slow.enough.set()
            server.shutdown()
            thread.join()


class Service:
    """A running server; `said` grows with what it writes to its log."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.said: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("Toolgate serves"):
                self.url = line.split()[-1]
                self._announced.set()
        self._announced.set()

    def announced(self) -> "Service":
        assert self._announced.wait(30)
        assert self.url, "".join(self.said)
        return self

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=30)

    def workers(self) -> list[int]:
        """The processes that serve, the oldest first."""
        return children(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ask(self, body: dict[str, Any] = ASKED, key: str = "") -> int:
        """The status of a request on a connection of its own."""
        headers = {"content-type": "application/json", "connection": "close"}
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        connection = self.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def get(self, path: str, key: str = "") -> str:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as answer:
            return str(answer.read().decode())

    def ended(self, seconds: float = 20) -> int:
        code = self.process.wait(seconds)
        self._hearing.join(5)
        return code


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in listed.stdout.split() if is_alive(int(number))]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that processes do without telling anybody."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextmanager
def service(folder: Path, config: str, *arguments: str, embedded: bool = False) -> Iterator[Service]:
    """A server with this configuration on a free port, which is gone at the end, and its workers with it."""
    (folder / "toolgate.yaml").write_text(config)
    process = subprocess.Popen(
        [*PROGRAM, "--port", "0", *arguments],
        cwd=folder,
        env={**os.environ, "ENABLE_EMBEDDED_MODEL": str(embedded)},
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Service(process, folder)
    workers: list[int] = []
    try:
        yield running
        workers = running.workers()
    finally:
        workers = workers or running.workers()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        running.ended()
        assert process.stderr is not None
        process.stderr.close()
        until(lambda: not any(is_alive(pid) for pid in workers))
