"""A value that log lines, tracebacks and messages cannot show by accident."""

import hmac


class Secret:
    """Text that only `reveal` returns."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    @property
    def hint(self) -> str:
        """Return the last four characters of a long secret, nothing of a short one, to distinguish secrets."""
        return f"…{self._text[-4:]}" if len(self._text) >= 16 else "…"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # A comparison that stops at the first difference would show by its time how much of a key was guessed.
        # Surrogates, from bytes in the environment that are no UTF-8, cannot be encoded otherwise.
        return hmac.compare_digest(self._text.encode("utf-8", "replace"), other._text.encode("utf-8", "replace"))

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    # Pickle, and encoders that build on it, would carry the text on.
    def __reduce__(self) -> str:
        raise TypeError("a Secret cannot be serialized")
