"""How long a client may take to send, to read and to leave."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvloop

from tests.http.raw_client import HANG_SECONDS, Client, DrivenLoop, Served, TrivialApp, request, served, until
from toolgate.http import half_close_probe
from toolgate.http.request_reader import HEAD
from toolgate.http.sockets import bind

Loop = Callable[[], asyncio.AbstractEventLoop]

HOUR, MARGIN = 3600.0, 60.0
"""A limit on a clock that the test puts forward, and how much of it real time may use up meanwhile."""

LOOPS = pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])


def trickle(server: Served, client: Client, piece: bytes) -> None:
    """Send ten pieces in just less than an hour."""
    for _ in range(10):
        client.send(piece)
        server.advance((HOUR - MARGIN) / 10)
        assert server.connections == 1


@pytest.mark.parametrize("seconds", [1e-6, 30 * 24 * HOUR, 2.0**53])
def test_a_write_stall_that_the_kernel_cannot_count_is_shortened(seconds: float) -> None:
    """The server did not start with more than 24 days; 0 milliseconds would be no limit."""
    with bind("127.0.0.1", 0, seconds) as listening:
        assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == (1 if seconds < 1 else 2**31 - 1)


@LOOPS
def test_a_silent_connection_is_closed(loop_factory: Loop) -> None:
    """fault: C6"""
    with served(TrivialApp(), loop_factory, head_seconds=0.2) as server, Client(server.port) as client:
        assert client.rest() == b""


def test_a_silent_connection_is_closed_when_its_time_is_up_and_not_before() -> None:
    """fault: C6"""
    with served(TrivialApp(), DrivenLoop, head_seconds=HOUR) as server, Client(server.port) as client:
        until(lambda: server.connections == 1)
        server.advance(HOUR - MARGIN)
        assert server.connections == 1
        server.advance(MARGIN)
        assert client.rest() == b""


def test_headers_that_trickle_in_get_408_however_often_a_byte_comes() -> None:
    """fault: C6"""
    with served(TrivialApp(), DrivenLoop, head_seconds=HOUR) as server, Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ")
        until(lambda: server.connections == 1)
        trickle(server, client, b"a")
        server.advance(MARGIN)
        assert client.read()[0] == 408


def test_the_headers_of_a_later_request_have_their_own_time() -> None:
    """fault: C6"""
    limits = {"head_seconds": HOUR, "keep_alive_seconds": 3 * HOUR}
    with served(TrivialApp(), DrivenLoop, **limits) as server, Client(server.port) as client:
        client.get()
        client.read()
        server.advance(2 * HOUR)  # longer than headers may take, but it is not sending any
        client.send(b"GET / HTTP")
        until(lambda: any(one._reader.phase == HEAD for one in server.open))
        server.advance(HOUR)
        assert client.read()[0] == 408


def test_a_body_that_stops_gets_408() -> None:
    """fault: C6"""
    app = TrivialApp()
    with served(app, body_idle_seconds=0.2) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 100", body=b"x" * 50))
        assert client.read()[0] == 408
        app.departures.get(timeout=HANG_SECONDS)


def test_a_body_that_trickles_in_gets_408_when_its_whole_time_is_up() -> None:
    """fault: C6"""
    app, limits = TrivialApp(), {"body_idle_seconds": HOUR / 2, "body_seconds": HOUR}
    with served(app, DrivenLoop, **limits) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Transfer-Encoding: chunked"))
        app.seen.get(timeout=HANG_SECONDS)
        trickle(server, client, b"1\r\nx\r\n")
        server.advance(MARGIN)
        assert client.read()[0] == 408


def test_a_slow_body_that_keeps_coming_is_answered() -> None:
    """fault: C6"""
    app, limits = TrivialApp(), {"body_idle_seconds": HOUR, "body_seconds": 9 * HOUR}
    with served(app, DrivenLoop, **limits) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 6"))
        for _ in range(6):
            server.advance(HOUR - MARGIN)
            wanted = app.received + 1
            client.send(b"x")
            until(partial(app.has_received, wanted))
        assert client.read() == (200, b"xxxxxx")


def test_a_connection_without_requests_is_closed_after_its_keep_alive_time() -> None:
    """fault: C6"""
    limits = {"keep_alive_seconds": HOUR, "head_seconds": 9 * HOUR}
    with served(TrivialApp(), DrivenLoop, **limits) as server, Client(server.port) as client:
        for _ in range(3):
            client.get()
            assert client.read()[0] == 200
            server.advance(HOUR - MARGIN)
        server.advance(MARGIN)
        assert client.rest() == b""


def test_an_application_may_take_longer_than_any_limit_of_the_client() -> None:
    app = TrivialApp()
    names = ("head_seconds", "body_idle_seconds", "body_seconds", "keep_alive_seconds", "write_stall_seconds")
    limits: dict[str, Any] = dict.fromkeys(names, HOUR)
    with served(app, DrivenLoop, **limits) as server, Client(server.port) as client:
        client.get("/hold")
        app.seen.get(timeout=HANG_SECONDS)
        server.advance(4 * HOUR)
        app.release.set()
        assert client.read() == (200, b"held")


def test_silent_and_slow_connections_are_closed_while_a_normal_client_is_answered() -> None:
    """fault: C6"""
    times = {"head_seconds": HOUR, "body_idle_seconds": HOUR, "keep_alive_seconds": 3 * HOUR}
    with served(TrivialApp(), DrivenLoop, **times) as server, contextlib.ExitStack() as clients:
        slow = [clients.enter_context(Client(server.port)) for _ in range(200)]
        begun_body, begun_head, silent = request("POST", "/", "Content-Length: 9"), b"GET / HTTP/1.1\r\nX-A", b""
        for number, client in enumerate(slow):
            client.send((begun_body, begun_head, silent)[number % 3])
        normal = clients.enter_context(Client(server.port))
        until(lambda: server.connections == 201)
        for _ in range(2):
            normal.get()
            assert normal.read() == (200, b"hello")
            server.advance(HOUR)
        for client in slow:
            client.rest()  # ends
        normal.get()
        assert normal.read() == (200, b"hello")


@pytest.fixture
def without_the_kernels_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has a write-stall timeout of its own, which would hide that ours is missing."""
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")


