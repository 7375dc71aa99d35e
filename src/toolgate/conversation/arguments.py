"""The arguments of a call as JSON text: what upstreams write around it, and what it means.

The text itself is never re-written: numbers beyond 2^53, key order and spelling reach the tool as the model wrote them.
"""

import json
from typing import Any

import msgspec

NO_ARGUMENTS = "{}"
_encode = msgspec.json.Encoder(decimal_format="number").encode


def is_object(text: str) -> bool:
    """Whether the text is one complete JSON object."""
    if not text.startswith("{") or not text.endswith("}"):
        return False
    try:
        return type(msgspec.json.decode(text)) is dict
    except msgspec.ValidationError:
        return _is_well_formed(text)  # it holds a number no machine type holds, and the rest was not looked at
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _is_well_formed(text: str) -> bool:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def settled(text: str) -> str:
    """The arguments without the blanks, the second quoting or the leading `{}` that some upstreams add."""
    text = text.strip()
    if not text:
        return NO_ARGUMENTS
    if text.startswith('"'):
        return _unquoted(text)
    if text.startswith("{}") and is_object(rest := text[2:].lstrip()):
        return rest
    return text


def _unquoted(text: str) -> str:
    try:
        inner = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
    return inner.strip() if type(inner) is str and is_object(inner.strip()) else text


def as_text(value: Any) -> str:
    """Arguments as an upstream or client gave them, be it text or an object, as JSON text."""
    if value is None:
        return ""
    return value if type(value) is str else _encode(value).decode()


def as_object(text: str) -> msgspec.Raw | dict[str, str]:
    """Arguments as a JSON object, spelled exactly as they are.

    Text that is no object is kept under one telling key: it is neither lost nor mistaken for an empty call.
    """
    settled_text = settled(text)
    if is_object(settled_text):
        return msgspec.Raw(settled_text.encode())
    return {"INVALID_JSON": text}
