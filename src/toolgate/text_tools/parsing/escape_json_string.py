"""Quote and escape text as JSON strings do."""

from json.encoder import encode_basestring as _encode


def quoted(text: str) -> str:
    """Return the text as a JSON string; nothing but what must be is escaped."""
    return _encode(text)


def escaped(text: str) -> str:
    """Return the text as it stands between the quotes of a JSON string."""
    return _encode(text)[1:-1]
