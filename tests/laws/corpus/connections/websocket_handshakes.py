"""Handshakes that lack something, have it twice, or lead nowhere."""

import random

from tests.laws.vocabulary import HEADERS, PATHS, frame, mutated, request

FIELDS = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


COST = 4  # times as much as a case of others


def make(rng: random.Random) -> bytes:
    """Return a handshake and perhaps frames that do not wait for the answer."""
    fields = [field for field in FIELDS if rng.random() < 0.9]
    fields += rng.choices(HEADERS, k=rng.choice((0, 0, 1, 2)))
    path = b"/v1/responses" if rng.random() < 0.7 else rng.choice(PATHS)
    method = b"GET" if rng.random() < 0.9 else b"POST"
    body = b"{}" if rng.random() < 0.1 else None
    sent = request(method, path, *fields, body=body, key=rng.random() < 0.8)
    sent = mutated(rng, sent, 1) if rng.random() < 0.1 else sent
    return sent + b"".join(frame(rng) for _ in range(rng.choice((0, 0, 1, 3))))
