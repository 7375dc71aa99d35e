"""Plain text between marks that are no part of it."""

from toolgate.text.reading import Reading
from toolgate.text.source import Steps, words


def between(reading: Reading, close: str) -> Steps[None]:
    """Reads text up to the closing mark; a line break on both its sides is layout."""
    reading.drop()
    reading.source.held = None
    framing = yield from reading.source.one_of("\r\n", "\n")
    stop = yield from reading.source.until(words(framing + close, close), reading.text)
    reading.source.take(len(stop))
    reading.fresh = True  # blanks behind the mark are layout
