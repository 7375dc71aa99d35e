"""Clients that speak something else: TLS, HTTP/2, HTTP/0.9, SSH, SMTP, Redis, SOCKS, a proxy's preamble, or noise."""

import random

from tests.laws.vocabulary import mutated

HELLO = bytes.fromhex("160301006a0100006603033f") + bytes(range(32)) + bytes.fromhex("000002c02f0100") + b"\0" * 40
GREETINGS = (
    HELLO,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"),
    b"GET /\r\n",
    b"GET /healthz\r\n\r\n",
    b"GET\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"EHLO example.org\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\x05\x01\x00",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\n\r\n\0\r\nQUIT\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"RTSP/1.0 OPTIONS *\r\n",
    b"\r\n" * 300,
    b"\0" * 300,
    b"",
)


def make(rng: random.Random) -> bytes:
    """Return a greeting, perhaps with random changes, or random bytes."""
    if rng.random() < 0.3:
        return rng.randbytes(rng.choice((1, 5, 50, 500, 40_000)))
    greeting = rng.choice(GREETINGS)
    return mutated(rng, greeting) if rng.random() < 0.5 else greeting
