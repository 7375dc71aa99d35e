"""Several workers under one supervisor, as real processes (spec: D4; fault: K-G, K-H, M3)."""

import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.server_process import (
    REQUEST,
    RunningServer,
    SlowUpstream,
    children,
    is_alive,
    running_server,
    slow_upstream,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes through /proc")

KEYS = "keys: [{name: me, key: the-key, scopes: [chat, admin]}, {name: few, key: few-key, requests_per_minute: 20}]\n"
LOG = "log: {level: warning}\n"
MODELS = "models: [{name: echo, upstream: builtin}]\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), KEYS + LOG + MODELS, "--workers", "2") as running:
        yield running.announced()


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
    return sum(os.readlink(fd).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())


def both_serve(server: RunningServer) -> bool:
    return len(server.workers()) == 2 and "toolgate_workers 2" in server.get("/metrics", "the-key")


def served(server: RunningServer) -> int:
    """How many chat requests all workers have counted."""
    lines = server.get("/metrics", "the-key").splitlines()
    found = [line for line in lines if line.startswith("toolgate_requests_total") and "openai_chat" in line]
    return sum(int(line.rpartition(" ")[2]) for line in found)


def test_connections_are_shared_out_between_the_workers(server: RunningServer) -> None:
    before = {pid: sockets(pid) for pid in server.workers()}
    assert len(before) == 2
    connections = [server.connect() for _ in range(40)]
    for connection in connections:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    taken = [sockets(pid) - before[pid] for pid in before]
    for connection in connections:
        connection.close()
    assert sum(taken) == 40
    assert min(taken) >= 8


def test_the_address_is_announced_once(server: RunningServer) -> None:
    assert sum(line.startswith("Toolgate serves") for line in server.log_lines) == 1


def test_metrics_are_those_of_all_workers_and_survive_one_of_them(server: RunningServer) -> None:
    before = served(server)
    assert {server.post(key="the-key") for _ in range(20)} == {200}
    assert [served(server) - before for _ in range(6)] == [20] * 6
    os.kill(server.workers()[0], signal.SIGKILL)
    assert [served(server) - before for _ in range(6)] == [20] * 6
    until(lambda: both_serve(server))


def test_a_killed_worker_is_replaced_and_no_request_fails_meanwhile(server: RunningServer) -> None:
    """(fault: K-H)"""
    until(lambda: both_serve(server))
    killed, other = server.workers()
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_alive(killed))
    assert {server.post(key="the-key") for _ in range(20)} == {200}
    until(lambda: both_serve(server))
    assert other in server.workers()
    until(lambda: any('"worker ended"' in line and f'"pid":{killed}' in line for line in server.log_lines))


def test_a_limit_holds_over_all_workers_without_redis(server: RunningServer) -> None:
    """(fault: M3)"""
    statuses = [server.post(key="few-key") for _ in range(60)]
    assert (statuses.count(200), statuses.count(429)) == (20, 40)


def test_a_hangup_has_all_workers_read_the_configuration(server: RunningServer) -> None:
    until(lambda: both_serve(server))
    file = server.folder / "toolgate.yaml"
    file.write_text(KEYS + LOG + "models: [{name: echo, upstream: builtin, aliases: [parrot]}]\n")
    server.signal(signal.SIGHUP)
    until(lambda: {server.post(REQUEST | {"model": "parrot"}, "the-key") for _ in range(12)} == {200})


class Load:
    """Clients that keep their connections and ask again and again; `failures` is what went wrong."""

    def __init__(self, server: RunningServer, clients: int) -> None:
        self._server = server
        self._enough = threading.Event()
        self.failures: list[str] = []
        self.answered = 0
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(30)

    def _ask(self) -> None:
        connection = self._server.connect()
        headers = {"content-type": "application/json", "authorization": "Bearer the-key"}
        while not self._enough.wait(0.01):
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(REQUEST), headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    self.failures.append(str(answer.status))
                self.answered += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
        connection.close()


def test_all_workers_are_renewed_and_no_request_fails(server: RunningServer) -> None:
    """(fault: K-H)"""
    until(lambda: both_serve(server))
    before = set(server.workers())
    with Load(server, 8) as load:
        server.signal(signal.SIGUSR2)
        until(lambda: not before & set(server.workers()))
    assert load.failures == []
    assert load.answered > 20
    until(lambda: both_serve(server))


def test_a_worker_that_cannot_start_leaves_the_old_ones_at_work(server: RunningServer) -> None:
    until(lambda: both_serve(server))
    before, file = server.workers(), server.folder / "toolgate.yaml"
    good = file.read_text()
    file.write_text("nonsense: [")
    server.signal(signal.SIGUSR2)
    until(lambda: any('"workers not renewed"' in line for line in server.log_lines))
    file.unlink()
    os.mkfifo(file)  # nothing is ever written to it
    server.signal(signal.SIGUSR2)
    until(lambda: sum('"workers not renewed"' in line for line in server.log_lines) == 2)
    assert {server.post(key="the-key") for _ in range(8)} == {200}
    assert server.workers() == before
    file.unlink()
    file.write_text(good)


