"""Who is let in, by which header and to what (E5, fault: Z1, Z3)."""

import time
from hashlib import sha256
from typing import Any

import pytest

from toolgate.auth.authenticator import PUBLIC, Authenticator
from toolgate.config import KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.conversation.errors import Forbidden, InvalidRequest, NotFound, ToolgateError, Unauthenticated
from toolgate.upstreams.router import no_such_model

TEXT = "tg-0123456789abcdef"
TARGETS = (TargetConfig(upstream="builtin", model="echo"),)
MODELS = [
    ModelConfig(name="gpt", aliases=("gpt-latest",), targets=TARGETS),
    ModelConfig(name="gpt-mini", targets=TARGETS),
    ModelConfig(name="claude", targets=TARGETS),
]
FORMS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def key(text: str = TEXT, name: str = "me", **fields: Any) -> KeySettings:
    return KeySettings(name=name, key=Secret(text), **fields)


def header(form: str, value: bytes) -> tuple[bytes, bytes]:
    return form.encode(), b"Bearer " + value if form == "authorization" else value


def refusal(keys: Authenticator, *headers: tuple[bytes, bytes]) -> ToolgateError:
    with pytest.raises(ToolgateError) as caught:
        keys.authenticate(list(headers))
    return caught.value


@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_good_in_every_header_that_clients_use(form: str) -> None:
    keys = Authenticator([key("other", "them"), key()])
    caller = keys.authenticate([(b"host", b"h"), header(form, TEXT.encode()), (b"accept", b"*/*")])
    assert (caller.name, caller.scopes, caller.models) == ("me", frozenset({"chat"}), None)


@pytest.mark.parametrize("value", [b"bearer %s", b"BEARER %s", b"Bearer  %s ", b" Bearer %s"])
def test_the_scheme_is_read_as_http_wants_it(value: bytes) -> None:
    assert Authenticator([key()]).authenticate([(b"authorization", value % TEXT.encode())]).name == "me"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"'",
        b"' OR 1=1 --",
        b"x" * 1_000_000,
        b"x" * 4096,
        TEXT.encode() + b"\0",
        b"\0",
        TEXT.encode() + b"\n" + TEXT.encode(),
        TEXT[:-1].encode(),
        TEXT.upper().encode(),
        "ключ".encode(),
        b"\xff\xfe",
        sha256(TEXT.encode()).hexdigest().encode(),
        b"sha256:" + sha256(TEXT.encode()).hexdigest().encode(),
    ],
)
def test_everything_else_gets_the_same_refusal(form: str, value: bytes) -> None:
    keys = Authenticator([key()])
    error, missing = refusal(keys, header(form, value)), refusal(keys, (b"host", b"h"))
    assert isinstance(error, Unauthenticated)
    assert (error.status, error.message, error.code, error.param) == (
        401,
        missing.message,
        missing.code,
        missing.param,
    )


@pytest.mark.parametrize("value", [b"Basic dGctMDEyMw==", b"Token x", TEXT.encode(), b"Bearer", b"Bearer "])
def test_another_scheme_or_an_empty_one_is_no_key(value: bytes) -> None:
    assert isinstance(refusal(Authenticator([key()]), (b"authorization", value)), Unauthenticated)


def test_an_empty_header_beside_a_key_counts_as_none() -> None:
    headers = [(b"authorization", b"Bearer "), (b"x-api-key", TEXT.encode()), (b"api-key", b"")]
    assert Authenticator([key()]).authenticate(headers).name == "me"


def test_the_same_key_may_come_twice() -> None:
    assert Authenticator([key()]).authenticate([header(form, TEXT.encode()) for form in FORMS]).name == "me"


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_two_different_credentials_are_a_mistake_even_if_one_is_good(first: str, second: str) -> None:
    keys = Authenticator([key(), key("other", "them")])
    for other in (b"other", b"unknown"):
        error = refusal(keys, header(first, TEXT.encode()), header(second, other))
        assert isinstance(error, InvalidRequest)
        assert (error.status, error.code) == (400, "conflicting_credentials")


def test_cookies_and_other_headers_are_no_credentials() -> None:
    text = TEXT.encode()
    headers = [(b"cookie", b"key=" + text), (b"x-key", text), (b"proxy-authorization", b"Bearer " + text)]
    assert isinstance(refusal(Authenticator([key()]), *headers), Unauthenticated)


def test_a_key_may_be_known_by_its_digest_alone() -> None:
    digest = "sha256:" + sha256(TEXT.encode()).hexdigest().upper().replace("SHA", "sha")
    assert Authenticator([key(digest)]).authenticate([header("x-api-key", TEXT.encode())]).name == "me"


def test_without_keys_every_caller_is_anonymous_and_has_all_rights() -> None:
    keys = Authenticator([])
    assert keys.allows_anonymous
    for headers in ([], [(b"authorization", b"Bearer x"), (b"x-api-key", b"y")]):
        caller = keys.authenticate(headers)
        assert (caller.name, caller.models) == ("anonymous", None)
        for scope in ("chat", "tools", "admin"):
            caller.require(scope)


def test_no_key_is_kept() -> None:
    kept = repr(vars(Authenticator([key()])))
    assert TEXT not in kept
    assert "Secret" not in kept


def test_a_scope_that_the_key_lacks_is_forbidden() -> None:
    caller = Authenticator([key(scopes=("chat", "tools"))]).authenticate([header("api-key", TEXT.encode())])
    caller.require("chat")
    caller.require("tools")
    with pytest.raises(Forbidden, match="lacks the scope admin"):
        caller.require("admin")


def test_the_caller_of_public_endpoints_has_no_rights() -> None:
    with pytest.raises(Forbidden):
        PUBLIC.require("chat")
    assert not PUBLIC.may_use("gpt")


@pytest.mark.parametrize(
    ("allowed", "usable"),
    [
        ((), {"gpt", "gpt-latest", "gpt-mini", "claude", "unheard-of"}),
        (("gpt",), {"gpt", "gpt-latest"}),
        (("gpt-latest",), {"gpt", "gpt-latest"}),
        (("gpt*",), {"gpt", "gpt-latest", "gpt-mini"}),
        (("cl*", "gpt-mini"), {"claude", "gpt-mini"}),
        (("no-*",), set()),
    ],
)
def test_a_key_may_be_for_some_models_under_any_of_their_names(allowed: tuple[str, ...], usable: set[str]) -> None:
    caller = Authenticator([key(models=allowed)], MODELS).authenticate([header("x-api-key", TEXT.encode())])
    names = {"gpt", "gpt-latest", "gpt-mini", "claude", "unheard-of"}
    assert {name for name in names if caller.may_use(name)} == usable


def test_a_model_that_the_key_may_not_use_looks_like_one_that_does_not_exist() -> None:
    caller = Authenticator([key(models=("gpt",))], MODELS).authenticate([header("x-api-key", TEXT.encode())])
    with pytest.raises(NotFound) as caught:
        caller.require_model("claude")
    absent = no_such_model("claude")
    assert vars(caught.value) == vars(absent)
    assert len(no_such_model("x" * 10_000).message) < 200


def test_one_key_among_ten_thousand_is_found_as_quickly_as_one_alone() -> None:
    many = Authenticator([key(f"key-number-{number}", f"n{number}") for number in range(10_000)])
    headers = [(b"host", b"h"), header("authorization", b"key-number-7777")]
    assert many.authenticate(headers).name == "n7777"
    started = time.process_time()
    for _ in range(2000):
        many.authenticate(headers)
    assert (time.process_time() - started) / 2000 < 100e-6
