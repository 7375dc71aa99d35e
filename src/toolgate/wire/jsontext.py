"""Decode untrusted JSON within limits, and encode any value as JSON.

A client's JSON is decoded strictly: repeated keys and invalid UTF-8 are rejected. An upstream's is decoded leniently.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer
from toolgate.conversation.json_depth import MAX_DEPTH, JsonDepthCounter, is_deeper, is_too_deep, outside_strings
from toolgate.conversation.surrogates import JsonSurrogateRepair, repair_surrogates
from toolgate.wire.decoded_list_cache import DecodedListCache

# An object or a string takes far more memory and time than its bytes: these bound what one body can cost.
MAX_KEYS = 100_000
MAX_VALUES = 150_000
# Digits of all numbers that have more than 32: the time to decode or encode one grows with the square of its length.
MAX_LONG_DIGITS = 50_000

_UNCHECKED_BYTES = 64 * 1024  # too few for any of these limits
_SHALLOW_BYTES = 2 * MAX_DEPTH  # too few to be nested too deeply: nearly every event of a stream
_TOOLS = b'"tools"'
# The fields of all dialects' stream events that hold a piece of a text.
_PIECES = frozenset(
    (
        *("content", "text", "delta", "arguments", "partial_json", "thinking", "reasoning", "reasoning_content"),
        *("refusal", "response", "transcript"),
    )
)
_BACKSLASH = ord("\\")  # a number is found in a seventh of the time that bytes take
_SLICE_BYTES = 64 * 1024
_MAX_LENIENT_BYTES = 1024 * 1024  # of invalid JSON for which the slower, lenient decoder is tried
_FEW_MARKS = 1_000
_STEP_CHARACTERS = 1024 * 1024
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{33,}")
_decode = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def decode_body(
    body: bytes,
    on_lone_surrogate: Callable[[], None] | None = None,
    tools: DecodedListCache | None = None,
    max_depth: int = sys.maxsize,
) -> Any:
    """Decode a client's JSON; raise InvalidRequest with the place of the error.

    An escaped lone surrogate becomes U+FFFD, and `on_lone_surrogate` is called: a client that cut text inside a character
    would otherwise be rejected in every later turn of its conversation. `tools` has the tools of earlier bodies.
    Requests are decoded with `MAX_DEPTH`; answers, which are decoded to be stored, may be some levels deeper than what the
    upstream sent.
    """
    if tools is not None and len(body) <= _UNCHECKED_BYTES and body.find(_TOOLS) > 0:
        decoded = _decode_with_cached_tools(body, tools, max_depth)
        if decoded is not None:
            return decoded
    keys, colons = None, 0
    if len(body) > _UNCHECKED_BYTES:
        keys = check_structure(body, max_depth)
    elif len(body) <= 2 * max_depth:  # too short to be nested too deeply
        colons = _count_mark(body, b":")
    else:
        colons, openings = _count_marks(body)
        if openings > max_depth and is_deeper(body, max_depth):
            raise _too_deep(max_depth)
    try:
        value = _decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid UTF-8 at byte {error.start}.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError:  # a number that no float can hold
        value = _decode_with_decimals(body)
    except msgspec.MsgspecError as error:
        repaired = repair_escapes(body)
        if repaired is None:
            raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
        value = decode_body(repaired, max_depth=max_depth)
        if on_lone_surrogate is not None:
            on_lone_surrogate()
        return value
    # Of a repeated key some decoders keep the first value and some the last: a proxy or an upstream might read another
    # request than this server has checked.
    if keys is not None:
        if _count_keys(value) != keys:
            _refuse_repeated_keys(body)
    elif _may_repeat_keys(body, colons, value):
        _refuse_repeated_keys(body)
    return value


def _count_marks(text: bytes) -> tuple[int, int]:
    """Count the colons and the opening brackets of a JSON text, with those in its strings."""
    return _count_mark(text, b":"), _count_mark(text, b"[") + _count_mark(text, b"{")


def _count_mark(text: bytes, mark: bytes) -> int:
    # `replace` finds few of them in a fraction of the time that `count` takes, and many in several times as much.
    few = len(text) - len(text.replace(mark, b"", _FEW_MARKS))
    return few if few < _FEW_MARKS else text.count(mark)


def _may_repeat_keys(text: bytes, colons: int, value: Any) -> bool:
    """Return whether the JSON text of this value, with so many colons, may have a key twice in one object.

    A repeated key is encoded once, so a colon is missing, unless an escaped colon appears in its place.
    """
    if _count_mark(_encode(value), b":") != colons:
        return True
    return _BACKSLASH in text and b"\\u003a" in text.lower()


def _decode_with_cached_tools(body: bytes, cache: DecodedListCache, max_depth: int) -> dict[str, Any] | None:
    """Decode an object whose `tools` may be cached; None if anything in it needs a closer look."""
    try:
        fields = _decode_fields(body)
        raw = bytes(fields["tools"])
        tools = cache.get(raw)
        tool_colons, tool_openings = _count_marks(raw)
        if tools is None:
            items = _decode(raw)
            if type(items) is not list or _may_repeat_keys(raw, tool_colons, items):
                return None
            if tool_openings >= max_depth and is_deeper(raw, max_depth - 1):  # the body around them is one more level
                return None
            tools = cache.add(raw, items)
        value = {name: tools if name == "tools" else _decode(text) for name, text in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        return None
    # The keys and the depth of the tools were looked at when they were cached: here they count as one value.
    colons, openings = _count_marks(body)
    if openings - tool_openings > max_depth:
        return None
    return None if _may_repeat_keys(body, colons - tool_colons, {**value, "tools": None}) else value


def _count_keys(value: Any) -> int:
    """Count the keys of all objects, in Python code, which lets other threads run in between."""
    count, left = 0, [value]
    while left:
        inner = left.pop()
        if type(inner) is dict:
            count += len(inner)
            left += inner.values()
        elif type(inner) is list:
            left += inner
    return count


def check_structure(body: bytes, max_depth: int = sys.maxsize, *, subject: str = "The body") -> int:
    """Reject JSON that would take too long to decode, or is nested deeper than allowed; return how many keys it has.

    Size alone bounds nothing, since the cost of a byte depends on what it begins. The counts are exact up to the first
    syntax error, and no decoder reads behind that. Errors begin with the `subject`.
    """
    keys = values = strings = digits = 0
    depth = JsonDepthCounter(max_depth)
    for outside, quotes in outside_strings(body):
        keys += outside.count(b":")
        values += outside.count(b",") + depth.feed(outside)
        strings += quotes
        digits += sum(map(len, _LONG_NUMBER.findall(outside)))
        if keys > MAX_KEYS:
            raise InvalidRequest(f"{subject} holds more than {MAX_KEYS} keys.", code="invalid_json")
        if values > MAX_VALUES or strings > 2 * (MAX_KEYS + MAX_VALUES):
            raise InvalidRequest(f"{subject} holds more than {MAX_VALUES} values.", code="invalid_json")
        if digits > MAX_LONG_DIGITS:
            raise InvalidRequest(f"{subject} holds too many long numbers.", code="invalid_json")
        if depth.is_over:
            raise _too_deep(max_depth, subject)
    return keys


def check_depth(text: bytes, *, subject: str = "The body") -> None:
    """Raise InvalidRequest for JSON that is nested deeper than `MAX_DEPTH`."""
    if is_too_deep(text):
        raise _too_deep(MAX_DEPTH, subject)


def _too_deep(most: int, subject: str = "The body") -> InvalidRequest:
    return InvalidRequest(f"{subject} is nested deeper than {most} levels.", code="invalid_json")


def repair_escapes(body: bytes) -> bytes | None:
    """Replace escaped lone surrogates, slice by slice; None if there are none."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return None
    try:
        text, repair = body.decode(), JsonSurrogateRepair()
    except UnicodeDecodeError:
        return None
    starts = range(0, len(text), _SLICE_BYTES)
    repaired = "".join([repair.feed(text[start : start + _SLICE_BYTES]) for start in starts]) + repair.end()
    return repaired.encode() if repaired != text else None


