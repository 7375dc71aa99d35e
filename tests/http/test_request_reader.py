"""Where a request ends, and in which turn it is answered: everything that could be read in two ways is refused."""

import asyncio
import contextlib
import json
from collections.abc import Callable

import pytest
import uvloop

from tests.http.raw_client import Client, TrivialApp, request, served
from toolgate.conversation.errors import ToolgateError

POST = "POST / HTTP/1.1\r\nHost: toolgate.test\r\n"
CHUNKED = POST + "Transfer-Encoding: chunked\r\n\r\n"

AMBIGUOUS = {
    "length and chunked": POST + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": POST + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + "Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + "Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + "Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + "Content-Length: 0x3\r\n\r\nabc",
    "an endless length": POST + "Content-Length: 99999999999999999999999\r\n\r\nabc",
    "chunked with a comma": POST + "Transfer-Encoding: chunked ,\r\n\r\n0\r\n\r\n",
    "a comma before chunked": POST + "Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n",
    "identity": POST + "Transfer-Encoding: identity\r\n\r\nabc",
    "identity, chunked": POST + "Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "gzip, chunked": POST + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": POST + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two transfer encodings": POST + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked with a vertical tab": POST + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": POST + "X-A: b\r\n c\r\n\r\n",
    "a space before the first header": "GET / HTTP/1.1\r\n Host: toolgate.test\r\n\r\n",
    "a space before the colon": POST + "Content-Length : 3\r\n\r\nabc",
    "a tab before the colon": POST + "Content-Length\t: 3\r\n\r\nabc",
    "no colon": POST + "Content-Length\r\n\r\n",
    "an empty header name": POST + ": x\r\n\r\n",
    "a NUL in a value": POST + "X-A: b\0c\r\n\r\n",
    "a control character in a value": POST + "X-A: b\x01c\r\n\r\n",
    "a bare CR in a value": POST + "X-A: b\rX-B: c\r\n\r\n",
    "a bare LF in a value": POST + "X-A: b\nX-B: c\r\n\r\n",
    "bare LFs throughout": "GET / HTTP/1.1\nHost: toolgate.test\n\n",
    "a chunk extension without a name": CHUNKED + "3;\r\nabc\r\n0\r\n\r\n",
    "a chunk extension with a NUL": CHUNKED + "3;\0\r\nabc\r\n0\r\n\r\n",
    "a chunk extension with a bare LF": CHUNKED + "3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a chunk extension with a bare CR": CHUNKED + "3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a space after the chunk size": CHUNKED + "3 \r\nabc\r\n0\r\n\r\n",
    "a hexadecimal prefix": CHUNKED + "0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + "3\r\nabcd\r\n0\r\n\r\n",
    "an endless chunk size": CHUNKED + "f" * 17 + "\r\nabc",
    "a length among the trailers": CHUNKED + "0\r\nContent-Length: 5\r\n\r\n",
    "no Host": "GET / HTTP/1.1\r\n\r\n",
    "two Hosts": "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "an empty Host": "GET / HTTP/1.1\r\nHost:\r\n\r\n",
    "a Host with a path": "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a Host with a user": "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "a Host with a question": "GET / HTTP/1.1\r\nHost: a?b\r\n\r\n",
    "a target on another host": "GET http://other.test/ HTTP/1.1\r\nHost: toolgate.test\r\n\r\n",
    "a target with a user": "GET http://me@toolgate.test/ HTTP/1.1\r\nHost: toolgate.test\r\n\r\n",
    "a target with a fragment": "GET /#x HTTP/1.1\r\nHost: toolgate.test\r\n\r\n",
    "a target with a NUL": "GET /a\0b HTTP/1.1\r\nHost: toolgate.test\r\n\r\n",
    "a target beyond ASCII": "GET /\xe9 HTTP/1.1\r\nHost: toolgate.test\r\n\r\n",
    "an unknown method": "FOO / HTTP/1.1\r\nHost: toolgate.test\r\n\r\n",
    "no HTTP at all": "\x16\x03\x01\x02\x00\x01\x00\x01",
}


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_an_ambiguous_request_gets_400_and_nothing_after_it_is_read(sent: str) -> None:
    """fault: C5, Z4"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(sent.encode("latin-1") + request("GET", "/smuggled"))
        status, headers = client.read_head()
        output = json.loads(client.rest())["error"]
    assert (status, headers["connection"]) == (400, "close")
    assert output["type"] == "invalid_request_error"
    assert output["message"]
    assert output["code"]
    assert "/smuggled" not in [scope["path"] for scope in app.seen.queue]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET / HTTP/0.9", 505),
        ("GET / HTTP/2.0", 505),
        ("GET /", 505),
        ("CONNECT a:1 HTTP/1.1", 405),
    ],
)
def test_another_protocol_is_refused_by_its_own_status(line: str, status: int) -> None:
    """fault: C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(f"{line}\r\nHost: toolgate.test\r\n\r\n".encode())
        assert client.read_head()[0] == status
        client.rest()
    assert app.seen.empty()


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (POST + "Transfer-Encoding: Chunked \r\n\r\n3;name=value\r\nabc\r\n02\r\nde\r\n0\r\n\r\n", b"abcde"),
        (POST + "Content-Length: 3 \r\n\r\nabc", b"abc"),
        ("\r\n\r\n" + POST + "Content-Length: 3\r\n\r\nabc", b"abc"),
        ("POST http://toolgate.test/ HTTP/1.1\r\nHost: toolgate.test\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        ("POST http://toolgate.test:80/ HTTP/1.1\r\nHost: TOOLGATE.test:80\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        (POST + "Content-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc", b"abc"),
        ("OPTIONS * HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", b"hello"),
    ],
)
def test_what_is_unusual_but_clear_is_answered(sent: str, body: bytes) -> None:
    """fault: C5"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(sent.encode())
        assert client.read() == (200, body)
        client.get()
        assert client.read() == (200, b"hello")


def test_any_split_of_the_bytes_reads_the_same() -> None:
    """fault: C5"""
    sent = request("POST", "/a?b=%20", "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\nX: y\r\n\r\n") * 2
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        for byte in sent:
            client.send(bytes((byte,)))
        assert [client.read(), client.read()] == [(200, b"abc")] * 2
    assert [scope["query_string"] for scope in app.seen.queue] == [b"b=%20"] * 2


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_requests_in_one_packet_are_answered_in_order(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """fault: C5"""
    app = TrivialApp()
    with served(app, loop_factory) as server, Client(server.port) as client:
        packet = request("POST", "/hold", "Content-Length: 1", body=b"0")
        packet += b"".join(request("POST", "/", "Content-Length: 1", body=b"%d" % n) for n in range(1, 10))
        client.send(packet)
        app.seen.get(timeout=30)
        client.send(request("POST", "/", "Content-Length: 2", body=b"10"))
        app.release.set()
        assert [client.read()[1] for _ in range(11)] == [b"%d" % n for n in range(11)]


def test_a_request_that_is_sent_ahead_waits_unread_in_bounded_space() -> None:
    """fault: C5"""
    app = TrivialApp()
    body = b"x" * 300_000
    ahead = request("POST", "/", f"Content-Length: {len(body)}", body=body)
    with served(app) as server, Client(server.port) as client:
        client.get("/hold")
        app.seen.get(timeout=30)
        client.socket.settimeout(0.3)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 100_000_000:
                sent += client.socket.send(ahead)
        (connection,) = server.open
        assert sent < 100_000_000, "the server went on reading"
        assert len(connection._pipeline.held) < 400_000
        assert app.seen.empty()


def test_bodies_sent_ahead_arrive_whole_once_it_is_their_turn() -> None:
    """fault: C5"""
    app = TrivialApp()
    bodies = [bytes((65 + n,)) * 90_000 for n in range(3)]
    with served(app) as server, Client(server.port) as client:
        client.get("/hold")
        client.send(b"".join(request("POST", "/", f"Content-Length: {len(body)}", body=body) for body in bodies))
        app.release.set()
        assert [client.read()[1] for _ in range(4)] == [b"held", *bodies]


def test_a_refusal_waits_for_the_answers_before_it() -> None:
    """fault: C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/hold") + request("GET", "/next") + b"nonsense\r\n\r\n" + request("GET", "/after"))
        assert app.seen.get(timeout=30)["path"] == "/hold"
        app.release.set()
        assert [client.read()[0] for _ in range(3)] == [200, 200, 400]
        assert client.rest() == b""
    assert [scope["path"] for scope in app.seen.queue] == ["/next"]


