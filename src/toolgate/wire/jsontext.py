"""JSON from outside, read so that nothing surprising gets in, and JSON for outside, written so that anything gets out."""

import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from toolgate.conversation.errors import Garbled, InvalidRequest

MAX_KEYS = 100_000
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def decode_body(body: bytes) -> Any:
    """A client's JSON; InvalidRequest says where it breaks."""
    colons = body.count(b":")
    if colons > MAX_KEYS and body.count(b'":') - body.count(b'\\":') > MAX_KEYS:
        raise InvalidRequest(f"The body holds more than {MAX_KEYS} keys.", code="invalid_json")
    try:
        value = _decode(body)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The body is not valid UTF-8 at byte {error.start}.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.", code="invalid_json") from None
    except msgspec.ValidationError:
        value = _decode_enormous(body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    # A key that is said twice is written once, so that a colon is missing, unless one that was escaped comes instead.
    if _encode(value).count(b":") != colons or (b"\\" in body and b"\\u003a" in body.lower()):
        _refuse_repeated_keys(body)
    return value


def decode_event(data: bytes) -> Any:
    """An upstream's JSON; a half of a surrogate pair or an enormous number is let through, garbage is not."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data)


def decode_whole(data: bytes) -> tuple[Any, bytes | None]:
    """An upstream's whole answer, and its bytes if they are fit to be passed on just as they came."""
    try:
        return _decode(data), data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(data), None


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which UTF-8 cannot carry, becomes U+FFFD."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_paired(value))


def _paired(value: Any) -> Any:
    """The value without halves of surrogate pairs."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_paired(key): _paired(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_paired(inner) for inner in value]
        case _:
            return value


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
