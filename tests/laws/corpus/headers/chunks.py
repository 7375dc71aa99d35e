"""A body of two hundred thousand chunks of one byte, with extensions, and one with endless trailers."""

from tests.laws.gateway import KEY, Gateway

VARIANTS = ("chunks", "extensions", "trailers")


async def play(gateway: Gateway, kind: str) -> None:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nconnection: close\r\nauthorization: Bearer %s\r\n"
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" % (gateway.port, KEY.encode())
    )
    body = {
        "chunks": b"1\r\nx\r\n" * 200_000 + b"0\r\n\r\n",
        "extensions": b"1;a=b\r\nx\r\n" * 200_000 + b"0\r\n\r\n",
        "trailers": b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    }
    await gateway.send(head + body[kind])