@LOOPS
@pytest.mark.usefixtures("without_the_kernels_help")
def test_a_client_that_reads_nothing_is_dropped_and_its_application_notified(loop_factory: Loop) -> None:
    """fault: C3"""
    app = TrivialApp()
    stalling = served(app, loop_factory, write_stall_seconds=0.4)
    with stalling as server, Client(server.port, receive_buffer=4096) as client:
        client.get("/flood")
        until(lambda: any(one.flow.write_paused for one in server.open))
        (connection,) = server.open
        assert connection.transport.get_write_buffer_size() <= 128 * 1024
        app.departures.get(timeout=HANG_SECONDS)
        until(lambda: server.connections == 0)


@pytest.mark.usefixtures("without_the_kernels_help")
def test_a_client_that_reads_a_long_answer_slowly_but_steadily_gets_it_whole() -> None:
    """fault: C3"""
    body = b"x" * 8_000_000
    slow = served(TrivialApp(), DrivenLoop, write_stall_seconds=HOUR)
    with slow as server, Client(server.port, receive_buffer=65536) as client:
        client.send(request("POST", "/", "Connection: close", f"Content-Length: {len(body)}", body=body))
        received = 0
        while piece := client.socket.recv(200_000):
            received += len(piece)
            if received // 1_000_000 > (received - len(piece)) // 1_000_000:
                server.advance(0.6 * HOUR)
        assert received > len(body)


@pytest.mark.usefixtures("without_the_kernels_help")
def test_an_answer_that_is_never_read_does_not_keep_a_closing_connection() -> None:
    """fault: C3"""
    app, body = TrivialApp(), b"x" * 10_000
    limits: dict[str, Any] = {"write_stall_seconds": 0.3, "keep_alive_seconds": 0.2}
    with served(app, **limits) as server, Client(server.port, receive_buffer=4096) as client:
        until(lambda: server.connections == 1)
        (connection,) = server.open
        while not connection.transport.get_write_buffer_size():
            client.send(request("POST", "/", f"Content-Length: {len(body)}", body=body))
            app.seen.get(timeout=HANG_SECONDS)
            until(lambda: connection._running is None)
        assert not connection.flow.write_paused, "so that only the closing can get stuck"
        until(lambda: server.connections == 0)


