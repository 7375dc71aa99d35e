"""Several workers under one supervisor, as real processes (D4; fault: K-G, K-H, M3)."""

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.crews import ASKED, Service, Slow, children, is_alive, service, slow_upstream, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes through /proc")

KEYS = "keys: [{name: me, key: the-key, scopes: [chat, admin]}, {name: few, key: few-key, requests_per_minute: 20}]\n"
LOG = "log: {level: warning}\n"
MODELS = "models: [{name: echo, upstream: builtin}]\n"


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("crew"), KEYS + LOG + MODELS, "--workers", "2") as running:
        yield running.announced()


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
    return sum(os.readlink(fd).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())


def both_serve(crew: Service) -> bool:
    return len(crew.workers()) == 2 and "toolgate_workers 2" in crew.get("/metrics", "the-key")


def served(crew: Service) -> int:
    """How many chat requests all workers have counted."""
    lines = crew.get("/metrics", "the-key").splitlines()
    found = [line for line in lines if line.startswith("toolgate_requests_total") and "openai_chat" in line]
    return sum(int(line.rpartition(" ")[2]) for line in found)


def test_connections_are_shared_out_between_the_workers(crew: Service) -> None:
    before = {pid: sockets(pid) for pid in crew.workers()}
    assert len(before) == 2
    connections = [crew.connect() for _ in range(40)]
    for connection in connections:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    taken = [sockets(pid) - before[pid] for pid in before]
    for connection in connections:
        connection.close()
    assert sum(taken) == 40
    assert min(taken) >= 8


def test_the_address_is_announced_once(crew: Service) -> None:
    assert sum(line.startswith("Toolgate serves") for line in crew.said) == 1


def test_metrics_are_those_of_all_workers_and_survive_one_of_them(crew: Service) -> None:
    before = served(crew)
    assert {crew.ask(key="the-key") for _ in range(20)} == {200}
    assert [served(crew) - before for _ in range(6)] == [20] * 6
    os.kill(crew.workers()[0], signal.SIGKILL)
    assert [served(crew) - before for _ in range(6)] == [20] * 6
    until(lambda: both_serve(crew))


def test_a_killed_worker_is_replaced_and_nobody_is_refused_meanwhile(crew: Service) -> None:
    """(fault: K-H)"""
    until(lambda: both_serve(crew))
    killed, other = crew.workers()
    os.kill(killed, signal.SIGKILL)
    until(lambda: not is_alive(killed))
    began = time.monotonic()
    assert {crew.ask(key="the-key") for _ in range(20)} == {200}
    assert time.monotonic() - began < 2  # nobody waits for the new worker
    until(lambda: both_serve(crew))
    assert other in crew.workers()
    until(lambda: any('"worker ended"' in line and f'"pid":{killed}' in line for line in crew.said))


def test_a_limit_holds_over_all_workers_without_redis(crew: Service) -> None:
    """(fault: M3)"""
    statuses = [crew.ask(key="few-key") for _ in range(60)]
    assert (statuses.count(200), statuses.count(429)) == (20, 40)


def test_a_hangup_has_all_workers_read_the_configuration(crew: Service) -> None:
    until(lambda: both_serve(crew))
    file = crew.folder / "toolgate.yaml"
    file.write_text(KEYS + LOG + "models: [{name: echo, upstream: builtin, aliases: [parrot]}]\n")
    crew.signal(signal.SIGHUP)
    until(lambda: {crew.ask(ASKED | {"model": "parrot"}, "the-key") for _ in range(12)} == {200})


class Load:
    """Clients that keep their connections and ask again and again; `failures` is what went wrong."""

    def __init__(self, crew: Service, clients: int) -> None:
        self._crew = crew
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
        connection = self._crew.connect()
        headers = {"content-type": "application/json", "authorization": "Bearer the-key"}
        while not self._enough.wait(0.01):
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(ASKED), headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    self.failures.append(str(answer.status))
                self.answered += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
        connection.close()


def test_all_workers_are_renewed_and_no_request_fails(crew: Service) -> None:
    """(fault: K-H)"""
    until(lambda: both_serve(crew))
    before = set(crew.workers())
    with Load(crew, 8) as load:
        crew.signal(signal.SIGUSR2)
        until(lambda: not before & set(crew.workers()))
    assert load.failures == []
    assert load.answered > 20
    until(lambda: both_serve(crew))


def test_a_worker_that_cannot_start_leaves_the_old_ones_at_work(crew: Service) -> None:
    until(lambda: both_serve(crew))
    before, file = crew.workers(), crew.folder / "toolgate.yaml"
    good = file.read_text()
    file.write_text("nonsense: [")
    crew.signal(signal.SIGUSR2)
    until(lambda: any('"workers not renewed"' in line for line in crew.said))
    assert {crew.ask(key="the-key") for _ in range(8)} == {200}
    assert crew.workers() == before
    file.write_text(good)


