"""Characters inside JSON strings."""

from json.encoder import encode_basestring as _quoted


def quoted(text: str) -> str:
    """The text as a JSON string; nothing but what must be is escaped."""
    return _quoted(text)


def escaped(text: str) -> str:
    """The text as it stands between the quotes of a JSON string."""
    return _quoted(text)[1:-1]