def test_all_workers_drain_at_once_and_open_streams_finish(tmp_path: Path) -> None:
    """(fault: K-G)"""
    with slow_upstream() as base, running_server(tmp_path, over(base) + LOG, "--workers", "2") as server:
        server.announced()
        streams = [server.connect() for _ in range(12)]
        answers = []
        for one in streams:
            body = json.dumps({**REQUEST, "model": "m", "stream": True})
            one.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answers.append(one.getresponse())
            assert b"begun" in answers[-1].read1(4096)
        for worker in server.workers():  # as a service manager does
            os.kill(worker, signal.SIGTERM)
        server.signal(signal.SIGTERM)
        until(lambda: refuses(server))
        SlowUpstream.release.set()
        texts = [answer.read() for answer in answers]
        assert all(b"ended" in text and text.endswith(b"data: [DONE]\n\n") for text in texts)
        for one in streams:
            one.close()
        assert server.ended() == 0


def over(base: str) -> str:
    """A configuration whose model `m` is at this upstream."""
    upstream = f"upstreams: {{slow: {{dialect: openai_chat, base_url: '{base}'}}}}\n"
    return upstream + "models: [{name: m, upstream: slow}]\n"


def refuses(server: RunningServer) -> bool:
    connection = server.connect()
    try:
        connection.connect()
    except ConnectionRefusedError:
        return True
    finally:
        connection.close()
    return False


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """(fault: K-G)"""
    patient = LOG + "server: {drain_seconds: 3600}\n"
    with slow_upstream() as base, running_server(tmp_path, over(base) + patient, "--workers", "2") as server:
        server.announced()
        stream = server.connect()
        body = json.dumps({**REQUEST, "model": "m", "stream": True})
        stream.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = stream.getresponse()
        answer.read1(4096)
        server.signal(signal.SIGINT)
        until(lambda: refuses(server))
        server.signal(signal.SIGINT)
        assert server.ended() == 0
        stream.close()


def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    with running_server(tmp_path, MODELS + LOG, "--workers", "2") as server:
        workers = server.announced().workers()
        assert len(workers) == 2
        server.process.kill()
        until(lambda: not any(is_alive(pid) for pid in workers))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("models: [{name: m, upstream: nobody}]\n", "nobody"),
        ("storage: 'sqlite://'\n", "several workers need a storage"),
        ("tools: {builtin: {roots: [nowhere, nor-here]}}\n", "nor-here"),
    ],
)
def test_an_error_of_all_workers_is_reported_once(tmp_path: Path, config: str, complaint: str) -> None:
    with running_server(tmp_path, config, "--workers", "3") as server:
        assert server.ended() == 2
        assert sum(complaint in line for line in server.log_lines) == 1


def test_one_worker_needs_no_supervisor(tmp_path: Path) -> None:
    with running_server(tmp_path, MODELS + LOG, "--workers", "1") as server:
        assert children(server.announced().process.pid) == []
        server.signal(signal.SIGUSR2)
        until(lambda: any('"not renewed"' in line for line in server.log_lines))
        assert server.post() == 200


GUARDED = KEYS + LOG + MODELS + "tools: {approvals: {read_only: deny}}\n"


def test_a_worker_that_takes_anothers_place_serves_what_was_accepted_and_not_what_the_file_holds(
    tmp_path: Path,
) -> None:
    """A reload that was refused, or a file that is half written, must not come into force by a crash."""
    with running_server(tmp_path, GUARDED, "--workers", "2") as server:
        server.announced()
        for lost in (KEYS, "", "nonsense: ["):
            (tmp_path / "toolgate.yaml").write_text(lost)
            killed = server.workers()[0]
            os.kill(killed, signal.SIGKILL)

            def replaced(killed: int = killed) -> bool:
                return killed not in server.workers() and both_serve(server)

            until(replaced)
            assert {server.post(REQUEST, "the-key") for _ in range(8)} == {200}
        server.signal(signal.SIGHUP)
        until(lambda: sum('"reload refused"' in line for line in server.log_lines) >= 2)
        (tmp_path / "toolgate.yaml").write_text(KEYS + LOG + MODELS)
        server.signal(signal.SIGUSR2)
        until(lambda: any("its checks with it" in line for line in server.log_lines))
        until(lambda: any('"workers not renewed"' in line for line in server.log_lines))
        (tmp_path / "toolgate.yaml").write_text(GUARDED.replace("the-key", "new-key"))
        server.signal(signal.SIGHUP)
        until(lambda: {server.post(REQUEST, "the-key") for _ in range(12)} == {401})
        (tmp_path / "toolgate.yaml").write_text("")
        killed = server.workers()[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in server.workers() and len(server.workers()) == 2)
        until(lambda: "toolgate_workers 2" in server.get("/metrics", "new-key"))
        assert {server.post(REQUEST, "new-key") for _ in range(12)} == {200}
        assert {server.post(REQUEST, "the-key") for _ in range(12)} == {401}
