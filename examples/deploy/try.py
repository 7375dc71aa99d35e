"""Try the balancers' configurations for real: two nodes of two workers each behind nginx and HAProxy, under load.

    python examples/deploy/try.py            (needs nginx or haproxy; takes half a minute)

It tells whether events come through one by one, whether a WebSocket is let through, and how many requests fail while
workers are renewed, a node is stopped and started, and a node is killed.
"""

import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOOLGATE = [sys.executable, "-c", "from toolgate.cli import main; main()", "serve", "--workers", "2"]
MESSAGES = [{"role": "user", "content": "hello"}]


class Model(http.server.BaseHTTPRequestHandler):
    """A model that begins at once and ends when it is told."""

    go_on = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for text in ("begun ", "ended"):
            delta = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
            self.wfile.write(b"data: " + json.dumps(delta).encode() + b"\n\n")
            self.wfile.flush()
            self.go_on.wait(30)
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        self.wfile.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def until(port: int, path: str = "/readyz") -> None:
    """Wait until somebody answers there."""
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"nobody answers on port {port}")


class Node:
    """A server of two workers."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.port = free_port()
        self._folder = folder
        (folder / "toolgate.yaml").write_text(
            f"upstreams: {{up: {{dialect: openai_chat, base_url: '{upstream}'}}}}\n"
            "models: [{name: echo, upstream: builtin}, {name: slow, upstream: up}]\nlog: {level: error}\n"
            "keys: [{name: me, key: the-key}]\nserver: {hosts: []}\n"
        )
        self.start()

    def start(self) -> None:
        env = {**os.environ, "ENABLE_EMBEDDED_MODEL": "false"}
        self.process = subprocess.Popen([*TOOLGATE, "--port", str(self.port)], cwd=self._folder, env=env)  # noqa: S603
        until(self.port)

    def stop(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(60)

    def end(self) -> None:
        """Stop it, if it runs."""
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)


@contextmanager
def balancer(name: str, ports: list[int], folder: Path) -> Iterator[int]:
    """The example's configuration with our ports in it, running."""
    port = free_port()
    ours = {"8080": port, "8081": ports[0], "8082": ports[1]}
    file = HERE / ("nginx.conf" if name == "nginx" else "haproxy.cfg")
    text = re.sub(r"\b808[012]\b", lambda found: str(ours[found[0]]), file.read_text())
    config = folder / file.name
    config.write_text(text.replace("access_log off;", f"access_log off;\n    error_log {folder}/errors.log;"))
    own = ["-c", str(config), "-p", str(folder), "-g", f"daemon off; pid {folder}/pid; error_log {folder}/errors.log;"]
    process = subprocess.Popen([name, *(own if name == "nginx" else ["-f", str(config)])])  # noqa: S603
    try:
        until(port)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def ask(connection: http.client.HTTPConnection, **body: Any) -> http.client.HTTPResponse:
    headers = {"content-type": "application/json", "authorization": "Bearer the-key"}
    data = json.dumps({"model": "echo", "messages": MESSAGES, **body})
    connection.request("POST", "/v1/chat/completions", data, headers)
    return connection.getresponse()


def events_come_one_by_one(port: int) -> bool:
    Model.go_on.clear()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    answer = ask(connection, model="slow", stream=True)
    first = answer.read1(65536)
    Model.go_on.set()
    return b"begun" in first and b"ended" not in first and b"[DONE]" in answer.read()


def websockets_pass(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        lines = ["GET /v1/responses HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Authorization: Bearer the-key",
        ]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        return b" 101 " in sock.recv(4096).split(b"\r\n")[0]


class Load:
    """Eight clients that ask again and again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._enough = threading.Event()
        self.asked, self.failures = 0, list[str]()

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self._run) for _ in range(8)]
        for thread in self._threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.5)
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._enough.wait(0.005):
            self.asked += 1
            try:
                answer = ask(connection)
                answer.read()
                if answer.status != 200:
                    self.failures.append(str(answer.status))
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(type(error).__name__)
                connection.close()

    def summary(self, while_what: str) -> str:
        kinds = ", ".join(sorted(set(self.failures)))
        return f"{while_what}: {len(self.failures)} of {self.asked} requests failed {f'({kinds})' if kinds else ''}".rstrip()


def show(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def try_balancer(name: str, nodes: list[Node], folder: Path) -> None:
    with balancer(name, [node.port for node in nodes], folder) as port:
        show(f"{name}: events one by one: {events_come_one_by_one(port)}; WebSockets: {websockets_pass(port)}")
        with Load(port) as load:
            for node in nodes:
                node.process.send_signal(signal.SIGUSR2)
            time.sleep(8)
        show("  " + load.summary("all workers renewed"))
        with Load(port) as load:
            nodes[0].stop(signal.SIGTERM)
            nodes[0].start()
        show("  " + load.summary("a node stopped and started"))
        time.sleep(3)  # until the balancer has noticed
        with Load(port) as load:
            nodes[1].stop(signal.SIGKILL)
            time.sleep(1)
        show("  " + load.summary("a node killed"))
        nodes[1].start()


def main() -> None:
    """Try what is installed."""
    found = [name for name in ("nginx", "haproxy") if shutil.which(name)]
    if not found:
        raise SystemExit("neither nginx nor haproxy is installed")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        model = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model))
        threading.Thread(target=model.serve_forever, daemon=True).start()
        stack.callback(model.shutdown)
        nodes = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            node = Node(folder / name, f"http://127.0.0.1:{model.server_port}/v1")
            stack.callback(node.end)
            nodes.append(node)
        for name in found:
            (folder / name).mkdir()
            try_balancer(name, nodes, folder / name)


if __name__ == "__main__":
    main()
