"""Decode untrusted JSON within limits, and encode any value as JSON.

A client's JSON is decoded strictly: repeated keys and invalid UTF-8 are rejected. An upstream's is decoded leniently.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer
from toolgate.conversation.surrogates import JsonSurrogateRepair, repair_surrogates

MAX_KEYS = 100_000
MAX_VALUES = 150_000
MAX_LONG_DIGITS = 50_000
"""Digits of all numbers that have more than 32: the time to decode or encode one grows with the square of its length."""

_UNCHECKED_BYTES = 64 * 1024  # too few for any of these limits
_SLICE_BYTES = 64 * 1024
_MAX_LENIENT_BYTES = 1024 * 1024  # of invalid JSON for which the slower, lenient decoder is tried
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{33,}")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def decode_body(body: bytes, on_lone_surrogate: Callable[[], None] | None = None) -> Any:
    """Decode a client's JSON; raise InvalidRequest with the place of the error.

    An escaped lone surrogate becomes U+FFFD, and `on_lone_surrogate` is called: a client that cut text inside a character
    would otherwise be rejected in every later turn of its conversation.
    """
    keys = check_structure(body) if len(body) > _UNCHECKED_BYTES else None
    try:
        value = _decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid UTF-8 at byte {error.start}.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError:  # a number that no float can hold
        value = _decode_with_decimals(body)
    except msgspec.MsgspecError as error:
        repaired = _repair_escapes(body)
        if repaired is None:
            raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
        value = decode_body(repaired)
        if on_lone_surrogate is not None:
            on_lone_surrogate()
        return value
    if keys is not None:
        if _count_keys(value) != keys:
            _refuse_repeated_keys(body)
    # A repeated key is encoded once, so a colon is missing, unless an escaped colon appears in its place.
    elif _encode(value).count(b":") != body.count(b":") or (b"\\" in body and b"\\u003a" in body.lower()):
        _refuse_repeated_keys(body)
    return value


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


def check_structure(body: bytes) -> int:
    """Reject JSON that would take too long to decode, and return how many keys it has.

    Size alone bounds nothing, since the cost of a byte depends on what it begins. The counts are exact up to the first
    syntax error, and no decoder reads behind that.
    """
    keys = values = strings = digits = 0
    for outside, quotes in _outside_strings(body):
        keys += outside.count(b":")
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        strings += quotes
        digits += sum(map(len, _LONG_NUMBER.findall(outside)))
        if keys > MAX_KEYS:
            raise InvalidRequest(f"The body holds more than {MAX_KEYS} keys.", code="invalid_json")
        if values > MAX_VALUES or strings > 2 * (MAX_KEYS + MAX_VALUES):
            raise InvalidRequest(f"The body holds more than {MAX_VALUES} values.", code="invalid_json")
        if digits > MAX_LONG_DIGITS:
            raise InvalidRequest("The body holds too many long numbers.", code="invalid_json")
    return keys


def _outside_strings(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the text outside of strings and the number of quotation marks, slice by slice."""
    inside, rest = 0, b""
    for start in range(0, len(body), _SLICE_BYTES):
        chunk = rest + body[start : start + _SLICE_BYTES]
        cut = (len(chunk) - len(chunk.rstrip(b"\\"))) % 2  # an escape is not cut in two
        chunk, rest = (chunk[:-1], b"\\") if cut else (chunk, b"")
        between_quotes = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(between_quotes[inside::2]), len(between_quotes) - 1
        inside ^= (len(between_quotes) - 1) & 1


def _repair_escapes(body: bytes) -> bytes | None:
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
    """Decode an upstream's JSON; lone surrogates and numbers beyond a float are accepted, other errors are not."""
    if len(data) > _UNCHECKED_BYTES:
        _check_response(data)
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data)


def decode_response_body(data: bytes) -> tuple[Any, bytes | None]:
    """Decode an upstream's whole answer; return its bytes too if they are valid and can be relayed unchanged."""
    if len(data) > _UNCHECKED_BYTES:
        _check_response(data)
    try:
        return _decode(data), data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data), None


def _check_response(data: bytes) -> None:
    try:
        check_structure(data)
    except InvalidRequest as error:
        raise InvalidUpstreamAnswer(f"The upstream sent JSON that is too much to read. {error.message}") from None


def encode(value: Any) -> bytes:
    """Encode compact JSON in UTF-8; a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(repair_surrogates(value))


def decode(text: bytes | str) -> Any:
    """Decode JSON that this server encoded; a number that no float can hold is a decimal again."""
    try:
        return _decode(text)
    except msgspec.ValidationError:
        return json.loads(text, parse_float=_number)


def _number(text: str) -> float | Decimal:
    """Decode a number; one that no float can hold becomes a decimal, because arguments must not change."""
    number = float(text)
    try:
        return number if math.isfinite(number) else Decimal(text)
    except InvalidOperation:
        raise ValueError("a number is out of any range") from None


def _decode_with_decimals(body: bytes) -> Any:
    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    try:
        return json.loads(body, parse_float=_number, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None


def _decode_leniently(data: bytes) -> Any:
    if len(data) > _MAX_LENIENT_BYTES:
        raise InvalidUpstreamAnswer(f"The upstream sent an event that is not JSON: {excerpt(data)}")
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_float=_number)
    except (ValueError, RecursionError):
        raise InvalidUpstreamAnswer(f"The upstream sent an event that is not JSON: {excerpt(data)}") from None


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
