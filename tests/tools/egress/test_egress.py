"""What tools may open on the network, on real sockets: addresses, names, redirects, credentials and budgets (S1–S6, T11)."""

import asyncio
from collections.abc import Sequence

import pytest
import trustme

from tests.upstreams.transport.faulty import Faulty, Peer, answering, chunk, client_tls, head, server_tls, whole
from toolgate.tools.egress import (
    EgressNoResponse,
    EgressPolicy,
    EgressQuota,
    EgressRefused,
    EgressRequest,
    EgressResponse,
    GuardedHttp,
    HttpHopLogEntry,
)
from toolgate.tools.egress.pinned_transport import (
    GuardedStreamClient,
    PinnedHttpTransport,
    guarded_http,
    guarded_streams,
)
from toolgate.tools.egress.url import ParsedEgressUrl, read_url

LOOPBACK = ("127.0.0.1",)


class Names:
    """A resolver that answers each question for a name with the next of its answers."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self._answers = {name.replace("_", "."): list(each) for name, each in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if not answers:
            raise OSError(host)
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Sink:
    """A carrier that must not be reached; it keeps what reached it."""

    def __init__(self) -> None:
        self.reached: list[tuple[ParsedEgressUrl, tuple[str, ...]]] = []

    async def carry(self, target: ParsedEgressUrl, addresses: Sequence[str], request: EgressRequest) -> EgressResponse:
        self.reached.append((target, tuple(addresses)))
        return EgressResponse(target.url, 200, {}, b"reached")


def http(names: Names | None = None, allow: Sequence[str] = LOOPBACK, budget: EgressQuota | None = None) -> GuardedHttp:
    return GuardedHttp(PinnedHttpTransport(), EgressPolicy(names or Names(), allow), budget or EgressQuota())


FORBIDDEN = [
    "169.254.169.254",
    "127.0.0.1",
    "127.1",
    "0x7f000001",
    "0x7f.1",
    "2130706433",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "10.1.2.3",
    "172.31.255.255",
    "192.168.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::1]",
    "[2002:7f00:1::]",
    "[2001:0:53aa:64c::1]",
    "[2001:db8::1]",
    "[ff02::1]",
    "[fec0::1]",
    "１２７.０.０.１",
    "①②⑦.0.0.1",
    "127。0。0。1",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "127.0.0.1.",
]


@pytest.mark.parametrize("host", FORBIDDEN)
async def test_no_spelling_of_a_private_address_is_opened(host: str) -> None:
    """fault: S2"""
    sink = Sink()
    guard = GuardedHttp(sink, EgressPolicy(Names(localhost=[["127.0.0.1", "::1"]])), EgressQuota())
    with pytest.raises(EgressRefused):
        await guard.send(EgressRequest(f"http://{host}/"))
    assert sink.reached == []


@pytest.mark.parametrize("host", ["93.184.216.34", "[2606:2800:220:1::1]", "[64:ff9b::5db8:d822]", "[::ffff:8.8.8.8]"])
async def test_public_addresses_are_open(host: str) -> None:
    sink = Sink()
    await GuardedHttp(sink, EgressPolicy(Names()), EgressQuota()).send(EgressRequest(f"http://{host}/"))
    assert [target.host for target, _ in sink.reached] == [host.strip("[]")]


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://example.org/",
        "ftp://example.org/",
        "//example.org/",
        "example.org",
        "http:///path",
        "http://me:secret@example.org/",
        "http://@example.org/",
        "http://good.example\\@example.org/",
        "http://example.org/\r\nHost: evil",
        "http://example.org/a b",
        "http://example.org\t/",
        "http://example.org:0/",
        "http://example.org:99999/",
        "http://example.org:x/",
        "http://[::1/",
        "http://exa mple.org/",
        "http://example..org/",
        "http://-example.org/",
        "http://example.org/\udc80",
        "http://exa%6dple.org/",
        "http://bücher.example/",
        f"http://example.org/{'a' * 9000}",
    ],
)
async def test_a_url_that_can_be_read_in_two_ways_is_refused(url: str) -> None:
    """fault: S5"""
    sink = Sink()
    with pytest.raises(EgressRefused):
        await GuardedHttp(sink, EgressPolicy(Names(example_org=[["93.184.216.34"]])), EgressQuota()).send(
            EgressRequest(url)
        )
    assert sink.reached == []


def test_a_url_has_one_spelling() -> None:
    assert read_url("HTTP://Example.ORG.:80/käse?q=a%20b#part").url == "http://example.org/k%C3%A4se?q=a%20b"
    assert read_url("https://[2606:2800:220:1::1]:8443").url == "https://[2606:2800:220:1::1]:8443/"


@pytest.mark.parametrize("port", [22, 25, 6379, 5432, 11211])
async def test_ports_of_other_protocols_stay_closed(port: int) -> None:
    """fault: S5"""
    with pytest.raises(EgressRefused, match="port"):
        await GuardedHttp(Sink(), EgressPolicy(Names()), EgressQuota()).send(
            EgressRequest(f"http://93.184.216.34:{port}/")
        )


async def test_a_name_is_resolved_once_and_the_checked_address_is_the_one_connected_to() -> None:
    """fault: S4"""
    sink, names = Sink(), Names(flip_example=[["93.184.216.34"], ["127.0.0.1"]])
    guard = GuardedHttp(sink, EgressPolicy(names), EgressQuota())
    await guard.send(EgressRequest("http://flip.example/"))
    assert [addresses for _, addresses in sink.reached] == [("93.184.216.34",)]
    assert names.asked == ["flip.example"]
    with pytest.raises(EgressRefused):
        await guard.send(EgressRequest("http://flip.example/"))


@pytest.mark.parametrize(
    "mixed", [["93.184.216.34", "10.0.0.1"], ["93.184.216.34", "::1"], ["fe80::1%eth0"], ["nonsense"]]
)
async def test_one_bad_address_spoils_a_name(mixed: list[str]) -> None:
    """fault: S4"""
    sink = Sink()
    with pytest.raises(EgressRefused):
        await GuardedHttp(sink, EgressPolicy(Names(mixed_example=[mixed])), EgressQuota()).send(
            EgressRequest("http://mixed.example/")
        )
    assert sink.reached == []


async def test_the_connection_goes_to_the_checked_address_while_host_keeps_the_name() -> None:
    """fault: S4. The name resolves nowhere but in the stub, so only the checked address can have been used."""
    async with Faulty(answering(whole(b"hello"))) as server:
        answer = await http(Names(tool_invalid=[["127.0.0.1"]])).send(
            EgressRequest(f"http://tool.invalid:{server.port}/a?b=c")
        )
    assert (answer.status, answer.body, answer.truncated) == (200, b"hello", False)
    assert server.requests[0].headers["host"] == f"tool.invalid:{server.port}"
    assert server.requests[0].target == "/a?b=c"


async def test_tls_names_and_verifies_the_host_of_the_url_not_the_address() -> None:
    """fault: S4"""
    authority = trustme.CA()
    async with Faulty(answering(whole(b"hello")), tls=server_tls(authority, "tool.invalid")) as server:
        carrier = PinnedHttpTransport(client_tls(authority))
        names = Names(tool_invalid=[["127.0.0.1"]], other_invalid=[["127.0.0.1"]])
        guard = GuardedHttp(carrier, EgressPolicy(names, LOOPBACK), EgressQuota())
        assert (await guard.send(EgressRequest(f"https://tool.invalid:{server.port}/"))).body == b"hello"
        with pytest.raises(EgressNoResponse, match="certificate"):
            await guard.send(EgressRequest(f"https://other.invalid:{server.port}/"))


async def test_the_systems_resolver_is_asked_by_default_and_loopback_is_closed() -> None:
    async with Faulty(answering(whole(b"hello"))) as server:
        with pytest.raises(EgressRefused, match="localhost is a private"):
            await guarded_http().send(EgressRequest(f"http://localhost:{server.port}/"))
        answer = await guarded_http(["localhost"]).send(EgressRequest(f"http://localhost:{server.port}/"))
        with pytest.raises(EgressNoResponse, match="not known"):
            await guarded_http().send(EgressRequest("http://nowhere.invalid/"))
    assert answer.body == b"hello"
    assert len(server.requests) == 1


ALLOWED = [
    ("127.0.0.1", "127.0.0.1", 80, True),
    ("127.0.0.1:8080", "127.0.0.1", 8080, True),
    ("127.0.0.1:8080", "127.0.0.1", 80, False),
    ("10.0.0.0/8", "10.200.0.1", 6379, True),
    ("10.0.0.0/8", "11.0.0.1", 80, True),
    ("10.0.0.0/8", "192.168.0.1", 80, False),
    ("[::1]:90", "[::1]", 90, True),
    ("::1", "[::1]", 80, True),
    ("10.0.0.1", "[::ffff:10.0.0.1]", 80, True),
    ("intranet.example", "intranet.example", 80, True),
    ("Intranet.Example.", "intranet.example.", 80, True),
    ("intranet.example", "evil-intranet.example", 80, False),
    ("intranet.example", "intranet.example.evil.example", 80, False),
    ("*.corp.example", "wiki.corp.example", 80, True),
    ("*.corp.example", "corp.example", 80, False),
    ("*.corp.example", "evilcorp.example", 80, False),
]


@pytest.mark.parametrize(("entry", "host", "port", "open_"), ALLOWED)
async def test_the_operator_opens_named_hosts_and_networks_and_no_others(
    entry: str, host: str, port: int, open_: bool
) -> None:
    sink = Sink()
    inside = [["10.0.0.9"]]
    names = Names(
        intranet_example=inside,
        wiki_corp_example=inside,
        corp_example=inside,
        evilcorp_example=inside,
        intranet_example_evil_example=inside,
        **{"evil-intranet_example": inside},
    )
    guard = GuardedHttp(sink, EgressPolicy(names, [entry]), EgressQuota())
    try:
        await guard.send(EgressRequest(f"http://{host}:{port}/"))
    except EgressRefused:
        assert not open_
    assert len(sink.reached) == open_


@pytest.mark.parametrize("entry", ["", "10.0.0.0/99", "http://intranet", "a b", "*", "*.", "10.0.0.1/x"])
def test_an_exception_that_means_nothing_is_refused_at_the_start(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        EgressPolicy(Names(), [entry])


def redirect(to: str, status: str = "302 Found", *lines: str) -> bytes:
    return whole(b"", f"location: {to}", *lines, status=status)


@pytest.mark.parametrize(
    "to",
    [
        "http://169.254.169.254/latest",
        "http://127.1/",
        "file:///etc/passwd",
        "gopher://x/",
        "//10.0.0.1/",
        "http://[",
        "http://a@b/",
    ],
)
async def test_each_redirect_is_checked_again(to: str) -> None:
    """fault: S3"""
    async with Faulty(answering(redirect(to), whole(b"inside"))) as server:
        with pytest.raises(EgressRefused):
            await http().send(EgressRequest(server.url))
    assert len(server.requests) == 1


async def test_a_redirect_to_another_port_of_an_allowed_port_is_refused() -> None:
    """fault: S3"""
    async with Faulty(answering(whole(b"inside"))) as inside, Faulty(answering(redirect(inside.url))) as server:
        with pytest.raises(EgressRefused):
            await http(allow=[f"127.0.0.1:{server.port}"]).send(EgressRequest(server.url))
    assert inside.requests == []


async def test_redirects_are_followed_five_times_and_no_more() -> None:
    """fault: S3"""
    hops = [redirect(f"/hop/{count}") for count in range(5)]
    async with Faulty(answering(*hops, whole(b"there"))) as server:
        # Each hop has a connection of its own, and the script's answers are shared among them.
        answer = await http().send(EgressRequest(server.url))
    assert (answer.body, answer.url) == (b"there", f"http://{server.name}/hop/4")
    assert [request.target for request in server.requests][1:] == [f"/hop/{count}" for count in range(5)]
    async with Faulty(answering(redirect("/again"))) as endless:
        with pytest.raises(EgressRefused, match="more than 5 redirects"):
            await http().send(EgressRequest(endless.url))
    assert len(endless.requests) == 6


SECRETS = {"Authorization": "Bearer canary", "Cookie": "canary", "X-Api-Key": "canary", "Accept": "text/plain"}


async def test_no_credential_crosses_to_another_origin_and_no_cookie_is_kept() -> None:
    """fault: T11"""
    async with Faulty(answering(whole(b"there"))) as other:
        to = redirect(other.url, "302 Found", "set-cookie: a=canary")
        async with Faulty(answering(redirect("/same", "302 Found", "set-cookie: a=1"), to)) as server:
            answer = await http().send(EgressRequest(server.url, headers=SECRETS))
    assert answer.body == b"there"
    assert server.requests[1].headers["authorization"] == "Bearer canary"
    assert server.requests[1].headers["cookie"] == "canary"
    assert "canary" not in str(other.requests[0])
    assert other.requests[0].headers["accept"] == "text/plain"


@pytest.mark.parametrize(
    ("method", "status"), [("POST", 307), ("POST", 308), ("PUT", 301), ("DELETE", 302), ("PATCH", 308)]
)
async def test_a_request_with_effects_is_not_repeated_at_another_origin(method: str, status: int) -> None:
    """fault: T11"""
    moved = f"{status} Moved"
    async with Faulty(answering(whole(b"there"))) as other, Faulty(answering(redirect(other.url, moved))) as server:
        with pytest.raises(EgressRefused, match="not repeated"):
            await http().send(EgressRequest(server.url, method, body=b"canary"))
    assert other.requests == []


async def test_a_redirected_post_becomes_a_get_without_its_body_as_http_demands() -> None:
    async with Faulty(answering(whole(b"there"))) as other, Faulty(answering(redirect(other.url, "303 See"))) as server:
        sent = EgressRequest(server.url, "POST", {"Content-Type": "text/plain"}, b"canary")
        await http().send(sent)
    assert (other.requests[0].method, other.requests[0].body) == ("GET", b"")
    assert "content-type" not in other.requests[0].headers


async def test_a_307_of_the_same_origin_repeats_the_body() -> None:
    async with Faulty(answering(redirect("/there", "307 Moved"), whole(b"done"))) as server:
        await http().send(EgressRequest(server.url, "POST", body=b"words"))
    assert [(one.method, one.body) for one in server.requests] == [("POST", b"words")] * 2


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault: S2"""
    async with Faulty(answering(whole(b"proxied"))) as proxy, Faulty(answering(whole(b"direct"))) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.name}")
        answer = await http(Names(tool_invalid=[["127.0.0.1"]])).send(
            EgressRequest(f"http://tool.invalid:{server.port}/")
        )
    assert answer.body == b"direct"
    assert proxy.requests == []


