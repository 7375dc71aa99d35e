"""How much a client may send: refused as soon as it is too much, without reading the rest."""

import gzip
import json
import os
import socket

import psutil
import pytest

from tests.http.raw_client import Client, TrivialApp, request, served, until
from toolgate.conversation.errors import ToolgateError


def pour(client: Client, piece: bytes, total: int) -> int:
    """Send `piece` again and again until `total` bytes are sent or the server wants no more; return how many went."""
    sent = 0
    try:
        while sent < total:
            sent += client.socket.send(piece)
    except OSError:
        pass
    return sent


def refused(client: Client) -> tuple[int, str]:
    """Read a refusal, and make sure that the connection ends with it."""
    status, headers = client.read_head()
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req_")
    return status, json.loads(client.rest())["error"]["code"]


def memory() -> int:
    return psutil.Process(os.getpid()).memory_info().rss


BOMBS = {
    "one header of 200 MB": (b"X-A: ", b"a" * 65536, 431),
    "headers without end": (b"", b"a:b\r\n" * 13000, 431),
    "a cookie of 200 MB": (b"Cookie: ", b"a=b; " * 13000, 431),
    "empty lines without end": (None, b"\r\n" * 32768, 431),
    "a URL without end": (b"GET /", b"a" * 65536, 414),
    "a method without end": (b"G", b"E" * 65536, 400),
}


@pytest.mark.parametrize(("start", "piece", "status"), BOMBS.values(), ids=BOMBS.keys())
def test_a_header_bomb_is_cut_off_early_and_costs_no_memory(start: bytes | None, piece: bytes, status: int) -> None:
    """fault: C7"""
    with served(TrivialApp()) as server:
        for _ in range(3):  # the allocator's own first growth is not the bomb's
            with Client(server.port) as client:
                client.get("/", "X-A: " + "a" * 30000)
                client.read()
        before = memory()
        with Client(server.port) as client:
            if start is not None:
                client.send(start if start.startswith(b"G") else b"GET / HTTP/1.1\r\nHost: toolgate.test\r\n" + start)
            sent = pour(client, piece, 200_000_000)
            growth = memory() - before
            assert client.read_head()[0] == status
            assert sent < 20_000_000
            assert growth <= 2 * 1024 * 1024
        with Client(server.port) as client:
            client.send(request("GET", "/"))
            assert client.read()[0] == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (request("GET", "/", "X-A: " + "a" * 40_000), 431, "headers_too_large"),
        (request("GET", "/", "Cookie: " + "a" * 60_000), 431, "headers_too_large"),
        (request("GET", "/", *[f"X-{n}: a" for n in range(150)]), 431, "too_many_headers"),
        (request("GET", "/", *[f"X-{n}: a" for n in range(3000)]), 431, "too_many_headers"),
        (request("GET", "/" + "a" * 65536), 414, "url_too_long"),
        (request("GET", "/?" + "a" * 8192), 414, "url_too_long"),
    ],
)
def test_a_head_beyond_its_limit_gets_an_error_that_names_the_limit(sent: bytes, status: int, code: str) -> None:
    """fault: C7"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(sent)
        assert refused(client) == (status, code)
    assert app.seen.empty()


def test_a_head_at_its_limits_is_answered() -> None:
    """fault: C7"""
    headers = [f"X-{n}: a" for n in range(98)] + ["X-Long: " + "a" * 22_000]
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("GET", "/" + "a" * 8191, *headers))
        assert client.read()[0] == 200


def test_the_limit_of_a_head_holds_byte_for_byte_however_it_arrives() -> None:
    """fault: C7"""
    small = request("GET", "/", "X: " + "a" * 900)
    with served(TrivialApp(), head_bytes=1000) as server:
        for length, status in ((950, 200), (1100, 431)):
            with Client(server.port) as client:
                # The head begins amid a packet and ends in another, so that no read holds it alone.
                client.send(small[:-2])
                client.send(b"\r\n" + b"GET / HTTP/1.1\r\n")
                client.send(b"Host: a\r\nX: " + b"a" * (length - 60) + b"\r\n\r\n")
                assert [client.read_head()[0], client.read_bytes(5)] == [200, b"hello"]
                assert client.read_head()[0] == status


def test_an_incomplete_head_beyond_the_limit_is_refused_without_waiting_for_more() -> None:
    """fault: C7"""
    with served(TrivialApp(), head_seconds=60) as server, Client(server.port) as client:
        client.send(b"GET / HTTP/1.1\r\nX-A: " + b"a" * 33_000)
        assert refused(client) == (431, "headers_too_large")


def test_too_many_headers_are_refused_without_waiting_for_the_last() -> None:
    """fault: C7"""
    with served(TrivialApp(), head_seconds=60) as server, Client(server.port) as client:
        client.send(request("GET", "/", *[f"X-{n}: a" for n in range(150)])[:-2])
        assert refused(client) == (431, "too_many_headers")


def test_trailers_without_end_are_cut_off() -> None:
    """fault: C7, C8"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Transfer-Encoding: chunked", body=b"1\r\na\r\n0\r\nX-A: "))
        before = memory()
        assert pour(client, b"a" * 65536, 200_000_000) < 20_000_000
        assert memory() - before <= 2 * 1024 * 1024


def test_a_chunk_extension_without_end_is_cut_off() -> None:
    """fault: C8"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Transfer-Encoding: chunked", body=b"1\r\na\r\n1;"))
        client.send(b"a" * 70_000)
        assert refused(client) == (431, "headers_too_large")


def test_an_announced_body_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    """fault: C8"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 10485761", "Expect: 100-continue"))
        assert refused(client) == (413, "request_too_large")
    assert app.seen.empty()


