"""Where bodies end: lengths that are wrong, chunks that are broken, trailers, 100-continue, bodies where none belong."""

import random

from tests.laws.vocabulary import AUTHORIZED, BODIES, HOST, JSON, METHODS, PATHS, chunked


def make(rng: random.Random) -> bytes:
    """Return a request with a body, and perhaps another behind it."""
    sent = b""
    for _ in range(rng.choice((1, 1, 2, 3))):
        body = rng.choice(BODIES)
        lines = [
            rng.choice(METHODS) + b" " + rng.choice(PATHS) + b" HTTP/1." + rng.choice((b"1", b"1", b"1", b"0")),
            HOST,
            JSON,
        ]
        lines += [AUTHORIZED] if rng.random() < 0.7 else []
        lines += [b"Expect: 100-continue"] if rng.random() < 0.3 else []
        lines += (
            [rng.choice((b"Connection: close", b"Connection: Upgrade\r\nUpgrade: websocket"))]
            if rng.random() < 0.2
            else []
        )
        if rng.random() < 0.5:
            lines += [b"Transfer-Encoding: chunked"]
            body = chunked(rng, body)
        else:
            lines += [b"Content-Length: %d" % max(0, len(body) + rng.choice((0, 0, 0, 1, -1, 1000)))]
        sent += b"\r\n".join([*lines, b"", b""]) + body
    return sent
