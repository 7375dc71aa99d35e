"""TLS to an upstream is verified or it is nothing; a proxy on the way sees neither key nor answer."""

import asyncio
import contextlib
import ssl
from contextlib import aclosing

import pytest
import trustme

from tests.upstreams.transport.faulty import (
    Faulty,
    Peer,
    answering,
    chunked,
    client_tls,
    head,
    on_both_loops,
    relay_to,
    server_tls,
    whole,
)
from toolgate.conversation.errors import InternalGatewayError, InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.upstreams.transport import UpstreamHttpClient, UpstreamTimeouts

SECRET = {"authorization": "Bearer canary"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@on_both_loops
async def test_a_trusted_upstream_answers_and_its_connection_is_reused(authority: trustme.CA) -> None:
    script = answering(whole(b"one"), chunked(b"t", b"wo"))
    async with (
        Faulty(script, server_tls(authority)) as upstream,
        aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client,
    ):
        assert await (await client.post(upstream.url, SECRET, b"{}")).read() == b"one"
        assert await (await client.post(upstream.url, SECRET, b"{}")).read() == b"two"
        assert len(upstream.peers) == 1


@on_both_loops
async def test_a_file_of_certificates_is_trusted_too(authority: trustme.CA) -> None:
    with authority.cert_pem.tempfile() as path:
        async with (
            Faulty(answering(whole(b"ok")), server_tls(authority)) as upstream,
            aclosing(UpstreamHttpClient(ca=path)) as client,
        ):
            assert await (await client.post(upstream.url, {}, b"{}")).read() == b"ok"


BAD = {
    "expired": ("it has expired", {"expired": True}),
    "wrong host": ("it belongs to another", {"host": "other.example"}),
}


@pytest.mark.parametrize(("reason", "wrong"), BAD.values(), ids=BAD)
@on_both_loops
async def test_a_bad_certificate_is_unavailable_and_sees_no_request(
    reason: str, wrong: dict[str, object], authority: trustme.CA
) -> None:
    """fault: U2"""
    context = server_tls(authority, **wrong)  # type: ignore[arg-type]
    async with (
        Faulty(answering(whole(b"no")), context) as upstream,
        aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client,
    ):
        with pytest.raises(UpstreamUnavailable) as caught:
            await client.post(upstream.url, SECRET, b"{}")
        assert caught.value.message.startswith(f"the TLS certificate of {upstream.name} is not accepted: {reason}")
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None, "what OpenSSL says quotes the certificate"
        assert upstream.requests == []


@on_both_loops
async def test_an_untrusted_issuer_is_unavailable(authority: trustme.CA) -> None:
    """fault: U2"""
    for stranger in (UpstreamHttpClient(), UpstreamHttpClient(ca=client_tls(trustme.CA()))):
        async with Faulty(answering(whole(b"no")), server_tls(authority)) as upstream, aclosing(stranger) as client:
            with pytest.raises(UpstreamUnavailable, match="is not accepted: its issuer is"):
                await client.post(upstream.url, SECRET, b"{}")
            assert upstream.requests == []


@on_both_loops
async def test_plaintext_on_a_tls_port_is_unavailable_and_never_sent(authority: trustme.CA) -> None:
    """fault: U2"""
    response = []

    async def script(peer: Peer) -> None:
        response.append(await peer.reader.read(65536))
        await peer.send(whole(b"plain"))

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client:
        with pytest.raises(UpstreamUnavailable, match=rf"^the TLS handshake with {upstream.name} failed$"):
            await client.post(upstream.url.replace("http:", "https:"), SECRET, b"{}")
        assert len(response) == 1
        assert b"canary" not in response[0]


@on_both_loops
async def test_a_handshake_that_stalls_runs_into_the_connect_limit_and_closes(authority: trustme.CA) -> None:
    """fault: U2"""

    async def script(peer: Peer) -> None:
        await peer.gone()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client:
        url = upstream.url.replace("http:", "https:")
        with pytest.raises(UpstreamUnavailable, match="connect"):
            await client.post(url, SECRET, b"{}", timeouts=UpstreamTimeouts(connect=0.2))
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


@on_both_loops
async def test_a_tls_peer_that_closes_during_the_handshake_is_unavailable(authority: trustme.CA) -> None:
    """fault: U2"""

    async def script(peer: Peer) -> None:
        await peer.reader.read(1)
        peer.reset()

    async with Faulty(script) as upstream, aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client:
        with pytest.raises(UpstreamUnavailable, match=upstream.name):
            await client.post(upstream.url.replace("http:", "https:"), SECRET, b"{}")


@on_both_loops
async def test_a_body_that_ends_at_close_needs_the_close_to_be_signed(authority: trustme.CA) -> None:
    """fault: U5"""

    async def script(peer: Peer) -> None:
        request = await peer.request()
        assert request is not None
        await peer.send(head("connection: close"), b"until")
        await read.wait()
        if request.body == b"forged":
            peer.writer.transport.abort()  # FIN without close_notify: anybody on the way could send that

    for body in (b"signed", b"forged"):
        read = asyncio.Event()
        async with (
            Faulty(script, server_tls(authority)) as upstream,
            aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client,
        ):
            reply = await client.post(upstream.url, {}, body)
            assert await anext(reply) == b"until"
            read.set()
            with pytest.raises(InvalidUpstreamAnswer) if body == b"forged" else contextlib.nullcontext():
                assert await reply.read() == b""


@on_both_loops
async def test_giving_up_a_tls_answer_closes_the_socket_at_once(authority: trustme.CA) -> None:
    """fault: U11"""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked"))
        await peer.gone()

    async with (
        Faulty(script, server_tls(authority)) as upstream,
        aclosing(UpstreamHttpClient(ca=client_tls(authority))) as client,
    ):
        reply = await client.post(upstream.url, {}, b"{}")
        await reply.aclose()
        await asyncio.wait_for(upstream.peers[0].left.wait(), 30)


def through(proxy: Faulty, **options: object) -> UpstreamHttpClient:
    """A client that goes through a proxy, with a password."""
    url = f"http://me:p%40ss@127.0.0.1:{proxy.port}"
    return UpstreamHttpClient(environment={"HTTP_PROXY": url, "HTTPS_PROXY": url}, **options)  # type: ignore[arg-type]


@on_both_loops
async def test_https_through_a_proxy_is_a_tunnel(authority: trustme.CA) -> None:
    tls = server_tls(authority, "model.example")
    async with (
        Faulty(answering(whole(b"tunnelled")), tls) as upstream,
        Faulty(relay_to(upstream.port)) as proxy,
        aclosing(through(proxy, ca=client_tls(authority))) as client,
    ):
        for _ in range(2):
            reply = await client.post("https://model.example/v1", SECRET, b"{}")
            assert await reply.read() == b"tunnelled"
        (asked,) = proxy.requests
        assert (asked.method, asked.target) == ("CONNECT", "model.example:443")
        assert asked.headers["proxy-authorization"] == "Basic bWU6cEBzcw=="
        assert upstream.requests[0].target == "/v1"
        assert "proxy-authorization" not in upstream.requests[0].headers


@on_both_loops
async def test_a_certificate_is_verified_inside_a_tunnel(authority: trustme.CA) -> None:
    """fault: U2"""
    tls = server_tls(authority, "other.example")
    async with (
        Faulty(answering(whole(b"no")), tls) as upstream,
        Faulty(relay_to(upstream.port)) as proxy,
        aclosing(through(proxy, ca=client_tls(authority))) as client,
    ):
        with pytest.raises(
            UpstreamUnavailable, match=r"model\.example:443 is not accepted: it belongs to another host"
        ):
            await client.post("https://model.example/v1", SECRET, b"{}")
        assert upstream.requests == []


@on_both_loops
async def test_http_through_a_proxy_names_the_whole_url() -> None:
    async with Faulty(answering(whole(b"ok"))) as proxy, aclosing(through(proxy)) as client:
        reply = await client.post("http://model.example:81/v1?a=b", {}, b"{}")
        assert await reply.read() == b"ok"
        assert proxy.requests[0].target == "http://model.example:81/v1?a=b"
        assert proxy.requests[0].headers["host"] == "model.example:81"
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6cEBzcw=="


REFUSALS = {
    "asks for a password": head("content-length: 0", status="407 Who"),
    "says no": head(status="503 No") + b"certificate text",
    "speaks before the upstream does": head() + b"surprise",
    "babbles": b"x" * 20_000,
}


@pytest.mark.parametrize("answer", REFUSALS.values(), ids=REFUSALS)
@on_both_loops
async def test_a_proxy_that_does_not_open_the_way_is_unavailable(answer: bytes, authority: trustme.CA) -> None:
    """fault: U1"""
    async with (
        Faulty(answering(whole(b"no")), server_tls(authority, "model.example")) as upstream,
        Faulty(relay_to(upstream.port, answer)) as proxy,
        aclosing(through(proxy, ca=client_tls(authority))) as client,
    ):
        with pytest.raises(UpstreamUnavailable, match=r"^the proxy on the way to model\.example:443 ") as caught:
            await client.post("https://model.example/v1", SECRET, b"{}")
        assert "p@ss" not in str(caught.value)
        assert upstream.requests == []


@on_both_loops
async def test_a_proxy_that_leaves_is_unavailable(authority: trustme.CA) -> None:
    """fault: U1"""

    async def script(peer: Peer) -> None:
        await peer.request()

    async with Faulty(script) as proxy, aclosing(through(proxy, ca=client_tls(authority))) as client:
        with pytest.raises(UpstreamUnavailable, match=r"^the proxy on the way to model\.example:443 "):
            await client.post("https://model.example/v1", SECRET, b"{}")


@on_both_loops
async def test_a_proxy_that_stalls_runs_into_the_connect_limit_and_is_closed(authority: trustme.CA) -> None:
    """fault: U1"""

    async def script(peer: Peer) -> None:
        await peer.gone()

    async with Faulty(script) as proxy, aclosing(through(proxy, ca=client_tls(authority))) as client:
        with pytest.raises(UpstreamUnavailable, match="connect"):
            await client.post("https://model.example/v1", {}, b"{}", timeouts=UpstreamTimeouts(connect=0.2))
        await asyncio.wait_for(proxy.peers[0].left.wait(), 30)


@on_both_loops
async def test_an_unsupported_proxy_is_named_by_its_variable() -> None:
    client = UpstreamHttpClient(environment={"https_proxy": "socks5://me:canary@127.0.0.1:1"})
    with pytest.raises(InternalGatewayError, match="HTTPS_PROXY must name a proxy as http://host:port") as caught:
        await client.post("https://model.example/", {}, b"{}")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("mode", [ssl.CERT_REQUIRED, ssl.CERT_NONE])
def test_a_context_that_does_not_verify_is_refused(mode: ssl.VerifyMode) -> None:
    """fault: U2"""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = mode
    with pytest.raises(InternalGatewayError, match="must verify"):
        UpstreamHttpClient(ca=context)


def test_no_context_is_made_before_an_https_url_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: pytest.fail("made too early"))
    UpstreamHttpClient()
