"""A key that occurs twice in an object: each reader may take another of its values, so it is rejected."""

import pytest

from toolgate.conversation.errors import InvalidRequest
from toolgate.wire.jsontext import decode_body


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a"\n:1, "b":1, "b":2}',
        b'{"a" : 1, "a" : 1}',
        b'{"a": "x\\u003ay", "a": 1}',
        b'{"a": 1, "a": 2, "b": "x\\u003Ay"}',
        b'{"a": {"b": [{"c": 1, "c": "\\"c\\":"}]}}',
    ],
)
def test_a_key_that_stands_twice_is_refused_however_it_is_written(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="occurs twice"):
        decode_body(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a" : {"a":1}, "b"\n: ["a:", ":"]}', {"a": {"a": 1}, "b": ["a:", ":"]}),
        (b'{"a": "x\\u003ay", "b": "\\u003c\\":"}', {"a": "x:y", "b": '<":'}),
        (b'{"a": {"c": 1}, "b": {"c": 1}}', {"a": {"c": 1}, "b": {"c": 1}}),
    ],
)
def test_colons_in_text_and_odd_spacing_are_no_offence(body: bytes, value: object) -> None:
    assert decode_body(body) == value


def test_a_text_may_hold_more_colons_than_a_body_may_hold_keys() -> None:
    assert len(decode_body(b'{"a": "%b"}' % (b":" * 200_000))["a"]) == 200_000
