"""The rules of HTTP/1.1 as the transport keeps them with a peer that behaves."""

import asyncio
import zlib
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upstreams.transport.faulty import Faulty, Peer, answering, chunk, chunked, head, on_both_loops, whole
from toolgate.conversation.errors import InternalGatewayError, InvalidUpstreamAnswer
from toolgate.upstreams.transport import UpstreamHttpClient, UpstreamTimeouts
from toolgate.upstreams.transport.address import Proxies, Proxy, UpstreamOrigin, parse_url
from toolgate.upstreams.transport.inflate import ResponseInflater
from toolgate.upstreams.transport.request_writer import RequestHeadWriter

BODY = b'{"text": "' + "größer 🙂".encode() * 2000 + b'"}'


@on_both_loops
async def test_a_request_arrives_as_it_was_given() -> None:
    large = b"x" * 3_000_000
    async with Faulty(answering(whole(b"ok"))) as upstream, aclosing(UpstreamHttpClient()) as client:
        await (await client.post(upstream.url + "?beta=1#part", {"X-Name": "vålue", "a": ""}, b"{}")).read()
        await (await client.post(upstream.url, {}, large)).read()
        await (await client.post(upstream.url, {"a": "b"}, b"", method="GET")).read()
        await (await client.post(upstream.url, {}, b"")).read()
    first, second, third, fourth = upstream.requests
    assert (first.method, first.target, first.body) == ("POST", "/v1/chat?beta=1", b"{}")
    assert first.headers == {
        "host": upstream.name,
        "accept-encoding": "identity",
        "x-name": "vålue",
        "a": "",
        "content-length": "2",
    }
    assert second.body == large
    assert third.method == "GET"
    assert "content-length" not in third.headers
    assert fourth.headers["content-length"] == "0"
    assert len(upstream.peers) == 1


@on_both_loops
async def test_an_answer_is_handed_over_with_its_status_and_headers() -> None:
    answer = whole(b"slow down", "Retry-After: 3", "X-Twice: a", "x-twice: b", "X-Empty:", status="429 Busy")
    async with Faulty(answering(answer)) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        assert reply.status == 429
        assert reply.headers == {"content-length": "9", "retry-after": "3", "x-twice": "a, b", "x-empty": ""}
        assert await reply.read() == b"slow down"
        assert await reply.read() == b""


@on_both_loops
async def test_pieces_come_as_they_arrive_and_those_that_wait_come_as_one() -> None:
    taken = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked"), chunk(b"one "))
        await taken.wait()
        await peer.send(chunk(b"two "), chunk(b"three "), chunk(b"four"), chunk(b""))

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        assert await anext(reply) == b"one "
        taken.set()
        assert [piece async for piece in reply] == [b"two three four"]


@on_both_loops
async def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    elsewhere = head("location: http://127.0.0.1:9/", "content-length: 0", status="307 Elsewhere")
    async with Faulty(answering(elsewhere)) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {"authorization": "Bearer canary"}, b"{}")
        assert (reply.status, await reply.read()) == (307, b"")
        assert len(upstream.requests) == 1


@on_both_loops
async def test_interim_answers_are_skipped() -> None:
    hints = head("link: </x>", "content-length: 7", status="103 Early Hints")
    answer = head(status="100 Continue") + hints + whole(b"final")
    async with Faulty(answering(answer)) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        assert (reply.status, dict(reply.headers)) == (200, {"content-length": "5"})
        assert await reply.read() == b"final"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", head("content-length: 99")),
        ("HEAD", head("transfer-encoding: chunked")),
        ("HEAD", head("content-length: 0", "content-encoding: br")),
        ("POST", head(status="204 Nothing")),
        ("POST", head("content-length: 99", status="304 Same")),
        ("POST", head("content-length: 0", "content-encoding: gzip")),
    ],
)
@on_both_loops
async def test_answers_without_a_body_end_with_their_head_and_leave_the_connection_usable(
    method: str, answer: bytes
) -> None:
    async with Faulty(answering(answer)) as upstream, aclosing(UpstreamHttpClient()) as client:
        for _ in range(2):
            assert await (await client.post(upstream.url, {}, b"", method=method)).read() == b""
        assert len(upstream.peers) == 1


@on_both_loops
async def test_a_body_after_an_answer_to_head_is_not_taken_for_the_next_answer() -> None:
    async with (
        Faulty(answering(whole(b"HTTP/1.1 666 Evil\r\n\r\n"))) as upstream,
        aclosing(UpstreamHttpClient()) as client,
    ):
        for _ in range(2):
            reply = await client.post(upstream.url, {}, b"", method="HEAD")
            assert (reply.status, await reply.read()) == (200, b"")
        assert len(upstream.peers) == 2