async def test_an_answer_is_cut_at_its_limit_with_a_note() -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(head())
        while True:
            await peer.send(b"x" * 65536)

    async with Faulty(endless) as server:
        answer = await http().send(EgressRequest(server.url, max_bytes=100_000))
    assert (len(answer.body), answer.truncated) == (100_000, True)


async def test_a_server_that_never_answers_is_left_after_the_requests_time() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with Faulty(silent) as server:
        with pytest.raises(EgressNoResponse, match=r"0\.05 s"):
            await http().send(EgressRequest(server.url, seconds=0.05))
        await asyncio.wait_for(server.peers[0].left.wait(), 30)


@pytest.mark.parametrize(
    "headers", [{"X-A": "b\r\nX-Evil: 1"}, {"X\r\nA": "b"}, {"Host": "evil"}, {"Content-Length": "9"}, {"X": "☃"}]
)
async def test_a_header_that_would_break_the_request_is_refused(headers: dict[str, str]) -> None:
    """fault: S5"""
    async with Faulty(answering(whole(b""))) as server:
        with pytest.raises(EgressRefused):
            await http().send(EgressRequest(server.url, headers=headers))
    assert server.requests == []


async def test_an_account_may_make_so_many_requests_redirects_included() -> None:
    """fault: S6"""
    time = 0.0
    budget = EgressQuota(requests=3, window=60, now=lambda: time)
    async with Faulty(answering(redirect("/on"), whole(b""))) as server:
        guard = http(budget=budget)
        await guard.send(EgressRequest(server.url, account="a"))
        await guard.send(EgressRequest(server.url, account="a"))
        with pytest.raises(EgressRefused, match="no more requests"):
            await guard.send(EgressRequest(server.url, account="a"))
        await guard.send(EgressRequest(server.url, account="b"))
        time = 61.0
        await guard.send(EgressRequest(server.url, account="a"))
    assert len(server.requests) == 5


