"""Credentials and paths as no client library would send them (spec: E5; fault: Z1, Z3, Z4, Z7)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.api.http_client import HttpResponse
from tests.auth.tenants import Tenants, tenants
from tests.tools.execution.toolwork import quiet
from toolgate.auth.authenticator import Authenticator, digest_of_credential
from toolgate.auth.failed_logins import MOST, SECONDS, FailedLogins
from toolgate.config import KeySettings, Secret
from toolgate.conversation.errors import RateLimited

FORMS = ("authorization: Bearer %s", "x-api-key: %s", "api-key: %s", "x-goog-api-key: %s")
SUBPROTOCOL = "sec-websocket-protocol: realtime, openai-insecure-api-key.%s"
WRONG = {
    "empty": b"",
    "blank": b"   ",
    "quote": b"'",
    "sql": b"' OR 1=1; DROP TABLE api_keys; --",
    "like": b"%",
    "long": b"x" * 4097,
    "unicode": "ключ-🔑".encode(),
    "latin": b"caf\xe9",
    "tab": b"a\tb",
    "digest": sha256(b"ann-key").hexdigest().encode(),
    "configured digest": b"sha256:" + sha256(b"ann-key").hexdigest().encode(),
    "prefix": b"ann-ke",
    "longer": b"ann-keys",
    "case": b"ANN-KEY",
    "markup": b"<script>alert(1)</script>${jndi:ldap://x}",
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Tenants]:
    async with tenants(tmp_path) as served:
        yield served


async def speak(
    served: Tenants, *lines: bytes | str, line: str = "GET /v1/models HTTP/1.1", host: bool = True
) -> HttpResponse:
    """One request of bare lines; what comes back is read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    output = [line, *(["host: 127.0.0.1"] if host else []), *lines, "connection: close"]
    writer.write(
        b"\r\n".join([one if isinstance(one, bytes) else one.encode("latin-1") for one in output]) + b"\r\n\r\n"
    )
    whole = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head, _, body = whole.partition(b"\r\n\r\n")
    status, *headers = head.decode("latin-1").split("\r\n")
    pairs = (one.split(": ", 1) for one in headers)
    return HttpResponse(int(status.split()[1]), {name.lower(): value for name, value in pairs}, body)


def put(form: str, key: bytes) -> bytes:
    before, after = form.encode().split(b"%s")
    return before + key + after


@pytest.mark.parametrize("form", FORMS)
async def test_a_wrong_key_in_any_header_gets_the_refusal_of_a_missing_one(served: Tenants, form: str) -> None:
    """fault: Z1"""
    missing = await speak(served)
    assert missing.status == 401
    for kind, key in WRONG.items():
        wrong = await speak(served, put(form, key))
        assert (wrong.status, wrong.body) == (401, missing.body), kind
        assert lasting(wrong) == lasting(missing), kind


def lasting(response: HttpResponse) -> dict[str, str]:
    """The headers that are the same each time."""
    return {
        name: value for name, value in response.headers.items() if name not in ("x-request-id", "request-id", "date")
    }


@pytest.mark.parametrize("form", FORMS)
async def test_a_key_that_is_no_header_value_is_refused_by_the_parser(served: Tenants, form: str) -> None:
    """fault: Z1: NUL, a megabyte, line breaks."""
    for key in (b"ann-key\0", b"\0", b"ann\x07-key", b"a" * 1_000_000, b"ann-key\r\n ann-key", b"a\nb"):
        response = await speak(served, put(form, key))
        assert response.status in (400, 401, 431), key[:20]
        assert b'"data"' not in response.body


@pytest.mark.parametrize("form", FORMS)
async def test_a_key_never_reaches_the_log(tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]) -> None:
    """fault: Z1: nor does anything that it holds break out of a line."""
    async with tenants(tmp_path, log=quiet("debug")) as served:
        await speak(served, put(form, b'sneaky\tkey {"level":"error"} \xff'))
        await speak(served, put(form, b"ann-key"))
        await speak(served, line="GET /v1/%0a%22sneaky-path%22 HTTP/1.1")
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(json.loads(line)["event"] for line in lines)
    assert "sneaky\\tkey" not in "".join(lines)
    assert "sneaky key" not in "".join(lines)
    assert "ann-key" not in "".join(lines)


DECISIONS = (("only-chat", 200, 403, 403), ("only-tools", 403, 200, 403), ("only-admin", 403, 403, 200))