@on_both_loops
async def test_an_answer_is_complete_at_its_end_though_the_socket_stays_open() -> None:
    async with Faulty(answering(chunked(b"all"))) as upstream, aclosing(UpstreamHttpClient()) as client:
        for _ in range(3):
            limits = UpstreamTimeouts(idle=5, first_byte=5)
            reply = await asyncio.wait_for(client.post(upstream.url, {}, b"{}", timeouts=limits), 30)
            assert await asyncio.wait_for(reply.read(), 30) == b"all"
        assert len(upstream.peers) == 1


CODINGS = {
    "gzip": ("gzip", 31),
    "old gzip": ("X-GZip", 31),
    "deflate": ("deflate", 15),
    "bare deflate": ("deflate", -15),
}


@pytest.mark.parametrize(("name", "wbits"), CODINGS.values(), ids=CODINGS)
@on_both_loops
async def test_a_body_compressed_unasked_is_decompressed(name: str, wbits: int) -> None:
    squeezed = zlib.compress(BODY, wbits=wbits)
    halves = (squeezed[:9], squeezed[9:])
    async with (
        Faulty(answering(whole(squeezed, f"content-encoding: {name}"))) as upstream,
        Faulty(
            answering(chunked(*halves).replace(b"chunked\r\n", b"chunked\r\ncontent-encoding: gzip\r\n", 1))
        ) as other,
        aclosing(UpstreamHttpClient()) as client,
    ):
        assert await (await client.post(upstream.url, {}, b"{}")).read() == BODY
        if wbits == 31:
            assert await (await client.post(other.url, {}, b"{}")).read() == BODY


EMPTY = zlib.compress(b"", wbits=31)


@on_both_loops
async def test_a_body_of_several_gzip_members_is_read_to_its_end() -> None:
    members = b"".join([zlib.compress(BODY[at : at + 9], wbits=31) for at in range(0, len(BODY), 9)])
    async with (
        Faulty(answering(whole(members + EMPTY, "content-encoding: gzip"))) as upstream,
        aclosing(UpstreamHttpClient()) as client,
    ):
        assert await (await client.post(upstream.url, {}, b"{}")).read() == BODY


SPOILED = {
    "with its second member cut": (
        "gzip",
        zlib.compress(BODY, wbits=31) + zlib.compress(BODY, wbits=31)[:-9],
        "ended its gzip body in the middle",
    ),
    "of nothing": ("gzip", EMPTY * 10_000, "sent a body that is not gzip"),
    "with a second zlib stream": ("deflate", zlib.compress(BODY) * 2, "sent a body that is not deflate"),
    "cut short": ("gzip", zlib.compress(BODY, wbits=31)[:-9], "ended its gzip body in the middle"),
    "not compressed": ("gzip", BODY, "sent a body that is not gzip"),
    "followed by more": ("gzip", zlib.compress(BODY, wbits=31) + b"more", "sent a body that is not gzip"),
    "in brotli": ("br", BODY, "content-encoding that was not asked for"),
    "twice": ("gzip, gzip", BODY, "content-encoding that was not asked for"),
}


@pytest.mark.parametrize(("name", "body", "words"), SPOILED.values(), ids=SPOILED)
@on_both_loops
async def test_a_body_that_cannot_be_decompressed_is_garbled_but_its_status_is_known(
    name: str, body: bytes, words: str
) -> None:
    """fault: U8"""
    answer = whole(body, f"content-encoding: {name}", status="401 Who")
    async with Faulty(answering(answer)) as upstream, aclosing(UpstreamHttpClient()) as client:
        reply = await client.post(upstream.url, {}, b"{}")
        assert reply.status == 401
        with pytest.raises(InvalidUpstreamAnswer, match=words):
            await reply.read()


@given(
    st.lists(st.binary(max_size=400), min_size=1, max_size=4),
    st.sampled_from([31, 15, -15]),
    st.lists(st.integers(1, 40), min_size=1),
)
@settings(max_examples=60, deadline=None)
def test_decompression_does_not_depend_on_how_the_bytes_were_split(
    bodies: list[bytes], wbits: int, steps: list[int]
) -> None:
    bodies = bodies if wbits == 31 else bodies[:1]  # only gzip has members
    inflate, body = ResponseInflater("gzip" if wbits == 31 else "deflate"), b"".join(bodies)
    squeezed, read, at, turn = b"".join([zlib.compress(one, wbits=wbits) for one in bodies]), b"", 0, 0
    while at < len(squeezed):
        step = steps[turn % len(steps)]
        inflate.feed(squeezed[at : at + step])
        at, turn = at + step, turn + 1
        while piece := inflate.more():
            read += piece
    assert read == body
    assert inflate.finished


UNFIT = {
    "line feed": ("x-key", "canary\nx-evil: 1"),
    "carriage return": ("x-key", "canary\r"),
    "both": ("x-key", "canary\r\nx-evil: 1"),
    "nul": ("x-key", "canary\0"),
    "beyond latin": ("x-key", "canary🙂"),
}


