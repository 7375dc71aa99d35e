"""Headers: repeated, contradicting, overlong, malformed, unfinished."""

import random

from tests.laws.vocabulary import BODIES, ENDS, HEADERS, HOST, head


def make(rng: random.Random) -> bytes:
    """Return a request with random headers."""
    lines = [HOST] if rng.random() < 0.8 else []
    lines += rng.choices(HEADERS, k=rng.choice((1, 2, 3, 5, 8, 120)))
    rng.shuffle(lines)
    end = rng.choice(ENDS) if rng.random() < 0.1 else b"\r\n"
    last = rng.choice((b"", end, end * 2, end * 2))
    return head(rng, 0.05) + end.join(lines) + last + rng.choice(BODIES)
