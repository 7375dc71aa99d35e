"""Finds the texts that end an answer while it is being written. Pure: it knows neither tokens nor the runtime."""


class Stops:
    """Lets text through up to the first of these endings; what may be the beginning of one is held back."""

    def __init__(self, endings: tuple[str, ...]) -> None:
        self._endings = tuple(filter(None, endings))
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """What can be told now; nothing more once an ending was found."""
        if self.found is not None:
            return ""
        text = self._held + text
        places = [(place, ending) for ending in self._endings if (place := text.find(ending)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        keep = max([_overlap(text, ending) for ending in self._endings], default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back in vain."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, ending: str) -> int:
    """How many characters at the end of the text begin the ending."""
    longest = min(len(text), len(ending) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(ending[:size])), 0)