def test_a_chunked_body_is_refused_as_soon_as_it_passes_the_limit() -> None:
    """fault: C8"""
    app = TrivialApp()
    with served(app, body_bytes=100_000) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Transfer-Encoding: chunked"))
        for _ in range(11):
            client.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        assert refused(client) == (413, "request_too_large")
        app.departures.get(timeout=30)  # the application that was reading it knows


def test_a_body_of_exactly_the_limit_is_answered() -> None:
    """fault: C8"""
    body = os.urandom(10 * 1024 * 1024)
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/", f"Content-Length: {len(body)}", body=body))
        assert client.read() == (200, body)


def test_a_client_that_sends_all_before_it_reads_still_sees_the_refusal() -> None:
    """fault: C8"""
    with served(TrivialApp(), body_bytes=8_000_000) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 30000000", body=b"x" * 30_000_000))
        assert refused(client) == (413, "request_too_large")


def test_what_follows_a_refusal_is_not_read_for_ever() -> None:
    """fault: C8"""
    with served(TrivialApp(), body_bytes=1_000_000) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 500000000"))
        assert pour(client, b"x" * 65536, 500_000_000) < 20_000_000


def test_a_body_shorter_than_announced_is_refused_and_never_passed_for_whole() -> None:
    """fault: C8"""
    app = TrivialApp()
    with served(app) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 100", body=b"x" * 50))
        app.seen.get(timeout=30)
        client.half_close()
        assert refused(client) == (400, "incomplete_body")
        app.departures.get(timeout=30)


def test_a_body_longer_than_announced_is_the_next_request_and_a_bad_one() -> None:
    """fault: C8"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 3", body=b"abcdef"))
        assert client.read() == (200, b"abc")
        assert refused(client) == (400, "malformed_request")


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, gzip", "x-unknown"])
def test_a_compressed_body_is_refused_unopened(coding: str) -> None:
    """fault: C8"""
    app = TrivialApp()
    bomb = gzip.compress(b"0" * 10_000_000)
    with served(app) as server, Client(server.port) as client:
        client.send(request("POST", "/", f"Content-Encoding: {coding}", f"Content-Length: {len(bomb)}", body=bomb))
        assert refused(client) == (415, "unsupported_media_type")
    assert app.seen.empty()


def test_a_path_may_have_its_own_body_limit() -> None:
    """fault: C8"""
    with served(TrivialApp(), body_bytes=10, body_bytes_at=(("/files", 100), ("/", 20))) as server:
        for path, length, status in (
            ("/files/a?x", 100, 200),
            ("/files", 101, 413),
            ("/v1", 20, 200),
            ("/v1", 21, 413),
        ):
            with Client(server.port) as client:
                client.send(request("POST", path, f"Content-Length: {length}", body=b"x" * length))
                assert client.read()[0] == status


def test_an_answer_given_before_the_body_was_read_leaves_the_connection_usable() -> None:
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/unread", "Content-Length: 300000"))
        assert client.read() == (200, b"no need")
        client.send(b"x" * 300_000 + request("GET", "/"))
        assert client.read() == (200, b"hello")


def test_a_body_that_grows_too_large_after_its_answer_gets_no_second_one() -> None:
    """fault: C8"""
    with served(TrivialApp(), body_bytes=1000) as server, Client(server.port) as client:
        client.send(request("POST", "/unread", "Transfer-Encoding: chunked"))
        assert client.read() == (200, b"no need")
        client.send(b"7d0\r\n" + b"x" * 2000)
        assert client.rest() == b""


def test_an_answer_before_100_continue_ends_the_connection() -> None:
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/unread", "Content-Length: 3", "Expect: 100-continue"))
        status, headers = client.read_head()
        assert (status, headers["connection"]) == (200, "close")
        assert client.rest() == b"no need"


def test_a_client_that_expects_100_continue_gets_it() -> None:
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.send(request("POST", "/", "Content-Length: 3", "Expect: 100-continue"))
        assert client.read_head()[0] == 100
        client.send(b"abc")
        assert client.read() == (200, b"abc")


def test_errors_are_encoded_for_their_path() -> None:
    def refuse(path: str | None, error: ToolgateError) -> tuple[int, bytes]:
        return error.status, json.dumps({"error": f"{path}: {error.code}"}).encode()

    with served(TrivialApp(), encode_error=refuse, body_bytes=10) as server:
        for sent, output in (
            (request("POST", "/api/chat?x=1", "Content-Length: 11"), "/api/chat: request_too_large"),
            (b"nonsense\r\n\r\n", "None: malformed_request"),
            (b"GET /v1/messages HTTP/1.1\r\n\r\n", "/v1/messages: bad_host"),
        ):
            with Client(server.port) as client:
                client.send(sent)
                assert json.loads(client.read()[1]) == {"error": output}


def test_connections_beyond_the_limit_are_turned_away_until_one_leaves() -> None:
    """fault: C6"""
    with served(TrivialApp(), connections=2) as server:
        with Client(server.port) as first, Client(server.port) as second:
            for client in (first, second):
                client.get()
                assert client.read()[0] == 200
            with Client(server.port) as third:
                status, headers = third.read_head()
                assert (status, headers["retry-after"]) == (503, "1")
                third.rest()
        until(lambda: server.connections < 2)
        with Client(server.port) as fourth:
            fourth.get()
            assert fourth.read()[0] == 200


def test_kernel_buffers_for_a_client_are_bounded() -> None:
    """fault: C3"""
    with served(TrivialApp()) as server, Client(server.port) as client:
        client.get()
        client.read()
        (connection,) = server.open
        buffer = connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert buffer <= 256 * 1024
