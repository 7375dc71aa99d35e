"""Requests sent ahead of their turn, right ones and broken ones in any order."""

import random

from tests.laws.vocabulary import BODIES, METHODS, PATHS, head, mutated, request


def make(rng: random.Random) -> bytes:
    """Return several requests."""
    sent = b""
    for _ in range(rng.choice((2, 3, 5, 40))):
        body = rng.choice(BODIES) if rng.random() < 0.5 else None
        one = request(rng.choice(METHODS), rng.choice(PATHS), body=body, key=rng.random() < 0.5)
        match rng.randrange(10):
            case 0:
                one = mutated(rng, one)
            case 1:
                one = head(rng, 0.5) + b"\r\n"
        sent += one
    return sent
