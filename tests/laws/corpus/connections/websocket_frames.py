"""Frames on an open WebSocket: fragments, control frames, wrong lengths, codes and texts."""

import random

from tests.laws.vocabulary import frame, request

FIELDS = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
HANDSHAKE = request(b"GET", b"/v1/responses", *FIELDS)


COST = 4  # times as much as a case of others


def make(rng: random.Random) -> list[bytes]:
    """Return the handshake, and frames that come once it was answered."""
    frames = b"".join(frame(rng) for _ in range(rng.choice((0, 1, 2, 5, 30))))
    return [HANDSHAKE, frames[: rng.randint(0, len(frames))] if rng.random() < 0.2 else frames]
