"""Find stop texts in an answer while it is generated. Pure: knows neither tokens nor the runtime."""


class StopTextFilter:
    """Passes text up to the first stop text; a possible beginning of one is held back."""

    def __init__(self, endings: tuple[str, ...]) -> None:
        self._endings = tuple(filter(None, endings))
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that can be sent now; nothing more after a stop text."""
        if self.found is not None:
            return ""
        text = self._held + text
        places = [(place, ending) for ending in self._endings if (place := text.find(ending)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        # Hold back the longest end of the text that begins a stop text.
        keep = 0
        for ending in self._endings:
            for size in range(min(len(text), len(ending) - 1), keep, -1):
                if text.endswith(ending[:size]):
                    keep = size
                    break
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """Return the text that was held back."""
        rest, self._held = self._held, ""
        return rest
