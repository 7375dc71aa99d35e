"""Heads at and over their limits: many headers, long ones, long targets, long queries, many requests ahead."""

from tests.laws.gateway import Gateway

VARIANTS = ("many", "long", "target", "query", "cookies", "pipelined", "options", "keys")


async def play(gateway: Gateway, kind: str) -> None:
    host = b"host: 127.0.0.1:%d\r\n" % gateway.port
    head = {
        "many": b"GET /healthz HTTP/1.1\r\n" + host + b"a: b\r\n" * 100_000,
        "long": b"GET /healthz HTTP/1.1\r\n" + host + b"a: " + b"b" * 1_000_000,
        "target": b"GET /" + b"a/" * 1_000_000 + b" HTTP/1.1\r\n" + host,
        "query": b"GET /v1/usage?" + b"a=%41&" * 1_300 + b" HTTP/1.1\r\n" + host,
        "cookies": b"GET /healthz HTTP/1.1\r\n" + host + b"cookie: " + b"a=b; " * 6_000,
        "pipelined": (b"GET /healthz HTTP/1.1\r\n" + host + b"\r\n") * 20_000,
        "options": b"OPTIONS /v1/models HTTP/1.1\r\n" + host + b"access-control-request-headers: " + b"a, " * 9_000,
        "keys": b"GET /v1/models HTTP/1.1\r\n" + host + b"authorization: Bearer " + b"k" * 30_000,
    }
    await gateway.send(head[kind] + b"\r\nconnection: close\r\n\r\n")
