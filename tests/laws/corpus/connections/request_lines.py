"""Request lines: methods, targets, versions and line ends of all kinds, with and without headers."""

import random

from tests.laws.vocabulary import HOST, head


def make(rng: random.Random) -> bytes:
    """Return one request or its beginning."""
    line = head(rng, 0.5)
    return line + rng.choice((b"", b"\r\n", HOST + b"\r\n\r\n", HOST + b"\r\n", HOST + b"\r\n\r\n" + line))