def test_asked_to_end_all_drain_at_once_and_open_streams_finish(tmp_path: Path) -> None:
    """(fault: K-G)"""
    with slow_upstream() as base, service(tmp_path, over(base) + LOG, "--workers", "2") as crew:
        crew.announced()
        streams = [crew.connect() for _ in range(12)]
        answers = []
        for one in streams:
            body = json.dumps({**ASKED, "model": "m", "stream": True})
            one.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            answers.append(one.getresponse())
            assert b"begun" in answers[-1].read1(4096)
        for worker in crew.workers():  # as whoever ends all processes of a service does
            os.kill(worker, signal.SIGTERM)
        crew.signal(signal.SIGTERM)
        until(lambda: refuses(crew))
        Slow.enough.set()
        texts = [answer.read() for answer in answers]
        assert all(b"ended" in text and text.endswith(b"data: [DONE]\n\n") for text in texts)
        for one in streams:
            one.close()
        assert crew.ended() == 0


def over(base: str) -> str:
    """A configuration whose model `m` is at this upstream."""
    upstream = f"upstreams: {{slow: {{dialect: openai_chat, base_url: '{base}'}}}}\n"
    return upstream + "models: [{name: m, upstream: slow}]\n"


def refuses(crew: Service) -> bool:
    connection = crew.connect()
    try:
        connection.connect()
    except ConnectionRefusedError:
        return True
    finally:
        connection.close()
    return False


def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    """(fault: K-G)"""
    with slow_upstream() as base, service(tmp_path, over(base) + LOG, "--workers", "2") as crew:
        crew.announced()
        stream = crew.connect()
        body = json.dumps({**ASKED, "model": "m", "stream": True})
        stream.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = stream.getresponse()
        answer.read1(4096)
        began = time.monotonic()
        crew.signal(signal.SIGINT)
        until(lambda: refuses(crew))
        crew.signal(signal.SIGINT)
        assert crew.ended() == 0
        assert time.monotonic() - began < 8
        stream.close()


def test_no_worker_outlives_its_supervisor(tmp_path: Path) -> None:
    with service(tmp_path, MODELS + LOG, "--workers", "2") as crew:
        workers = crew.announced().workers()
        assert len(workers) == 2
        crew.process.kill()
        until(lambda: not any(is_alive(pid) for pid in workers))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("models: [{name: m, upstream: nobody}]\n", "nobody"),
        ("storage: 'sqlite://'\n", "several workers need a storage"),
    ],
)
def test_what_is_wrong_with_all_workers_is_told_once(tmp_path: Path, config: str, complaint: str) -> None:
    with service(tmp_path, config, "--workers", "3") as crew:
        assert crew.ended() == 2
        assert sum(complaint in line for line in crew.said) == 1


def test_one_worker_needs_no_supervisor(tmp_path: Path) -> None:
    with service(tmp_path, MODELS + LOG, "--workers", "1") as crew:
        assert children(crew.announced().process.pid) == []
        crew.signal(signal.SIGUSR2)
        until(lambda: any('"not renewed"' in line for line in crew.said))
        assert crew.ask() == 200


GUARDED = KEYS + LOG + MODELS + "tools: {approvals: {read_only: deny}}\n"


def test_a_worker_that_takes_anothers_place_serves_what_was_accepted_and_not_what_the_file_holds(
    tmp_path: Path,
) -> None:
    """A reload that was refused, or a file that is half written, must not come into force by a crash."""
    with service(tmp_path, GUARDED, "--workers", "2") as crew:
        crew.announced()
        for lost in (KEYS, "", "nonsense: ["):
            (tmp_path / "toolgate.yaml").write_text(lost)
            before = crew.workers()
            os.kill(before[0], signal.SIGKILL)
            until(lambda before=before: before[0] not in crew.workers() and both_serve(crew))
            assert {crew.ask(ASKED, "the-key") for _ in range(8)} == {200}
        crew.signal(signal.SIGHUP)
        until(lambda: sum('"reload refused"' in line for line in crew.said) >= 2)
        (tmp_path / "toolgate.yaml").write_text(KEYS + LOG + MODELS)
        crew.signal(signal.SIGUSR2)
        until(lambda: any("its checks with it" in line for line in crew.said))
        until(lambda: any('"workers not renewed"' in line for line in crew.said))
        (tmp_path / "toolgate.yaml").write_text(GUARDED.replace("the-key", "new-key"))
        crew.signal(signal.SIGHUP)
        until(lambda: {crew.ask(ASKED, "the-key") for _ in range(12)} == {401})
        (tmp_path / "toolgate.yaml").write_text("")
        killed = crew.workers()[0]
        os.kill(killed, signal.SIGKILL)
        until(lambda: killed not in crew.workers() and len(crew.workers()) == 2)
        until(lambda: "toolgate_workers 2" in crew.get("/metrics", "new-key"))
        assert {crew.ask(ASKED, "new-key") for _ in range(12)} == {200}
        assert {crew.ask(ASKED, "the-key") for _ in range(12)} == {401}
