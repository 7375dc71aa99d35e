"""A value that no log line, traceback or message can show by accident. Knows nothing of where it is used."""

import hmac


class Secret:
    """Text that is seen only by whoever asks for it by name, with `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that needs it."""
        return self._text

    @property
    def hint(self) -> str:
        """Enough to tell two secrets apart: the last four characters of a long one, nothing of a short one."""
        return f"…{self._text[-4:]}" if len(self._text) >= 16 else "…"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode("utf-8", "replace"), other._text.encode("utf-8", "replace"))

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not written down")