@LOOPS
@pytest.mark.parametrize("path", ["/", "/hold", "/stream"])
def test_a_client_that_half_closed_gets_its_answer(path: str, loop_factory: Loop) -> None:
    """fault: C4"""
    app = TrivialApp()
    with served(app, loop_factory) as server, Client(server.port) as client:
        client.send(request("POST", path, "Content-Length: 4", body=b"body"))
        client.half_close()
        app.seen.get(timeout=HANG_SECONDS)
        app.release.set()
        status, body = client.read()
        assert (status, body) == (200, b"first;last" if path == "/stream" else b"body")
        assert client.rest() == b""
    assert app.departures.empty()


def test_a_half_closed_client_gets_all_its_answers() -> None:
    """fault: C4, C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/hold") + request("GET", "/a") + request("GET", "/b"))
        app.seen.get(timeout=HANG_SECONDS)
        client.half_close()
        app.release.set()
        assert [client.read()[1] for _ in range(3)] == [b"held", b"hello", b"hello"]
        assert client.rest() == b""


@LOOPS
def test_a_half_closed_client_that_waits_long_is_probed_without_harm(loop_factory: Loop) -> None:
    """fault: C4"""
    app = TrivialApp()
    with served(app, loop_factory) as server, Client(server.port) as held, Client(server.port) as streamed:
        held.get("/hold")
        streamed.get("/stream")
        assert streamed.read_head()[0] == 200
        assert streamed.read_chunk() == b"first;"
        held.half_close()
        streamed.half_close()
        assert held.read_head()[0] == 100  # the probe; HTTP/1.1 clients expect any number of these
        time.sleep(0.3)
        app.release.set()
        assert held.read() == (200, b"held")
        assert list(streamed.chunks()) == [b"last"]
    assert app.departures.empty()


def test_an_answer_that_begins_after_the_half_close_needs_no_probe() -> None:
    """fault: C4"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.get("/late")
        app.seen.get(timeout=HANG_SECONDS)
        client.half_close()
        until(lambda: any(one._client_probe for one in server.open))
        app.release.set()
        assert client.read_head()[0] == 200
        assert client.rest() == b"6\r\nfirst;\r\n4\r\nlast\r\n0\r\n\r\n"


def leave(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@LOOPS
@pytest.mark.parametrize("depart", [leave, reset])
@pytest.mark.parametrize("path", ["/hold", "/stream", "/flood"])
def test_a_departure_is_seen(path: str, depart: Callable[[Client], None], loop_factory: Loop) -> None:
    """fault: C1"""
    app = TrivialApp()
    with served(app, loop_factory) as server, Client(server.port) as client:
        client.get(path)
        app.seen.get(timeout=HANG_SECONDS)
        if path != "/hold":
            client.read_head()
            client.read_chunk()
        depart(client)
        app.departures.get(timeout=HANG_SECONDS)
        until(lambda: server.connections == 0)


def test_the_departure_of_an_http_1_0_client_is_seen_without_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault: C1, C4"""
    monkeypatch.setattr(half_close_probe, "_PROBE_AFTER", HOUR)
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(b"GET /hold HTTP/1.0\r\n\r\n")
        app.seen.get(timeout=HANG_SECONDS)
        client.close()
        app.departures.get(timeout=HANG_SECONDS)


def test_a_departure_with_requests_in_the_queue_is_seen_by_the_one_that_runs() -> None:
    """fault: C1, C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/hold") + request("GET", "/a") + request("GET", "/b"))
        app.seen.get(timeout=HANG_SECONDS)
        reset(client)
        app.departures.get(timeout=HANG_SECONDS)
        until(lambda: server.connections == 0)
    assert app.seen.empty()
