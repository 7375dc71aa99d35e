"""Untrusted JSON: complaints name the path, leftovers stay, and nothing strange gets in."""

import pytest

from toolgate.conversation.errors import InvalidRequest
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import decode_body, encode


def test_unread_fields_are_left_over() -> None:
    fields = Fields({"a": "x", "b": 1, "c": None})
    assert fields.text("a") == "x"
    assert fields.text("c") is None
    assert fields.rest == {"b": 1}


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (lambda f: f.text("x"), 1),
        (lambda f: f.flag("x"), "yes"),
        (lambda f: f.flag("x"), 1),
        (lambda f: f.integer("x"), "1e999"),
        (lambda f: f.integer("x"), 1.5),
        (lambda f: f.integer("x"), True),
        (lambda f: f.integer("x", least=1), 0),
        (lambda f: f.integer("x", most=9), 10**6),
        (lambda f: f.number("x"), "1"),
        (lambda f: f.items("x"), {}),
        (lambda f: f.object("x"), []),
        (lambda f: f.mapping("x"), "y"),
        (lambda f: f.one_of("x", "a", "b"), "c"),
    ],
)
def test_a_wrong_type_is_refused_with_its_path(read: object, value: object) -> None:
    """fault: C10"""
    with pytest.raises(InvalidRequest) as caught:
        read(Fields({"x": value}, "a[0]"))  # type: ignore[operator]
    assert caught.value.param == "a[0].x"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a":1,}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n":' + b"1" * 5000 + b"}",
        b'{"n":NaN}',
        b'{"n":Infinity}',
        b'{"a":1,"a":2}',
        b'{"x": {"b": 1, "b": 2}}',
        b'{"t":"\\ud83d"',
        b'{"t":"\\ud83d\xff"}',
        b'{"a":"\\ud83d","a":2}',
        b'{"t":"\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"t":"a\x00b"}',
        b'{"a":1}{"b":2}',
        "{}".encode("utf-16"),
    ],
    ids=lambda body: repr(body[:24]),
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    """fault: C9"""
    with pytest.raises(InvalidRequest):
        decode_body(body)


def test_a_body_may_be_spaced_or_escaped_as_its_writer_likes() -> None:
    assert decode_body(b'{ "a" : "\\u00e9\\/" , "b": [1.50, 1e3] }') == {"a": "é/", "b": [1.5, 1000.0]}


def test_an_escaped_half_of_a_surrogate_pair_is_replaced() -> None:
    calls: list[str] = []
    assert decode_body(b'{"t":"a\\ud83d","u":"\\\\ud83d \\ud83d\\ude00"}', lambda: calls.append("repaired")) == {
        "t": "a\ufffd",
        "u": "\\ud83d \U0001f600",
    }
    assert calls == ["repaired"]


def test_half_a_surrogate_pair_can_be_written() -> None:
    """field: B30"""
    assert encode({"t": "a\ud83dé"}) == '{"t":"a\ufffdé"}'.encode()