def decode_event(data: bytes) -> Any:
    """Decode an upstream's JSON; lone surrogates and numbers beyond a float are accepted, other errors are not.

    In a text that comes in pieces a lone surrogate stays, since the next piece may have its other half. Elsewhere it
    becomes U+FFFD.
    """
    if len(data) > _SHALLOW_BYTES:
        _check_response(data)
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _repair_all_but_pieces(_decode_leniently(data))


def decode_response_body(data: bytes) -> tuple[Any, bytes | None]:
    """Decode an upstream's whole answer; return its bytes too if they are valid and can be relayed unchanged."""
    if len(data) > _SHALLOW_BYTES:
        _check_response(data)
    try:
        return _decode(data), data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return repair_surrogates(_decode_leniently(data, "The upstream's answer is not JSON")), None


def _repair_all_but_pieces(value: Any) -> Any:
    if type(value) is dict:
        return {
            repair_surrogates(name): inner if name in _PIECES and type(inner) is str else _repair_all_but_pieces(inner)
            for name, inner in value.items()
        }
    return [_repair_all_but_pieces(inner) for inner in value] if type(value) is list else repair_surrogates(value)


def _check_response(data: bytes) -> None:
    try:
        if len(data) <= _UNCHECKED_BYTES:
            check_depth(data, subject="The upstream's JSON")
        else:
            check_structure(data, MAX_DEPTH, subject="The upstream's JSON")
    except InvalidRequest as error:
        raise InvalidUpstreamAnswer(error.message) from None