@pytest.mark.parametrize("form", [*FORMS, SUBPROTOCOL])
async def test_the_decision_is_the_same_through_every_header(served: Tenants, form: str) -> None:
    """fault: Z3"""
    for who, *statuses in DECISIONS:
        for path, status in zip(("/v1/models", "/v1/tools", "/v1/keys"), statuses, strict=True):
            response = await speak(served, put(form, f"{who}-key".encode()), line=f"GET {path} HTTP/1.1")
            assert response.status == status, (who, path)


@pytest.mark.parametrize("first", [*FORMS, SUBPROTOCOL])
async def test_two_different_keys_are_a_mistake_in_every_pair_of_headers(served: Tenants, first: str) -> None:
    """fault: Z3: also in the same header twice, in either order, and if one of them is wrong."""
    for second in (*FORMS, SUBPROTOCOL):
        for pair in ((b"ann-key", b"bob-key"), (b"ann-key", b"wrong"), (b"wrong", b"ann-key")):
            response = await speak(served, put(first, pair[0]), put(second, pair[1]))
            assert (response.status, response.json["error"]["code"]) == (400, "conflicting_credentials"), (second, pair)


async def test_the_query_a_cookie_and_basic_credentials_are_no_key(served: Tenants) -> None:
    """fault: Z3: what ends up in logs, or is sent by a browser unasked, must not open anything."""
    for line in ("GET /v1/models?key=ann-key HTTP/1.1", "GET /v1/models?api_key=ann-key&access_token=ann-key HTTP/1.1"):
        assert (await speak(served, line=line)).status == 401
    for header in (
        "cookie: key=ann-key; api_key=ann-key; session=ann-key",
        "authorization: Basic YW5uOmFubi1rZXk=",
        "authorization: ann-key",
        "proxy-authorization: Bearer ann-key",
        "x-auth-token: ann-key",
        "sec-websocket-protocol: ann-key",
    ):
        assert (await speak(served, header)).status == 401, header


HOSTS = ("a/b", "a?b", "a#b", "u@127.0.0.1", "127.0.0.1:x", "a b", "", "127.0.0.1, evil", "[::1", "a\\b", "%31")


async def test_a_malformed_host_is_refused_for_every_caller(served: Tenants) -> None:
    """fault: Z4"""
    for host in HOSTS:
        response = await speak(served, f"host: {host}", "x-api-key: root-key", line="GET /v1/keys HTTP/1.1", host=False)
        assert response.status == 400, host


PATHS = (
    "//v1/keys",
    "/v1//keys",
    "/v1/./keys",
    "/v1/models/../keys",
    "/v1/models/%2e%2e/keys",
    "/v1/models/..%2fkeys",
    "/v1/models/%2e%2e%2fkeys",
    "/V1/Keys",
    "/v1/KEYS",
    "/v1/keys/",
    "/v1/keys.",
    "/v1/keys%00",
    "/v1/keys%20",
    "/v1/keys;x",
    "/v1%2fkeys",
    "/%76%31/keys",
    "/v1/keys%3f",
    "/v1/keys#x",
    "/metrics/",
    "//metrics",
    "/METRICS",
    "/v1/models/..;/keys",
    "/healthz/../v1/keys",
    "/healthz/..%2f..%2fmetrics",
    "\\v1\\keys",
)


@pytest.mark.parametrize("headers", [(), ("x-api-key: all-but-admin-key",)])
async def test_no_spelling_of_a_path_opens_what_its_plain_form_does_not(
    served: Tenants, headers: tuple[str, ...]
) -> None:
    """fault: Z4: a key without the scope, and none at all."""
    for path in PATHS:
        response = await speak(served, *headers, line=f"GET {path} HTTP/1.1")
        assert response.status in (400, 401, 403, 404), path
        assert b'"object":"list"' not in response.body, path
        assert b"toolgate_" not in response.body, path


ORIGINS = ("http://127.0.0.1", "http://evil.example", "http://127.0.0.1@evil.example", "ftp://x")


async def test_an_absolute_form_changes_no_rights(served: Tenants) -> None:
    """fault: Z4"""
    for origin in ORIGINS:
        line = f"GET {origin}/v1/keys HTTP/1.1"
        assert (await speak(served, line=line)).status in (400, 401), origin
        assert (await speak(served, "x-api-key: all-but-admin-key", line=line)).status in (400, 403), origin
        assert (await speak(served, "x-api-key: root-key", line=line)).status in (200, 400), origin


