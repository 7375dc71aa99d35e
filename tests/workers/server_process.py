"""Start a server of several processes by its command line, and an upstream that streams until it is released."""

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
REQUEST = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}


class SlowUpstream(http.server.BaseHTTPRequestHandler):
    """An upstream whose streams begin at once and end when `release` is set."""

    release = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self._send_delta({"role": "assistant", "content": "begun "}, None)
        self.release.wait(60)
        with suppress(BrokenPipeError):  # a server that was drained twice has closed the connection
            self._send_delta({"content": "ended"}, None)
            self._send_delta({}, "stop")
            self.wfile.write(b"data: [DONE]\n\n")

    def _send_delta(self, delta: dict[str, Any], reason: str | None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def slow_upstream() -> Iterator[str]:
    SlowUpstream.release.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowUpstream) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            SlowUpstream.release.set()
            server.shutdown()
            thread.join()


class RunningServer:
    """A running server; `log_lines` grows with what it writes to its log."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.log_lines: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log_lines.append(line)
            if line.startswith("Toolgate serves"):
                self.url = line.split()[-1]
                self._announced.set()
        self._announced.set()

    def announced(self) -> "RunningServer":
        assert self._announced.wait(30)
        assert self.url, "".join(self.log_lines)
        return self

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.address, timeout=30)

    def workers(self) -> list[int]:
        """Return the process ids of the workers, the oldest first."""
        return children(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def post(self, body: dict[str, Any] = REQUEST, key: str = "") -> int:
        """Send a chat request on a connection of its own and return the status."""
        headers = {"content-type": "application/json", "connection": "close"}
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        connection = self.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        response.read()
        connection.close()
        return response.status

    def get(self, path: str, key: str = "") -> str:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=30) as response:
            return str(response.read().decode())

    def ended(self, seconds: float = 30) -> int:
        code = self.process.wait(seconds)
        self._log_reader.join(30)
        return code


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in listed.stdout.split() if is_alive(int(number))]


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before or while it is read
        return False


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    """Poll for what other processes do."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextmanager
def running_server(folder: Path, config: str, *arguments: str, embedded: bool = False) -> Iterator[RunningServer]:
    """Run a server with this configuration on a free port; it and its workers are gone at the end."""
    (folder / "toolgate.yaml").write_text(config)
    process = subprocess.Popen(
        [*PROGRAM, "--port", "0", *arguments],
        cwd=folder,
        env={**os.environ, "ENABLE_EMBEDDED_MODEL": str(embedded)},
        stderr=subprocess.PIPE,
        text=True,
    )
    running = RunningServer(process, folder)
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