@pytest.mark.parametrize(("name", "value"), UNFIT.values(), ids=UNFIT)
@on_both_loops
async def test_a_header_value_that_could_end_its_line_is_refused_by_name(name: str, value: str) -> None:
    async with Faulty(answering(whole(b"ok"))) as upstream, aclosing(UpstreamHttpClient()) as client:
        for headers in ({name: value}, {"a": "b", name: value}, {name: value, "c": "d"}):
            with pytest.raises(InternalGatewayError, match="the value of the header x-key holds") as caught:
                await client.post(upstream.url, headers, b"{}")
            assert "canary" not in str(caught.value)
        assert upstream.peers == []


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a\r\nb", "é", "Content-Length", "host", "Transfer-Encoding"])
def test_a_header_name_that_is_malformed_or_ours_is_refused(name: str) -> None:
    with pytest.raises(InternalGatewayError, match="header"):
        RequestHeadWriter().head("POST", b" / HTTP/1.1\r\n", {"good": "yes", name: "1"}, 2)


@pytest.mark.parametrize("method", ["", "GET /x", "GET\r\n", "Gét"])
def test_a_malformed_method_is_refused(method: str) -> None:
    with pytest.raises(InternalGatewayError, match="method"):
        RequestHeadWriter().head(method, b" / HTTP/1.1\r\n", {}, 0)


@given(st.dictionaries(st.text(), st.text(), max_size=4))
@settings(max_examples=200, deadline=None)
def test_no_header_can_add_a_line(headers: dict[str, str]) -> None:
    try:
        made = RequestHeadWriter().head("POST", b" / HTTP/1.1\r\n", headers, 5)
    except InternalGatewayError:
        return
    lines = made.split(b"\r\n")
    assert made.count(b"\n") == made.count(b"\r") == len(headers) + 3
    assert [line.split(b": ")[0].decode() for line in lines[1:-3]] == list(headers)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/a\r\nx: y",
        "http://h/a b",
        "http://h\n/",
        "http://h/\x00",
        "http://h/\x7f",
        "http://h/é",
        "http://h:99999/",
        "http://h:x/",
        "http:///path",
        "ftp://h/",
        "h/path",
        "http://[::1/",
        "http://me:canary@h/",
        "http://a..b/",
        "http://größe.example/",
        "http://" + "a" * 64 + ".example/",
    ],
)
def test_a_url_that_cannot_be_sent_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InternalGatewayError) as caught:
        parse_url(url)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "origin", "authority", "target"),
    [
        ("http://h", UpstreamOrigin("http", "h", 80), "h", "/"),
        ("HTTPS://H:443/v1?a=%20#x", UpstreamOrigin("https", "h", 443), "h", "/v1?a=%20"),
        ("http://[::1]:81/a//b", UpstreamOrigin("http", "::1", 81), "[::1]:81", "/a//b"),
        (
            "https://xn--gre-6ka8i.example/",
            UpstreamOrigin("https", "xn--gre-6ka8i.example", 443),
            "xn--gre-6ka8i.example",
            "/",
        ),
    ],
)
def test_a_url_is_taken_apart(url: str, origin: UpstreamOrigin, authority: str, target: str) -> None:
    assert parse_url(url) == (origin, target)
    assert origin.authority == authority


EXEMPT = "internal, .corp.example,*.lab.example ,10.0.0.0/8,api.example:8443,bad/net"


@pytest.mark.parametrize(
    ("url", "proxied"),
    [
        ("https://model.example/", True),
        ("https://notcorp.example/", True),
        ("https://a.corp.example/", False),
        ("https://a.lab.example/", False),
        ("https://internal/", False),
        ("https://sub.internal/", False),
        ("https://10.1.2.3/", False),
        ("https://11.1.2.3/", True),
        ("https://api.example:8443/", False),
        ("https://api.example/", True),
        ("https://localhost/", False),
        ("https://127.0.0.9:1/", False),
        ("https://[::1]/", False),
        ("http://model.example/", False),
    ],
)
def test_no_proxy_and_loopback_are_honoured(url: str, proxied: bool) -> None:
    proxies = Proxies.of({"HTTPS_PROXY": "proxy.example:3128", "NO_PROXY": EXEMPT})
    expected = Proxy("proxy.example", 3128, None) if proxied else None
    assert proxies.towards(parse_url(url)[0]) == expected


@pytest.mark.parametrize("url", ["http://", "http://a..b:1", "http://p:x", "socks5://p:1", "https://p:1"])
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(url: str) -> None:
    with pytest.raises(InternalGatewayError, match=r"^HTTP_PROXY must name a proxy as http://host:port"):
        Proxies.of({"http_proxy": url}).towards(UpstreamOrigin("http", "model.example", 80))


def test_a_star_exempts_everything_and_lower_case_wins() -> None:
    origin = UpstreamOrigin("http", "model.example", 80)
    assert Proxies.of({"HTTP_PROXY": "http://p:1", "no_proxy": "*"}).towards(origin) is None
    both = Proxies.of({"HTTP_PROXY": "http://upper:1", "http_proxy": "http://lower"})
    assert both.towards(origin) == Proxy("lower", 80, None)
