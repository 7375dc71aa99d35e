"""What keeps web pages away from a server on loopback (E5, fault: Z4, V1)."""

import msgspec
import pytest

from toolgate.config import Config, KeySettings, Secret, ServerSettings
from toolgate.conversation.errors import ToolgateError
from toolgate.http.origins import OriginPolicy

KEYS = (KeySettings(name="me", key=Secret("k")),)
LOCAL_HOST = (b"host", b"127.0.0.1:8080")


def rules(
    *, keys: tuple[KeySettings, ...] = (), origins: tuple[str, ...] = (), hosts: tuple[str, ...] = ()
) -> OriginPolicy:
    return OriginPolicy(Config(keys=keys, server=ServerSettings(origins=origins, hosts=hosts)))


def status(rules: OriginPolicy, *headers: tuple[bytes, bytes]) -> int:
    for _ in range(2):  # what is remembered must not change the answer
        try:
            rules.check(list(headers))
        except ToolgateError as error:
            first = error.status
        else:
            first = 200
    return first


@pytest.mark.parametrize(
    "host",
    [
        *(b"localhost", b"localhost:8080", b"LOCALHOST:1", b"127.0.0.1", b"127.0.0.1:65535", b"[::1]", b"[::1]:8080"),
        *(b"localhost.", b"127.0.0.2:80", b"[0:0:0:0:0:0:0:1]:80"),
    ],
)
def test_this_machine_is_served(host: bytes) -> None:
    assert status(rules(), (b"host", host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            b"evil.org",
            b"evil.org:8080",
            b"localhost.evil.org",
            b"127.0.0.1.evil.org",
            b"0.0.0.0",
            b"[::]",
            b"10.0.0.1",
        ),
        *(
            b"127.1",
            b"2130706433",
            b"0x7f000001",
            b"0177.0.0.1",
            b"xlocalhost",
            b"[::ffff:10.0.0.1]",
            b"169.254.169.254",
        ),
    ],
)
def test_any_other_host_is_misdirected_while_there_are_no_keys(host: bytes) -> None:
    assert status(rules(), (b"host", host)) == 421


@pytest.mark.parametrize(
    "host",
    [
        *(
            b"",
            b" ",
            b"a/b",
            b"localhost/x",
            b"?",
            b"localhost?x",
            b"#",
            b"localhost#",
            b"@",
            b"evil@localhost",
            b"::1",
        ),
        *(b"localhost:80:80", b"localhost:x", b"localhost:123456", b"a b", b"localhost\\x", b"[::1", b"\xff", b"a%2eb"),
        *(b"localhost:", b"localhost,evil.org", b"127.0.0.1\x00"),
    ],
)
def test_a_malformed_host_is_a_bad_request_with_and_without_keys(host: bytes) -> None:
    assert status(rules(), (b"host", host)) == 400
    assert status(rules(keys=KEYS), (b"host", host)) == 400


def test_two_hosts_or_none_are_a_bad_request() -> None:
    assert status(rules(), LOCAL_HOST, LOCAL_HOST) == 400
    assert status(rules(), LOCAL_HOST, (b"host", b"evil.org")) == 400
    assert status(rules()) == 400
    assert status(rules(keys=KEYS)) == 200  # an old client; the key decides


@pytest.mark.parametrize(
    "header", [b"x-forwarded-host", b"x-host", b"forwarded", b"x-original-url", b"x-original-host"]
)
def test_no_other_header_replaces_the_host(header: bytes) -> None:
    assert status(rules(), (b"host", b"evil.org"), (header, b"localhost")) == 421
    assert status(rules(), LOCAL_HOST, (header, b"evil.org")) == 200


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        *[(origin, 200) for origin in (b"http://localhost", b"http://127.0.0.1:3000", b"https://[::1]:8443")],
        *[(origin, 403) for origin in (b"null", b"", b"https://evil.org", b"http://localhost.evil.org", b"file://")],
        *[(origin, 403) for origin in (b"http://localhost/", b"http://a@localhost", b"chrome-extension://abc", b"x")],
        *[(origin, 403) for origin in (b"http://localhost http://evil.org", b"http://localhost, http://evil.org")],
    ],
)
def test_without_keys_a_page_must_be_of_this_machine(origin: bytes, expected: int) -> None:
    assert status(rules(), LOCAL_HOST, (b"origin", origin)) == expected


def test_a_page_that_the_configuration_names_is_welcome() -> None:
    named = rules(origins=("https://app.example.org", "vscode-webview://abc"))
    assert status(named, LOCAL_HOST, (b"origin", b"https://app.example.org")) == 200
    assert status(named, LOCAL_HOST, (b"origin", b"vscode-webview://abc")) == 200
    assert status(named, LOCAL_HOST, (b"origin", b"https://app.example.org.evil")) == 403
    assert status(named, LOCAL_HOST, (b"origin", b"http://app.example.org")) == 403