FORWARDED = (
    "x-forwarded-for: 127.0.0.1",
    "x-forwarded-host: localhost",
    "x-forwarded-proto: https",
    "x-forwarded-prefix: /v1",
    "forwarded: for=127.0.0.1;host=localhost",
    "x-real-ip: 127.0.0.1",
    "x-original-url: /v1/keys",
    "x-rewrite-url: /v1/keys",
    "x-http-method-override: DELETE",
    "x-method-override: DELETE",
    "x-http-method: DELETE",
    "x-forwarded-user: root",
    "x-remote-user: root",
    "x-authenticated-user: root",
    "x-toolgate-caller: root",
    "x-tenant-id: ann",
)


async def test_no_header_of_a_proxy_changes_the_caller_or_the_path(served: Tenants) -> None:
    """fault: Z4"""
    mine = (await served.ask("POST", "/v1/conversations", {}, "ann")).json()["id"]
    path = f"GET /v1/conversations/{mine} HTTP/1.1"
    for header in FORWARDED:
        assert (await speak(served, header)).status == 401, header
        keys = await speak(served, header, "x-api-key: all-but-admin-key", line="GET /v1/keys HTTP/1.1")
        assert keys.status == 403, header
        listed = await speak(served, header, "x-api-key: only-chat-key")
        assert (listed.status, listed.json["object"]) == (200, "list"), header
        assert (await speak(served, header, "x-api-key: bob-key", line=path)).status == 404, header
        assert (await speak(served, header, "x-api-key: ann-key", line=path)).status == 200, header


@pytest.mark.parametrize(
    "line", ["get /v1/keys HTTP/1.1", "GET /v1/keys HTTP/0.9", "GET /v1/keys", "GET /v1/keys HTTP/3"]
)
async def test_a_request_line_that_is_none_opens_nothing(served: Tenants, line: str) -> None:
    """fault: Z4"""
    response = await speak(served, "x-api-key: all-but-admin-key", line=line)
    assert response.status in (400, 403, 405, 505)


# Guessing


async def test_many_wrong_keys_from_one_address_are_refused_for_a_while_and_a_right_one_never_is(
    served: Tenants,
) -> None:
    """fault: Z7"""
    answers = [await speak(served, f"x-api-key: guess-{number}") for number in range(MOST + 3)]
    assert [one.status for one in answers] == [401] * MOST + [429] * 3
    assert 1 <= int(answers[-1].headers["retry-after"]) <= SECONDS
    assert answers[-1].headers["x-should-retry"] == "false"
    assert (await speak(served, "x-api-key: ann-key")).status == 200
    assert (await speak(served)).status == 401, "who brings no key guesses none"
    assert (await speak(served, "x-api-key: guess-3")).status == 401, "an old key that is sent again is no new guess"


def noted(guesses: FailedLogins, address: str, count: int) -> int:
    """How many of so many different keys are looked at."""
    for number in range(count):
        try:
            guesses.add(address, b"%d" % number)
        except RateLimited:
            return number
    return count


def test_guesses_are_counted_by_address_and_forgotten_after_a_minute() -> None:
    """fault: Z7: the lockout affects no other address."""
    now = [0.0]
    guesses = FailedLogins(lambda: now[0])
    assert noted(guesses, "192.0.2.1", 100) == MOST
    assert noted(guesses, "192.0.2.2", 100) == MOST
    now[0] = SECONDS
    assert noted(guesses, "192.0.2.1", 100) == MOST
    assert noted(guesses, "2001:db8::1", 100) == MOST
    assert noted(guesses, "2001:db8::ffff", 100) == MOST, "those guesses again are known"
    with pytest.raises(RateLimited):
        guesses.add("2001:db8::ffff", b"another")
    assert noted(guesses, "2001:db8:0:1::1", 100) == MOST


def test_addresses_without_end_do_not_fill_the_memory() -> None:
    guesses = FailedLogins(lambda: 0.0)
    for number in range(6000):
        guesses.add(f"10.0.{number // 256}.{number % 256}", b"x")
    assert len(guesses._seen) == 4096


def test_keys_are_compared_by_digests_that_clients_cannot_choose() -> None:
    """fault: Z7: a key is never compared as it is, so that how long it takes says nothing about how near a guess was."""
    keys = Authenticator([KeySettings(name="me", key=Secret("tg-secret"))])
    assert list(keys._callers) == [sha256(b"tg-secret").digest()]
    assert b"tg-secret" not in repr(vars(keys)).encode()
    assert re.fullmatch(rb".{8}", digest_of_credential([(b"x-api-key", b"tg-secre")]), re.DOTALL)