def encode(value: Any) -> bytes:
    """Encode compact JSON in UTF-8; a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(repair_surrogates(value))


def encode_in_steps(value: Any, levels: int = 4) -> bytes:
    """Encode as `encode` does, the members of the outer `levels` one by one, and long texts in slices; in a thread.

    A call of the encoder holds the interpreter until it returns: for 70 ms where it escapes most of 25 MiB, which may be
    what a request continues and its own body. Four levels reach the parts of the messages of a request.
    """
    if type(value) is str and len(value) > _STEP_CHARACTERS:
        starts = range(0, len(value), _STEP_CHARACTERS)
        return b'"%b"' % b"".join([encode(value[start : start + _STEP_CHARACTERS])[1:-1] for start in starts])
    if levels and type(value) is list:
        return b"[%b]" % b",".join([encode_in_steps(inner, levels - 1) for inner in value])
    if levels and type(value) is dict:
        members = [b"%b:%b" % (encode(name), encode_in_steps(inner, levels - 1)) for name, inner in value.items()]
        return b"{%b}" % b",".join(members)
    return encode(value)


def decode_in_steps(text: bytes) -> Any:
    """Decode as `decode` does, the members of large lists and objects one by one; in a thread."""
    if len(text) > _STEP_CHARACTERS and text.startswith(b"["):
        return [decode_in_steps(bytes(inner)) for inner in _decode_items(text)]
    if len(text) > _STEP_CHARACTERS and text.startswith(b"{"):
        return {name: decode_in_steps(bytes(inner)) for name, inner in _decode_fields(text).items()}
    return decode(text)


def decode(text: bytes | str) -> Any:
    """Decode JSON that this server encoded; a number that no float can hold is a decimal again."""
    try:
        return _decode(text)
    except msgspec.ValidationError:
        return json.loads(text, parse_float=_number)


def _number(text: str) -> float | Decimal:
    """Decode a number; one that no float can hold becomes a decimal, because arguments must not change."""
    number = float(text)  # 1e999 is infinite as a float
    try:
        return number if math.isfinite(number) else Decimal(text)
    except InvalidOperation:
        raise ValueError("a number is out of any range") from None


def _decode_with_decimals(body: bytes) -> Any:
    # Python's decoder accepts NaN and Infinity, which are no JSON.
    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(body, parse_float=_number, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None


def _decode_leniently(data: bytes, mistake: str = "The upstream sent an event that is not JSON") -> Any:
    if len(data) > _MAX_LENIENT_BYTES:
        raise InvalidUpstreamAnswer(f"{mistake}: {excerpt(data)}")
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_float=_number)
    except (ValueError, RecursionError):
        raise InvalidUpstreamAnswer(f"{mistake}: {excerpt(data)}") from None


def excerpt(data: bytes, length: int = 120) -> str:
    """Return the beginning of some bytes, printable on one line."""
    text = data[:length].decode("utf-8", "replace")
    return repr(text) + ("…" if len(data) > length else "")


def _refuse_repeated_keys(body: bytes) -> None:
    """Raise InvalidRequest if a key occurs twice in one object; this takes a slow second decode."""

    def check_pairs(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add returns None
            raise InvalidRequest(f"The key {twice!r} occurs twice in one object.", param=twice, code="invalid_json")

    json.loads(body, object_pairs_hook=check_pairs)