async def test_new_sessions_do_not_bring_a_caller_new_allowances_without_end() -> None:
    """fault: S6: a client names its sessions as it likes, and each name had an allowance of its own."""
    budget = EgressQuota(requests=3, sent_bytes=1000)
    for number in range(10 * 3):
        budget.spend(f"ann/{number}", 1)
    for account in ("ann/new", "ann/0", "ann"):
        with pytest.raises(EgressRefused, match="30 are allowed"):
            budget.spend(account, 1)
    budget.spend("bob/0", 1000)
    with pytest.raises(EgressRefused, match="too much"):
        budget.spend("bob/0", 1)
    for number in range(1, 10):
        budget.spend(f"bob/{number}", 1000)
    with pytest.raises(EgressRefused, match="10000 bytes"):
        budget.spend("bob/10", 1)


async def test_an_account_may_send_so_many_bytes_in_url_headers_and_body_together() -> None:
    """fault: S6"""
    async with Faulty(answering(whole(b""))) as server:
        for request in (
            EgressRequest(server.url, "POST", body=b"x" * 1001),
            EgressRequest(server.url, headers={"x": "x" * 1001}),
            EgressRequest(f"{server.url}?{'x' * 1001}"),
        ):
            with pytest.raises(EgressRefused, match="too much"):
                await http(budget=EgressQuota(sent_bytes=1000)).send(request)
    assert server.requests == []


