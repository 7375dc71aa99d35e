"""Requests that were right before a few bytes of them changed."""

import random

from tests.laws.vocabulary import BODIES, METHODS, PATHS, mutated, request


def make(rng: random.Random) -> bytes:
    """Return a request with random changes."""
    body = rng.choice(BODIES) if rng.random() < 0.6 else None
    return mutated(rng, request(rng.choice(METHODS), rng.choice(PATHS), body=body, key=rng.random() < 0.7))
