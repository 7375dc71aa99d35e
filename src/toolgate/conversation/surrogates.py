"""Text that comes in pieces, cut between the two halves of a surrogate pair."""

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


class SurrogateJoiner:
    """Joins halves of surrogate pairs across the pieces of a text; a half that stays alone becomes U+FFFD."""

    __slots__ = ("_half",)

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """The text behind a half that was kept, without one that is kept now."""
        if not self._half and (text.isascii() or _SURROGATE.search(text) is None):
            return text
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def end(self) -> str:
        """What a kept half comes to when nothing follows."""
        half, self._half = self._half, ""
        return "\ufffd" if half else ""
