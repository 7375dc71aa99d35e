"""Numbers that no float holds, and lone surrogates: rare, but arguments must not change on the way."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from toolgate.conversation.arguments import arguments_object, arguments_text, is_object
from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer
from toolgate.wire.jsontext import decode_body, decode_event, encode


@pytest.mark.parametrize("decode", [decode_body, decode_event])
def test_a_number_beyond_floats_is_written_again_as_a_number(decode: Callable[[bytes], Any]) -> None:
    """quirk: args_bignum"""
    value = decode(b'{"a":1e400,"b":[-2e999],"c":123456789012345678901234567890}')
    assert encode(value) == b'{"a":1E+400,"b":[-2E+999],"c":123456789012345678901234567890}'
    assert arguments_text(value) == encode(value).decode()


@pytest.mark.parametrize(
    "body", [b'{"a":1e400,"a":2}', b"[1e400,NaN]", b"[1e400,", b"[1e99999999999999999999]", b"[" + b"1" * 5000 + b"]"]
)
def test_a_body_with_such_a_number_is_still_checked(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_body(body)


def test_an_event_with_a_number_out_of_any_range_is_garbled() -> None:
    with pytest.raises(InvalidUpstreamAnswer):
        decode_event(b"[1e99999999999999999999]")


def test_arguments_with_such_a_number_are_an_object_only_if_the_rest_is_json() -> None:
    assert is_object('{"a":1e400}')
    assert is_object('{"a":' + "1" * 5000 + "}")
    assert not is_object('{"a":1e400,,}')
    assert arguments_object('{"a":1e400,,}') == {"INVALID_JSON": '{"a":1e400,,}'}


def test_half_a_surrogate_pair_becomes_a_replacement_character_beside_raw_json() -> None:
    """quirk: surrogate_halves"""
    value = {"\udc00": ["\ud83d", ("\ud83d\ude00",)], "raw": msgspec.Raw(b'{"n":1.10}')}
    assert encode(value).decode() == '{"\ufffd":["\ufffd",["😀"]],"raw":{"n":1.10}}'
