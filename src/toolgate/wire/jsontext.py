"""JSON from outside, read so that nothing surprising gets in, and JSON for outside, written so that anything gets out."""

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from toolgate.conversation.arguments import Pairing, without_halves
from toolgate.conversation.errors import Garbled, InvalidRequest

MAX_KEYS = 100_000
MAX_VALUES = 150_000
MAX_LONG_DIGITS = 50_000
"""In numbers of more than 32 digits altogether: reading and writing one takes the square of its length."""

_UNCHECKED_BYTES = 64 * 1024  # too few for any of these limits
_SLICE_BYTES = 64 * 1024
_MAX_LENIENT_BYTES = 1024 * 1024  # of broken JSON, for which the slower decoder is tried
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{33,}")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def decode_body(body: bytes, on_halves: Callable[[], None] | None = None) -> Any:
    """A client's JSON; InvalidRequest says where it breaks.

    An escaped half of a surrogate pair becomes U+FFFD, and `on_halves` is called: clients that cut text between the two
    halves of a character would otherwise be refused at every turn from there on.
    """
    keys = check_structure(body) if len(body) > _UNCHECKED_BYTES else None
    try:
        value = _decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid UTF-8 at byte {error.start}.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError:
        value = _decode_enormous(body)
    except msgspec.MsgspecError as error:
        mended = _without_escaped_halves(body)
        if mended is None:
            raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
        value = decode_body(mended)
        if on_halves is not None:
            on_halves()
        return value
    if _may_repeat_keys(body, value) if keys is None else _count_keys(value) != keys:
        _refuse_repeated_keys(body)
    return value


def _may_repeat_keys(body: bytes, value: Any) -> bool:
    """Return whether a key of a small body may stand twice in one object.

    It is written once, so that a colon is missing, unless one that was escaped comes instead.
    """
    return _encode(value).count(b":") != body.count(b":") or (b"\\" in body and b"\\u003a" in body.lower())


def _count_keys(value: Any) -> int:
    """Count the keys of all objects, in steps between which another thread may run."""
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
    """Refuse JSON of which one decode would take too long, and return how many keys there are.

    What a byte costs depends on what it begins, so size alone bounds nothing. Whatever is valid JSON up to some place is
    counted right up to there, and behind it no decoder goes.
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
    """Yield what stands outside of strings, and the number of quotation marks, slice by slice."""
    inside, rest = 0, b""
    for start in range(0, len(body), _SLICE_BYTES):
        piece = rest + body[start : start + _SLICE_BYTES]
        cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2  # an escape is not cut in two
        piece, rest = (piece[:-1], b"\\") if cut else (piece, b"")
        pieces = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(pieces[inside::2]), len(pieces) - 1
        inside ^= (len(pieces) - 1) & 1


def _without_escaped_halves(body: bytes) -> bytes | None:
    """The body with escaped halves of surrogate pairs replaced, slice by slice; None if it holds none."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return None
    try:
        text, pairing = body.decode(), Pairing()
    except UnicodeDecodeError:
        return None
    starts = range(0, len(text), _SLICE_BYTES)
    mended = "".join([pairing.feed(text[start : start + _SLICE_BYTES]) for start in starts]) + pairing.end()
    return mended.encode() if mended != text else None


def decode_event(data: bytes) -> Any:
    """An upstream's JSON; a half of a surrogate pair or an enormous number is let through, garbage is not."""
    if len(data) > _UNCHECKED_BYTES:
        _check_answer(data)
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data)


def decode_whole(data: bytes) -> tuple[Any, bytes | None]:
    """An upstream's whole answer, and its bytes if they are fit to be passed on just as they came."""
    if len(data) > _UNCHECKED_BYTES:
        _check_answer(data)
    try:
        return _decode(data), data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data), None


def _check_answer(data: bytes) -> None:
    try:
        check_structure(data)
    except InvalidRequest as error:
        raise Garbled(f"The upstream sent JSON that is too much to read. {error.message}") from None


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which UTF-8 cannot carry, becomes U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(without_halves(value))


def _number(text: str) -> float | Decimal:
    """A number as it is written: one that no float holds stays a decimal, for arguments must not change on the way."""
    number = float(text)
    try:
        return number if math.isfinite(number) else Decimal(text)
    except InvalidOperation:
        raise ValueError("a number is out of any range") from None


def _decode_enormous(body: bytes) -> Any:
    """A client's JSON with a number in it that no float holds."""
    try:
        return json.loads(body, parse_float=_number, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _decode_leniently(data: bytes) -> Any:
    if len(data) > _MAX_LENIENT_BYTES:
        raise Garbled(f"The upstream sent an event that is not JSON: {excerpt(data)}")
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_float=_number)
    except (ValueError, RecursionError):
        raise Garbled(f"The upstream sent an event that is not JSON: {excerpt(data)}") from None


def excerpt(data: bytes, length: int = 120) -> str:
    """The beginning of some bytes, printable on one line."""
    text = data[:length].decode("utf-8", "replace")
    return repr(text) + ("…" if len(data) > length else "")


def _refuse_repeated_keys(body: bytes) -> None:
    """Only a body whose colons do not all come back when it is written anew comes here: a key may be said twice."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add returns None
            raise InvalidRequest(f"The key {twice!r} stands twice in one object.", param=twice, code="invalid_json")

    json.loads(body, object_pairs_hook=unique)
