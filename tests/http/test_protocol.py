"""Requests whose handling fails, or that name no path, are answered or closed, and never hold a connection for ever."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.raw_client import Client, TrivialApp, request, served
from tests.http.websocket_server import with_keys
from tests.stage import Player
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import KeySettings, Secret
from toolgate.http import evictions
from toolgate.http.connection_task import ConnectionTask
from toolgate.http.deadlines import NEVER
from toolgate.http.protocol import HttpProtocol

ANN = KeySettings(name="ann", key=Secret("ann-key"), scopes=("chat",))
HOST = "\r\nHost: toolgate.test\r\n\r\n"

NO_PATH = {
    "an asterisk": ("GET * HTTP/1.1" + HOST, 404),
    "an asterisk posted to": ("POST * HTTP/1.1" + HOST, 404),
    "an asterisk in HTTP/1.0": ("GET * HTTP/1.0\r\n\r\n", 404),
    "an asterisk that wants to upgrade": (
        "GET * HTTP/1.1\r\nHost: toolgate.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        404,
    ),
    "OPTIONS of the whole server": ("OPTIONS * HTTP/1.1" + HOST, 403),
    "another host": ("GET http://other.test/v1/models HTTP/1.1" + HOST, 400),
    "this host": ("GET http://toolgate.test/healthz HTTP/1.1" + HOST, 200),
    "this host without a path": ("GET http://toolgate.test HTTP/1.1" + HOST, 200),
    "a URL that cannot be split": ("GET http://[::1/ HTTP/1.1" + HOST, 400),
    "a tunnel": ("CONNECT other.test:443 HTTP/1.1" + HOST, 405),
    "a tunnel to a path": ("CONNECT /v1/models HTTP/1.1" + HOST, 405),
    "no slash": ("GET healthz HTTP/1.1" + HOST, 400),
    "a fragment": ("GET /healthz#top HTTP/1.1" + HOST, 400),
    "an encoded asterisk": ("GET /%2A HTTP/1.1" + HOST, 404),
}


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    gate = Toolgate(with_keys(ANN), {"played": Player()})
    with served(gate, encode_error=gate.refuse) as server:
        yield server.port


@pytest.mark.parametrize(("sent", "status"), NO_PATH.values(), ids=NO_PATH.keys())
def test_a_target_that_is_no_path_is_answered(
    port: int, sent: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(port) as client:
        client.send(sent.encode())
        assert client.read_head()[0] == status
    assert not errors(caplog)


OTHERS = {
    "TLS": (bytes.fromhex("160301006a0100006603033f") + b"\0" * 100, 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", 505),
    "HEAD": (b"HEAD /healthz HTTP/1.1" + HOST.encode(), 200),
    "TRACE": (b"TRACE /healthz HTTP/1.1" + HOST.encode(), 405),
    "a body where none belongs": (request("GET", "/healthz", "Content-Length: 2", body=b"{}"), 200),
    "a length of thousands of zeros": (request("POST", "/healthz", f"Content-Length: {0:05000}"), 400),
    "an upgrade to something unknown": (request("GET", "/healthz", "Connection: Upgrade", "Upgrade: dance"), 200),
    "trailers": (request("POST", "/healthz", "Transfer-Encoding: chunked", body=b"0\r\nX-T: 1\r\n\r\n"), 405),
}


@pytest.mark.parametrize(("sent", "status"), OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("half_closed", [False, True])
def test_what_is_unusual_is_answered_and_the_connection_ends(
    port: int, sent: bytes, status: int, half_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(port) as client:
        client.send(sent)
        if half_closed:
            client.half_close()
        assert client.read_head()[0] == status
        with contextlib.suppress(OSError):  # it is closed already
            client.half_close()
        client.rest()
    assert not errors(caplog)


def test_a_request_behind_a_broken_one_is_not_carried_out(port: int) -> None:
    with Client(port) as client:
        client.send(b"GET * HTTP/1.1" + HOST.encode() + b"?\r\n\r\n" + b"GET /healthz HTTP/1.1" + HOST.encode())
        response = client.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", response) == [b"404", b"400"]


def test_connections_without_a_key_cannot_fill_the_server(caplog: pytest.LogCaptureFixture) -> None:
    gate = Toolgate(with_keys(ANN), {"played": Player()})
    with served(gate, encode_error=gate.refuse, connections=4, keep_alive_seconds=0.1) as server:
        for _ in range(3):
            clients = [Client(server.port) for _ in range(4)]
            for client in clients:
                client.send(b"GET * HTTP/1.1" + HOST.encode())
            for client in clients:
                assert client.rest().startswith(b"HTTP/1.1 404 ")  # and it is closed
                client.close()
        with Client(server.port) as client:
            client.get("/healthz")
            assert client.read_head()[0] == 200
    assert not errors(caplog)


def test_an_idle_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evictions, "IDLE_SECONDS", 1e-6)
    app = TrivialApp()
    loop = asyncio.new_event_loop  # whose clock is finer than that of uvloop
    with served(app, loop, connections=2) as server, Client(server.port) as busy, Client(server.port) as idle:
        busy.get("/hold")
        idle.get()
        assert idle.read()[0] == 200
        app.seen.get(timeout=30), app.seen.get(timeout=30)
        with Client(server.port) as new:
            new.get("/hold")
            app.seen.get(timeout=30)
            assert idle.rest() == b""
            with Client(server.port) as one_more:
                assert one_more.read_head()[0] == 503
            app.release.set()
            assert busy.read() == new.read() == (200, b"held")


@pytest.mark.parametrize("path", ["/unread", "/crash"])
def test_an_error_that_cannot_be_encoded_for_its_path_is_encoded_as_openai_does(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str | None, error: Exception) -> tuple[int, bytes]:
        raise StopIteration("on purpose")

    with served(TrivialApp(), encode_error=refuse) as server, Client(server.port) as client:
        client.send(f"GET {path} HTTP/1.1\r\n".encode() + (b"\r\n" if path == "/unread" else b"Host: a\r\n\r\n"))
        status = 400 if path == "/unread" else 500
        assert client.rest().startswith(b"HTTP/1.1 %d " % status)
    assert "could not be encoded" in errors(caplog)[-1]


@pytest.mark.parametrize("callback", ["_read", "_set_deadline", "_reject", "_linger", "_close"])
@pytest.mark.parametrize("new_loop", [None, asyncio.new_event_loop])
def test_a_connection_whose_callback_raises_is_closed(
    callback: str, new_loop: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(HttpProtocol, callback, broken)
    options: dict[str, Any] = {} if new_loop is None else {"loop_factory": new_loop}
    with served(TrivialApp(), **options) as server, Client(server.port) as client:
        sent = {"_set_deadline": b"GET /", "_reject": b"?", "_linger": b"?"}
        client.send(sent.get(callback, request("GET", "/", "Connection: close")))
        client.rest()
    assert "A connection failed and was closed" in errors(caplog)


def test_a_request_that_cannot_be_begun_is_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(ConnectionTask, "run", broken)
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.get()
        assert client.read()[0] == 500
    assert errors(caplog) == ["A request could not be read"]


def test_a_timer_that_raises_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(HttpProtocol, "expire", broken)
    with served(TrivialApp(), head_seconds=0.05) as server, Client(server.port) as client:
        assert client.rest() == b""
    assert "failed" in errors(caplog)[-1]


def test_a_request_whose_task_dies_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        """End without an answer."""

    monkeypatch.setattr(ConnectionTask, "_serve", broken)
    with served(TrivialApp(), write_stall_seconds=0.05) as server, Client(server.port) as client:
        client.get()
        assert client.rest() == b""
    assert errors(caplog)[-1] == "Closed a connection that had no deadline and no running request"


def test_a_connection_that_waits_for_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever forgets to set a deadline: a connection that runs no request has one."""

    def forget(protocol: HttpProtocol, _: int) -> None:
        protocol._deadlines.client_by = NEVER

    monkeypatch.setattr(HttpProtocol, "_set_deadline", forget)
    limits: dict[str, Any] = {"head_seconds": 0.05, "keep_alive_seconds": 0.05, "write_stall_seconds": 0.05}
    with served(TrivialApp(), **limits) as server, Client(server.port) as client:
        client.get()
        client.read()
        client.send(b"GET / HT")
        client.rest()