def test_a_request_that_breaks_in_its_body_while_it_waits_never_runs() -> None:
    """fault: C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/hold") + CHUNKED.encode() + b"3\r\nabc\r\nzz\r\n")
        assert app.seen.get(timeout=30)["path"] == "/hold"
        app.release.set()
        assert [client.read()[0] for _ in range(2)] == [200, 400]
    assert app.seen.empty()


def test_a_refusal_in_turn_reaches_a_half_closed_client_too() -> None:
    """fault: C4, C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/hold") + b"nonsense\r\n\r\n")
        app.seen.get(timeout=30)
        client.half_close()
        app.release.set()
        assert [client.read()[0] for _ in range(2)] == [200, 400]
        assert client.rest() == b""


def test_too_many_requests_ahead_end_the_connection_after_the_answers() -> None:
    """fault: C5"""
    with served(TrivialApp(), pipelined=3) as server, Client(server.port) as client:
        client.send(request("GET", "/") * 50)
        assert [client.read()[0] for _ in range(5)] == [200] * 4 + [400]
        assert client.rest() == b""


def test_nothing_after_connection_close_is_read() -> None:
    """fault: C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/", "Connection: close") + request("GET", "/after"))
        assert client.read() == (200, b"hello")
        assert client.rest() == b""
    assert [scope["path"] for scope in app.seen.queue] == ["/"]


def test_trailers_do_not_become_headers_of_the_request() -> None:
    """fault: C5"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(CHUNKED.encode() + b"3\r\nabc\r\n0\r\nAuthorization: Bearer stolen\r\nHost: evil\r\n\r\n")
        assert client.read() == (200, b"abc")
    names = [name for name, _ in app.seen.get()["headers"]]
    assert names == [b"host", b"transfer-encoding"]


