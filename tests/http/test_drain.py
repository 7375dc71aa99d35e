"""Starting and draining a listener: no request is cut off without an error."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.http.raw_client import HANG_SECONDS, Client, TrivialApp, request, served, until
from toolgate.conversation.errors import InternalGatewayError
from toolgate.http.listener import listening
from toolgate.http.request_reader import HEAD


def refuses(port: int) -> bool:
    try:
        Client(port).close()
    except ConnectionError:
        return True
    return False


def answers(port: int) -> bool:
    with Client(port) as client:
        client.get()
        return client.read()[0] == 200


def test_draining_refuses_new_connections_notifies_the_application_and_lets_streams_finish() -> None:
    """fault: K-G"""
    app, emitted = TrivialApp(), threading.Event()
    with served(app, drain_seconds=3600, on_drain=emitted.set) as server, Client(server.port) as client:
        client.get("/stream")
        assert client.read_head()[0] == 200
        assert client.read_chunk() == b"first;"
        server.drain()
        assert emitted.wait(HANG_SECONDS)
        until(lambda: refuses(server.port))
        app.release.set()
        assert list(client.chunks()) == [b"last"]
        assert client.rest() == b""
        server.join()


def test_an_open_connection_can_send_a_request_while_others_drain() -> None:
    """fault: K-G"""
    app = TrivialApp()
    with served(app, drain_seconds=3600) as server, Client(server.port) as streaming, Client(server.port) as asking:
        asking.get()
        asking.read()
        streaming.get("/stream")
        streaming.read_head()
        server.drain()
        until(lambda: refuses(server.port))
        asking.get("/readyz")
        status, headers = asking.read_head()
        assert (status, headers["connection"]) == (200, "close")
        assert asking.rest() == b"hello"


def test_a_client_whose_stream_was_not_marked_as_last_may_send_one_more_request() -> None:
    """fault: K-G"""
    app = TrivialApp()
    with served(app, drain_seconds=3600) as server, Client(server.port) as client:
        client.get("/stream")
        assert "connection" not in client.read_head()[1]
        server.drain()
        until(lambda: refuses(server.port))
        app.release.set()
        list(client.chunks())
        client.get("/readyz")
        status, headers = client.read_head()
        assert (status, headers["connection"]) == (200, "close")
        server.join()  # long before the drain time is over


def test_streams_that_outlast_the_drain_time_end_with_an_error_event() -> None:
    """fault: K-G"""
    app = TrivialApp()
    with served(app, drain_seconds=0.2) as server:
        clients = [Client(server.port) for _ in range(50)]
        for client in clients:
            client.get("/stream")
            assert client.read_head()[0] == 200
        server.drain()
        for client in clients:
            assert list(client.chunks()) == [b"first;", b"error: shutting down"]
            assert client.rest() == b""
            client.close()
        server.join()
    assert app.last_words.qsize() == 50


def test_a_request_without_a_response_gets_a_503_at_shutdown() -> None:
    """fault: K-G"""
    app = TrivialApp()
    with served(app, drain_seconds=0.1) as server, Client(server.port) as client:
        client.get("/hold")
        app.seen.get(timeout=30)
        server.drain()
        assert client.read()[0] == 503
        app.release.set()
        server.join()


def test_a_request_with_incomplete_headers_gets_a_503_at_shutdown() -> None:
    """fault: K-G"""
    with served(TrivialApp(), drain_seconds=3600) as server, Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost")
        until(lambda: any(one._reader.phase == HEAD for one in server.open))
        server.drain()
        assert client.read()[0] == 503


def test_idle_connections_do_not_delay_the_end() -> None:
    """fault: K-G"""
    with served(TrivialApp(), drain_seconds=3600) as server, Client(server.port) as idle, Client(server.port) as silent:
        idle.get()
        idle.read()
        until(lambda: server.connections == 2)
        server.drain()
        assert [idle.rest(), silent.rest()] == [b"", b""]
        server.join()  # long before the drain time is over


def test_a_second_drain_ends_at_once() -> None:
    """fault: K-G"""
    app, emitted = TrivialApp(), threading.Event()
    with served(app, drain_seconds=3600, on_drain=emitted.set) as server, Client(server.port) as client:
        client.get("/stream")
        client.read_head()
        server.drain()
        assert emitted.wait(HANG_SECONDS)
        server.drain()
        client.rest()
        app.release.set()
        server.join()


def test_an_application_that_does_not_stop_is_abandoned_after_a_second_drain() -> None:
    """fault: K-G"""
    stopping = threading.Event()

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        stopping.set()
        await asyncio.Event().wait()

    with served(stubborn) as server:
        server.drain()
        assert stopping.wait(HANG_SECONDS)
        server.drain()
        server.join()


PROGRAM = """
import sys
from tests.http.raw_client import TrivialApp
from toolgate.http.listener import run

def say(word):
    print(word, flush=True)

app = TrivialApp()
run(app, on_ready=say, on_drain=lambda: say("draining"), drain_seconds=float(sys.argv[1]))
say("ended")
"""


@pytest.mark.parametrize(
    ("seconds", "signals", "last_chunk"),
    [("0.2", 1, b"error: shutting down"), ("3600", 2, None)],
    ids=["once", "twice"],
)
def test_sigterm_drains_and_a_second_one_does_not_wait(seconds: str, signals: int, last_chunk: bytes | None) -> None:
    """fault: K-G"""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, seconds]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with Client(int(url.rpartition(":")[2])) as client:
            client.get("/flood" if last_chunk is None else "/stream")
            client.read_head()
            client.read_chunk()
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "draining\n"
            if signals == 2:
                process.send_signal(signal.SIGTERM)
            ending = client.rest()
            assert last_chunk is None or last_chunk in ending
        assert process.stdout.read() == "ended\n"
        assert process.wait(HANG_SECONDS) == 0


def test_a_process_short_of_files_refuses_what_it_cannot_hold_and_recovers() -> None:
    """fault: R1"""
    short = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n" + PROGRAM
    command = [sys.executable, "-c", short, "0"]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        port = int(process.stdout.readline().rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(port)) for _ in range(50)]
            assert [client.read_head()[0] for client in clients[32:]] == [503] * 18
            clients[0].get()
            assert clients[0].read()[0] == 200
        until(lambda: answers(port))
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0


async def test_the_base_url_is_there_for_tests_in_the_same_loop() -> None:
    async with listening(TrivialApp()) as url:
        answer = await asyncio.to_thread(urllib.request.urlopen, url + "/")
        with answer:
            assert answer.read() == b"hello"
            assert answer.headers["date"].endswith(" GMT")
            assert "server" not in answer.headers
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(urllib.request.urlopen, url)


async def test_an_application_that_cannot_start_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no database")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InternalGatewayError, match="did not start"):
        async with listening(broken):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
    assert "no database" in caplog.text


async def test_a_port_in_use_is_reported_as_such() -> None:
    async with listening(TrivialApp()) as url:
        with pytest.raises(OSError, match="in use"):
            async with listening(TrivialApp(), port=int(url.rpartition(":")[2])):
                pass


def test_the_date_is_the_present_one() -> None:
    with served(TrivialApp()) as server, Client(server.port) as client:
        dates: set[str] = set()
        deadline = time.monotonic() + HANG_SECONDS
        while len(dates) < 2:
            assert time.monotonic() < deadline, "it stands still"
            client.send(request("GET", "/"))
            _, headers = client.read_head()
            client.read_bytes(5)
            dates.add(headers["date"])
