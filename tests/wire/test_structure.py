"""The structure of a large body is bounded before it is decoded, however it is written."""

import json
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.growth import is_linear
from toolgate.conversation import json_depth
from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer
from toolgate.conversation.json_depth import MAX_DEPTH
from toolgate.wire import jsontext
from toolgate.wire.decoded_list_cache import DecodedListCache
from toolgate.wire.jsontext import MAX_KEYS, MAX_LONG_DIGITS, MAX_VALUES, check_structure, decode_body, decode_event

SIZE = 2 * 1024 * 1024


def many(unit: bytes) -> bytes:
    """As many of it as there is place for, separated by commas."""
    return b",".join([unit] * (SIZE // (len(unit) + 1)))


REFUSED: dict[str, Callable[[], bytes]] = {
    "keys": lambda: b"[" + many(b'{"a":1}') + b"]",
    "keys with a space before the colon": lambda: b"[" + many(b'{"a" :1}') + b"]",
    "keys with a line break before the colon": lambda: b"[" + many(b'{"a"\r\n\t:1}') + b"]",
    "keys that end in an escaped quotation mark": lambda: b"[" + many(b'{"\\"":1}') + b"]",
    "keys that end in a backslash": lambda: b"[" + many(b'{"\\\\":1}') + b"]",
    "empty objects": lambda: b"[" + many(b"{}") + b"]",
    "empty lists": lambda: b"[" + many(b"[]") + b"]",
    "lists in lists": lambda: b"[" + many(b"[" * 900 + b"]" * 900) + b"]",
    "nothing but openings": lambda: b"[" * SIZE,
    "numbers": lambda: b"[" + many(b"1") + b"]",
    "numbers that no float holds": lambda: b"[" + many(b"1e999") + b"]",
    "strings": lambda: b"[" + many(b'""') + b"]",
    "nothing but quotation marks": lambda: b'"' * SIZE,
    "long numbers": lambda: b"[" + many(b"1" * 4000) + b"]",
    "one long number": lambda: b"1" * SIZE,
}
TAKEN: dict[str, Callable[[], bytes]] = {
    "one string": lambda: b'"' + b"a" * SIZE + b'"',
    "escapes": lambda: b'"' + b"\\u0041" * (SIZE // 6) + b'"',
    "escaped quotation marks": lambda: b'"' + b'\\"' * (SIZE // 2) + b'"',
    "backslashes": lambda: b'"' + b"\\\\" * (SIZE // 2) + b'"',
    "JSON in a string": lambda: b'"' + b'{\\"a\\": [1, 2, {}]},' * (SIZE // 21) + b'"',
    "many long strings": lambda: b"[" + b",".join([b'"' + b"a:," * 300 + b'"'] * 10_000) + b"]",
    "blanks": lambda: b"1" + b" " * SIZE,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_structure_that_takes_long_is_refused_before_it_is_decoded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsontext, "_decode", None)
    with pytest.raises(InvalidRequest, match=r"more than|too many long numbers"):
        decode_body(REFUSED[name]())


@pytest.mark.parametrize("name", TAKEN)
def test_a_large_body_of_little_structure_is_taken(name: str) -> None:
    body = TAKEN[name]()
    assert decode_body(body) == msgspec.json.decode(body)


def test_limits_are_exact() -> None:
    padding = b" " * 70_000
    keys = [b'"%d":0' % number for number in range(MAX_KEYS)]
    assert len(decode_body(b"{" + b",".join(keys) + b"}")) == MAX_KEYS
    with pytest.raises(InvalidRequest):
        decode_body(b"{" + b",".join([*keys, b'"a":0']) + b"}")
    assert len(decode_body(b"[" + b",".join([b"0"] * (MAX_VALUES)) + b"]")) == MAX_VALUES
    with pytest.raises(InvalidRequest):
        decode_body(b"[" + b",".join([b"0"] * (MAX_VALUES + 1)) + b"]")
    decode_body(b"[" + b",".join([b"1" * 4000] * (MAX_LONG_DIGITS // 4000)) + b"]" + padding)
    decode_body(b"[" + b",".join([b"1" * 32] * 3000) + b"]" + padding)


JSON_VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.text(st.sampled_from('ab\\":,{}[]\u00e4\n')) | st.integers(0, 9),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('ab\\":,{}')), inner),
)


def depth_of(value: object) -> int:
    """How many lists and objects are inside each other."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, (dict, list))]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


NESTED = {  # what begins a level, what is inside all, what ends a level, and how many levels it is
    "lists": (b"[", b"[]", b"]", 1),
    "objects": (b'{"a":', b"1", b"}", 1),
    "both": (b'[1,{"]}":', b"1", b"}]", 2),
    "lists with strings of brackets": (b'["]",', b'"["', b',"]\\"]"]', 1),
    "lists with blanks": (b"[ \r\n", b"1", b"\t]", 1),
}


@pytest.mark.parametrize("padding", [b"", b" " * 70_000], ids=["small", "large"])
@pytest.mark.parametrize("name", NESTED)
def test_the_limit_of_depth_is_exact(name: str, padding: bytes) -> None:
    begin, inside, end, levels = NESTED[name]
    times = (MAX_DEPTH - depth_of(json.loads(inside))) // levels
    allowed = begin * times + inside + end * times + padding
    assert depth_of(decode_body(allowed, max_depth=MAX_DEPTH)) == MAX_DEPTH
    with pytest.raises(InvalidRequest, match=f"nested deeper than {MAX_DEPTH} levels"):
        decode_body(b"[" + allowed + b"]", max_depth=MAX_DEPTH)
    assert depth_of(decode_event(allowed)) == MAX_DEPTH
    with pytest.raises(InvalidUpstreamAnswer, match=f"nested deeper than {MAX_DEPTH} levels"):
        decode_event(b"[" + allowed + b"]")


@pytest.mark.parametrize("padding", [b"", b"x" * 70_000], ids=["small", "large"])
def test_brackets_in_strings_and_beside_each_other_are_no_depth(padding: bytes) -> None:
    text = json.dumps(["[{" * 10_000, '\\"[' * 1000, "\\", padding.decode(), [[{}]] * 3000]).encode()
    assert decode_body(text, max_depth=MAX_DEPTH) == decode_event(text) == json.loads(text)


def test_deep_tools_are_refused_also_where_tools_are_cached() -> None:
    def body_of(levels: int) -> bytes:
        return b'{"model":"m","tools":[' + b"[" * (levels - 2) + b"]" * (levels - 2) + b"]}"

    def beside(levels: int) -> bytes:
        return b'{"tools":[{"a":[]}],"x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    cache = DecodedListCache()
    for make in (body_of, beside):
        for _ in range(2):  # the second time they are cached
            assert depth_of(decode_body(make(MAX_DEPTH), tools=cache, max_depth=MAX_DEPTH)) == MAX_DEPTH
            with pytest.raises(InvalidRequest, match="nested deeper"):
                decode_body(make(MAX_DEPTH + 1), tools=cache, max_depth=MAX_DEPTH)


@given(JSON_VALUES, st.integers(1, 9), st.integers(0, 4))
def test_depth_is_counted_wherever_the_slices_are_cut(value: object, size: int, most: int) -> None:
    body = json.dumps(value).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "_SLICE_BYTES", size)
        assert json_depth.is_deeper(body, most) == (depth_of(value) > most)


@given(JSON_VALUES, st.integers(1, 9), st.booleans())
def test_keys_are_counted_wherever_the_slices_are_cut(value: object, size: int, spaced: bool) -> None:
    body = json.dumps(value, indent=1 if spaced else None, separators=(" , ", " : ") if spaced else None).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "_SLICE_BYTES", size)
        assert check_structure(body) == jsontext._count_keys(value)


@pytest.mark.parametrize(
    "inner", [b'{"a":1,"b":[{"c":1}],"a":2}', b'{"a":1,"\\u0061":2}', b'{"\\u003a":1,"\\u003a":1}']
)
def test_a_repeated_key_of_a_large_body_is_found(inner: bytes) -> None:
    body = b'{"padding":"' + b"a:" * 40_000 + b'","x":[' + inner + b"]}"
    with pytest.raises(InvalidRequest, match="twice"):
        decode_body(body)


def test_the_check_takes_time_in_proportion_to_the_body() -> None:
    def cost(size: int) -> float:
        bodies = [b'"' + b'\\"' * size + b'"', b'"' + b"\\" * 2 * size + b'"', b" " * 2 * size]
        begun = time.thread_time()
        for body in bodies:
            check_structure(body)
        return time.thread_time() - begun

    cost(1000)
    assert is_linear(cost, 200_000, times=10)
