"""The header values that the client encodes and the server decodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.mcp.protocol.headers import argument_at, decode_value, encode_value, header_parameters, header_text


@given(st.text())
def test_a_value_is_decoded_as_it_was_encoded_and_fits_into_a_header(text: str) -> None:
    value = encode_value(text)
    assert decode_value(value) == text.encode("utf-8", "replace").decode()
    assert value.isascii()
    assert value.isprintable()
    assert value == value.strip()


@pytest.mark.parametrize("value", ["=?base64?*?=", "=?base64?YQ?=", "=?base64?YR==?=", "=?base64?/w==?="])
def test_malformed_or_uncanonical_base64_is_refused(value: str) -> None:
    assert decode_value(value) is None


def test_nested_arguments_are_found_by_the_annotations_of_their_schema() -> None:
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"properties": {"place": {"properties": {"region": region}}, "loud": {"type": "boolean"}}}
    [found] = header_parameters(schema)
    assert (found.path, found.header, found.type) == (("place", "region"), "Region", "string")
    assert argument_at({"place": {"region": "eu"}}, found.path) == "eu"
    assert argument_at({"place": 7}, found.path) is None
    assert header_text(True) == "true"