def test_two_origins_are_a_bad_request() -> None:
    origin = (b"origin", b"http://localhost")
    assert status(rules(), LOCAL_HOST, origin, origin) == 400


def test_with_keys_the_host_counts_only_if_some_are_named() -> None:
    assert status(rules(keys=KEYS), (b"host", b"gateway.example.org")) == 200
    named = rules(keys=KEYS, hosts=("Gateway.example.org",))
    assert status(named, (b"host", b"gateway.EXAMPLE.org:443")) == 200
    assert status(named, (b"host", b"other.example.org")) == 421
    assert status(named, LOCAL_HOST) == 421


def test_a_named_host_is_served_beside_this_machine_when_there_are_no_keys() -> None:
    named = rules(hosts=("host.docker.internal",))
    assert status(named, (b"host", b"host.docker.internal:8080")) == 200
    assert status(named, LOCAL_HOST) == 200
    assert status(named, (b"host", b"evil.org")) == 421


class TestCors:
    def test_a_welcome_page_may_read_the_answer_and_no_other(self) -> None:
        headers = dict(
            rules(keys=KEYS, origins=("https://a.example",)).check([LOCAL_HOST, (b"origin", b"https://a.example")])
        )
        assert headers[b"access-control-allow-origin"] == b"https://a.example"
        assert headers[b"vary"] == b"origin"
        assert not rules(keys=KEYS, origins=("https://a.example",)).check(
            [LOCAL_HOST, (b"origin", b"https://b.example")]
        )

    def test_with_keys_a_page_of_this_machine_must_be_named_too(self) -> None:
        assert rules(keys=KEYS).check([LOCAL_HOST, (b"origin", b"http://localhost:3000")]) == ()

    def test_without_an_origin_nothing_is_added(self) -> None:
        assert rules().check([LOCAL_HOST]) == ()

    def test_all_origins_can_be_allowed_where_keys_are_required(self) -> None:
        policy = rules(keys=KEYS, origins=("*",))
        headers = dict(policy.check([LOCAL_HOST, (b"origin", b"https://any.example")]))
        assert headers[b"access-control-allow-origin"] == b"*"

    def test_a_wildcard_allows_no_origin_where_there_are_no_keys(self) -> None:
        assert status(rules(origins=("*",)), LOCAL_HOST, (b"origin", b"https://any.example")) == 403

    def test_cookies_are_never_part_of_it(self) -> None:
        for each in (rules(), rules(keys=KEYS, origins=("*", "http://localhost"))):
            given = [LOCAL_HOST, (b"origin", b"http://localhost")]
            names = {name for name, _ in (*each.check(given), *each.preflight(given))}
            assert b"access-control-allow-credentials" not in names

    def test_a_preflight_of_an_allowed_page_is_granted(self) -> None:
        asked = [
            LOCAL_HOST,
            (b"origin", b"http://localhost:5173"),
            (b"access-control-request-method", b"POST"),
            (b"access-control-request-headers", b"authorization, content-type, x-stainless-os"),
            (b"access-control-request-private-network", b"true"),
        ]
        given = dict(rules().preflight(asked))
        assert given[b"access-control-allow-origin"] == b"http://localhost:5173"
        assert b"POST" in given[b"access-control-allow-methods"]
        assert given[b"access-control-allow-headers"] == b"authorization, content-type, x-stainless-os"
        assert given[b"access-control-allow-private-network"] == b"true"

    @pytest.mark.parametrize("wanted", [b"a\r\nset-cookie: x", b"\x00", b"x" * 3000, b"a:b"])
    def test_odd_header_lists_are_not_repeated(self, wanted: bytes) -> None:
        asked = [LOCAL_HOST, (b"origin", b"http://localhost"), (b"access-control-request-headers", wanted)]
        assert b"access-control-allow-headers" not in dict(rules().preflight(asked))

    @pytest.mark.parametrize("keys", [(), KEYS])
    def test_a_foreign_page_gets_no_leave(self, keys: tuple[KeySettings, ...]) -> None:
        each = rules(keys=keys, origins=("https://a.example",))
        with pytest.raises(ToolgateError) as caught:
            each.preflight([LOCAL_HOST, (b"origin", b"https://evil.org")])
        assert caught.value.status == 403
        with pytest.raises(ToolgateError) as caught:
            each.preflight([LOCAL_HOST])
        assert caught.value.status == 403


def test_what_is_remembered_stays_small() -> None:
    each = rules(keys=KEYS, origins=("*",))
    for number in range(2000):
        each.check([(b"host", b"h%d" % number), (b"origin", b"https://o%d" % number)])
    kept = sum(len(value) for value in vars(each).values() if isinstance(value, set))
    assert kept <= 512


def test_rules_follow_a_new_configuration() -> None:
    config = Config(server=ServerSettings(port=1))
    assert status(OriginPolicy(config), (b"host", b"x.example")) == 421
    assert status(OriginPolicy(msgspec.structs.replace(config, keys=KEYS)), (b"host", b"x.example")) == 200