def test_a_wish_for_an_upgrade_is_ignored_and_its_body_kept() -> None:
    """fault: C5"""
    wish = (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        "Content-Length: 33",
    )
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("POST", "/", *wish, body=b"GET /smuggled"))
        app.seen.get(timeout=30)
        client.send(b" HTTP/1.1\r\nHost: a\r\n" + request("GET", "/next"))
        assert client.read() == (200, b"GET /smuggled HTTP/1.1\r\nHost: a\r\n")
        assert client.read()[0] == 200
    assert app.seen.get()["path"] == "/next"


WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


def test_an_application_without_websockets_answers_the_handshake_like_any_request() -> None:
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.get("/", *WEBSOCKET)
        assert client.read() == (200, b"hello")
        client.get("/next")
        assert client.read() == (200, b"hello")


def test_a_websocket_request_with_a_body_is_a_plain_request() -> None:
    """fault: C5"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("GET", "/", *WEBSOCKET, "Content-Length: 4", body=b"body"))
        assert client.read() == (200, b"body")


def test_a_thousand_requests_pass_on_one_connection() -> None:
    """fault: C5"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        for n in range(1000):
            client.send(request("POST", "/", f"Content-Length: {len(str(n))}", body=str(n).encode()))
            assert client.read() == (200, str(n).encode())
        assert server.connections == 1


def test_http_1_0_is_answered_without_chunks_and_closed() -> None:
    app = TrivialApp()
    app.release.set()
    with served(app) as server, Client(server.port) as client:
        client.send(b"GET /stream HTTP/1.0\r\n\r\n")
        status, headers = client.read_head()
        assert (status, "transfer-encoding" in headers, headers["connection"]) == (200, False, "close")
        assert client.rest() == b"first;last"


def test_the_application_sees_the_target_as_asgi_defines_it() -> None:
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("GET", "/a%20b/%E2%82%AC?q=%20&r", "X-Thing: Yes"))
        client.read()
    scope = app.seen.get()
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a b/€", b"/a%20b/%E2%82%AC", b"q=%20&r")
    assert (scope["method"], scope["http_version"], scope["scheme"]) == ("GET", "1.1", "http")
    assert scope["headers"] == [(b"host", b"toolgate.test"), (b"x-thing", b"Yes")]


def test_a_crash_before_the_first_byte_is_a_500_encoded_for_its_path(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(path: str | None, error: ToolgateError) -> tuple[int, bytes]:
        return error.status, f"{path}!".encode()

    with served(TrivialApp(), encode_error=refuse) as server, Client(server.port) as client:
        client.send(request("GET", "/crash") + request("GET", "/other"))
        assert client.read() == (500, b"/crash!")
        assert client.rest() == b""
    assert "on purpose" in caplog.text


def test_a_crash_in_the_middle_cuts_the_answer_so_that_it_cannot_pass_for_whole() -> None:
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.get("/crash-late")
        assert client.read_head()[0] == 200
        assert client.rest() == b"4\r\nhalf\r\n"