async def test_every_hop_is_reported() -> None:
    """fault: S6"""
    emitted: list[HttpHopLogEntry] = []
    async with Faulty(answering(redirect("/on"), whole(b""))) as server:
        await guarded_http(LOOPBACK, on_hop=emitted.append).send(EgressRequest(server.url, account="run"))
    assert [(hop.account, hop.host, hop.port, hop.status) for hop in emitted] == [
        ("run", "127.0.0.1", server.port, 302),
        ("run", "127.0.0.1", server.port, 200),
    ]


async def test_a_tool_whose_address_the_operator_wrote_may_open_it_and_nothing_else() -> None:
    async with Faulty(answering(whole(b"other"))) as other, Faulty(answering(whole(b"mine"))) as server:
        trusted = http(allow=()).trusting(server.url)
        assert (await trusted.send(EgressRequest(server.url))).body == b"mine"
        with pytest.raises(EgressRefused):
            await trusted.send(EgressRequest(other.url))
    assert other.requests == []


async def test_a_stream_is_read_as_it_arrives_over_the_checked_address() -> None:
    """fault: S4"""
    more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(head("transfer-encoding: chunked"), chunk(b"one"))
        await more.wait()
        await peer.send(chunk(b"two"), chunk(b""))

    async with Faulty(script) as server:
        names = Names(tool_invalid=[["127.0.0.1"], ["10.0.0.1"]])
        streams = GuardedStreamClient(PinnedHttpTransport(), EgressPolicy(names, LOOPBACK))
        reply = await streams.send("POST", f"http://tool.invalid:{server.port}/", {"X": "y"}, b"{}")
        assert await anext(aiter(reply)) == b"one"
        more.set()
        assert await reply.read() == b"two"
        with pytest.raises(EgressRefused):  # the name leads elsewhere now
            await streams.send("POST", f"http://tool.invalid:{server.port}/", {}, b"")
    assert (server.requests[0].headers["x"], server.requests[0].body) == ("y", b"{}")


async def test_a_stream_follows_no_redirect_and_reaches_only_what_is_trusted() -> None:
    """fault: S3"""
    async with Faulty(answering(whole(b"inside"))) as inside, Faulty(answering(redirect(inside.url))) as server:
        streams = guarded_streams(trusted=[server.url])
        reply = await streams.send("GET", server.url, {}, b"")
        assert (reply.status, await reply.read()) == (302, b"")
        with pytest.raises(EgressRefused):
            await streams.check(inside.url)
        await streams.check(server.url)
    assert inside.peers == []
