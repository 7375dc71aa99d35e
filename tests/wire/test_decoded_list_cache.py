"""Tools that clients send again and again are decoded once, and mean the same as if they were decoded every time."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolgate.conversation.errors import InvalidRequest
from toolgate.wire.decoded_list_cache import CachedDecodedList, DecodedListCache
from toolgate.wire.jsontext import decode_body, encode

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "title": "a:b"}}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def outcome(body: bytes, tools: DecodedListCache | None) -> Any:
    """Return the decoded body, or what is wrong with it."""
    try:
        return decode_body(body, tools=tools)
    except InvalidRequest as error:
        return error.message


@given(st.dictionaries(texts, values, max_size=4), st.lists(values, max_size=3) | values, st.integers(0, 2))
def test_a_body_means_the_same_however_often_its_tools_came_before(
    fields: dict[str, Any], tools: Any, spaces: int
) -> None:
    cache, body = DecodedListCache(), {**fields, "tools": tools}
    text = msgspec.json.format(encode(body), indent=spaces)
    for _ in range(3):
        decoded = decode_body(text, tools=cache)
        assert decoded == body
        assert list(decoded) == list(body)
        assert encode(decoded) == encode(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"tools":[{"name":"a","name":"b"}]}',
        b'{"tools":[1],"model":"a","model":"b"}',
        b'{"tools":[1],"tools":[{}]}',
        b'{"model":{"a":1,"a":2},"tools":[1]}',
        b'{"model":"a:b","tools":[{"x:y":1,"x:y":2}]}',
        b'{"a":1,"\\u0061":2,"x":"\\u003a","tools":[1]}',
        b'{"tools":[1],"a":"\xff"}',
        b'{"tools":["\xff"]}',
        b'{"tools":["\\ud800"]}',
        b'{"tools":[1}',
        b'{"tools":[1],"a":tru}',
        b'{"tools":[1]} x',
        b'{"tools":[1e400],"a":1e400}',
        b'{"tools":null}',
        b'{"tools":{"a":1}}',
        b'{"x":"\\"tools\\""}',
        b'["tools"]',
        b'"tools"',
        b'{"tools":' + b"[" * 5000,
        b'{"tools":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_what_is_wrong_is_found_beside_known_tools_as_well(body: bytes) -> None:
    cache = DecodedListCache()
    for known in (b"[1]", b"[{}]", encode([TOOL])):
        decode_body(b'{"tools":' + known + b"}", tools=cache)
    expected = outcome(body, None)
    assert outcome(body, cache) == expected
    assert outcome(body, cache) == expected


def test_known_tools_are_the_same_object_and_others_are_not() -> None:
    cache = DecodedListCache()
    first, again = [decode_body(encode({"model": name, "tools": [TOOL]}), tools=cache) for name in ("a", "b")]
    other = decode_body(encode({"model": "a", "tools": [TOOL, TOOL]}), tools=cache)
    assert type(first["tools"]) is CachedDecodedList
    assert first["tools"] is again["tools"]
    assert other["tools"] is not first["tools"]


def test_the_lists_that_were_not_used_for_longest_are_forgotten() -> None:
    cache = DecodedListCache(max_bytes=30)
    kept, forgotten = cache.add(b"0123456789", [1]), cache.add(b"a123456789", [2])
    assert cache.get(b"0123456789") is kept
    cache.add(b"b12345678901", [3])
    assert cache.get(b"0123456789") is kept
    assert cache.get(b"a123456789") is None
    assert forgotten == [2]
    cache.add(b"c" * 31, [4])
    assert cache.get(b"0123456789") is None
    cache.add(b"d123456789", [5])
    assert cache.get(b"d123456789") == [5]
