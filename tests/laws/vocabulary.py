"""Pieces of requests, good and bad, from which the files of `corpus/connections/` make what a client sends."""

import json
import random
from typing import Any

METHODS = (b"GET", b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE", b"PATCH", b"CONNECT")
ODD_METHODS = (
    b"PRI",
    b"get",
    b"G3T",
    b"",
    b"GET\0",
    b"M-SEARCH",
    b"QUERY",
    b"PROPFIND",
    b"\xff",
    b"A" * 300,
    b"SOURCE",
)
PATHS = (
    b"/",
    b"/healthz",
    b"/readyz",
    b"/metrics",
    b"/openapi.json",
    b"/v1/models",
    b"/v1/models/played",
    b"/v1/chat/completions",
    b"/v1/chat/completions/chatcmpl-1",
    b"/v1/messages",
    b"/v1/messages/count_tokens",
    b"/v1/responses",
    b"/v1/responses/resp_1",
    b"/v1/responses/resp_1/input_items?limit=x",
    b"/v1/conversations",
    b"/v1/conversations/conv_1/items",
    b"/v1/approvals",
    b"/v1/tools",
    b"/v1/keys",
    b"/v1/usage?from=x",
    b"/api/chat",
    b"/api/generate",
    b"/api/tags",
    b"/api/show",
    b"/mcp",
)
ODD_TARGETS = (
    b"*",
    b"**",
    b"",
    b" ",
    b"healthz",
    b"//",
    b"///v1/models",
    b"/../../etc/passwd",
    b"/%2e%2e/%2f",
    b"/%",
    b"/%zz",
    b"/%00",
    b"/\xc3\xa4",
    b"/a b",
    b"/v1/models?" + b"q=1&" * 200,
    b"/v1/models#top",
    b"?",
    b"/?" + b"%ff" * 50,
    b"http://toolgate.test/healthz",
    b"http://toolgate.test",
    b"http://toolgate.test?x",
    b"http://other.test/",
    b"http://user@toolgate.test/",
    b"http://toolgate.test:80/healthz",
    b"http://toolgate.test:99999/",
    b"http://[::1]/",
    b"http://[::1",
    b"https://toolgate.test/",
    b"ftp://toolgate.test/",
    b"http:/",
    b"http://",
    b"://",
    b"toolgate.test:443",
    b"/" + b"a" * 9000,
    b"/v1/models/" + b"a/" * 2000,
    b"\0",
    b"/\0",
    b"/\x7f",
)
VERSIONS = (b"HTTP/1.1",) * 6 + (b"HTTP/1.0",)
ODD_VERSIONS = (
    b"",
    b"HTTP/0.9",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/3",
    b"HTTP/11.1",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"ICE/1.0",
)
ENDS = (b"\r\n",) * 8 + (b"\n", b"\r", b"\r\r\n", b"\n\n", b"")
HOST = b"Host: toolgate.test"
AUTHORIZED = b"Authorization: Bearer ann-key"
JSON = b"Content-Type: application/json"
HEADERS = (
    HOST,
    b"Host: other.test",
    b"Host:",
    b"Host: a/b",
    b"Host: [::1]:80",
    AUTHORIZED,
    b"Authorization: Bearer wrong",
    b"Authorization: Basic \xff\xfe",
    b"x-api-key: ann-key",
    b"Content-Length: 0",
    b"Content-Length: 2",
    b"Content-Length: 5",
    b"Content-Length: 99999999999",
    b"Content-Length: -1",
    b"Content-Length: 2, 2",
    b"Content-Length: 0x2",
    b"Content-Length: " + b"9" * 40,
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: CHUNKED",
    b"Content-Encoding: gzip",
    b"Content-Encoding: identity",
    JSON,
    b"Content-Type: text/plain",
    b"Content-Type: application/json; charset=utf-16",
    b"Content-Type: \xff",
    b"Expect: 100-continue",
    b"Expect: something",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade",
    b"Connection: upgrade, close, , x",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"Upgrade: TLS/1.3",
    b"HTTP2-Settings: AAMAAABkAAQAAP__",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Version: 8",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"Sec-WebSocket-Key: short",
    b"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.ann-key",
    b"Sec-WebSocket-Protocol: ,,\xff,",
    b"Sec-WebSocket-Extensions: permessage-deflate",
    b"Origin: https://evil.example",
    b"Origin: null",
    b"Access-Control-Request-Method: POST",
    b"Idempotency-Key: \xff",
    b"Accept: text/event-stream",
    b"Range: bytes=0-",
    b"Trailer: x",
    b"TE: trailers",
    b"Proxy-Connection: keep-alive",
    b"X-A: " + b"a" * 5000,
    b"X-A: " + b"a" * 40_000,
    b"X-A: b\0c",
    b"X-A: b\rc",
    b"X-A:\tb",
    b" folded",
    b"\tfolded",
    b": no name",
    b"no colon",
    b"X A: b",
    b"X-A : b",
    b"\xff: b",
    b"",
)
BODIES = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"{",
    b'{"model":"played"}',
    b'{"model":"played","messages":[{"role":"user","content":"Hi"}],"max_tokens":5}',
    b'{"model":"played","messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"stream":true}',
    b'{"model":"played","input":"Hi","store":false}',
    b'{"model":"played","input":"Hi","store":false,"stream":true}',
    b"\xff\xfe",
    b"[" * 5000,
)


def head(rng: random.Random, oddness: float = 0.1) -> bytes:
    """Return a request line with its end."""
    method = rng.choice(ODD_METHODS if rng.random() < oddness else METHODS)
    target = rng.choice(ODD_TARGETS if rng.random() < oddness else PATHS)
    version = rng.choice(ODD_VERSIONS if rng.random() < oddness else VERSIONS)
    end = rng.choice(ENDS) if rng.random() < oddness else b"\r\n"
    return method + b" " + target + b" " + version + end


def request(
    method: bytes, path: bytes, *headers: bytes, body: bytes | None = None, end: bytes = b"\r\n", key: bool = True
) -> bytes:
    """Return a request that is right, with a key and the length of its body."""
    lines = [method + b" " + path + b" HTTP/1.1", HOST, *((AUTHORIZED,) if key else ()), *headers]
    if body is not None:
        lines += [JSON, b"Content-Length: %d" % len(body)]
    return end.join([*lines, b"", b""]) + (body or b"")


def chunked(rng: random.Random, body: bytes, oddness: float = 0.2) -> bytes:
    """Return the body in chunks, some of them wrong."""
    sent = b""
    while body:
        size = rng.randint(1, len(body))
        extension = rng.choice((b"", b"", b"", b";a=b", b';a="\xff"', b";", b" ", b";" + b"a" * 300))
        written = b"%x" % size
        if rng.random() < oddness:
            written = rng.choice(
                (b"%X" % size, b"0%x" % size, b"0x%x" % size, b"-1", b"", b"g", b"f" * 17, b"%x" % (size + 1))
            )
            sent += written + extension + rng.choice(ENDS) + body[:size] + rng.choice(ENDS)
        else:
            sent += written + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    last = rng.choice(
        (b"0\r\n\r\n",) * 4 + (b"", b"0\r\n", b"0\r\nX-T: 1\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"00\n\n")
    )
    return sent + last


def mutated(rng: random.Random, data: bytes, times: int = 4) -> bytes:
    """Return the bytes after a few random changes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, times)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0:
                changed[place:place] = rng.randbytes(rng.randint(1, 4))
            case 1:
                del changed[place : place + rng.randint(1, 8)]
            case 2:
                changed[place : place + 1] = rng.choice((b"\0", b"\r", b"\n", b"\r\n", b" ", b":", b"\xff", b"\t"))
            case 3:
                changed[place:place] = changed[: rng.randint(0, len(changed))]
            case 4:
                del changed[place:]
            case _ if changed:
                place = rng.randrange(len(changed))
                changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


NAMES = (
    "role",
    "content",
    "messages",
    "input",
    "model",
    "tools",
    "type",
    "text",
    "name",
    "function",
    "arguments",
    "id",
)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Return a random value of JSON with names that mean something here."""
    kind = rng.randrange(9 if depth else 6)
    match kind:
        case 0:
            return rng.choice((None, True, False))
        case 1:
            return rng.choice((0, -1, 1e300, 2**70, 0.5, 7))
        case 2 | 3 | 4 | 5:
            return rng.choice(
                (*NAMES, "", "user", "played", "assistant", "tool", "\ud800", "\0", "a" * 300, "function")
            )
        case 6:
            return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(NAMES): value(rng, depth - 1) for _ in range(rng.randrange(5))}


def encoded(content: Any) -> bytes:
    """Return the value as JSON."""
    return json.dumps(content).encode()


def frame(rng: random.Random, oddness: float = 0.1) -> bytes:
    """Return a WebSocket frame as a client writes it, sometimes wrong."""
    opcode = rng.choice((0, 1, 1, 1, 2, 8, 9, 10)) if rng.random() > oddness else rng.randrange(16)
    final = 0x80 if rng.random() < 0.8 else 0
    reserved = rng.choice((0x40, 0x20, 0x10)) if rng.random() < oddness / 2 else 0
    payload = rng.choice(
        (
            b"",
            b"{}",
            b'{"type":"response.create","model":"played","input":"Hi","store":false}',
            b'{"type":"response.create","model":"played","input":[],"stream_id":"a","previous_response_id":"x"}',
            b'{"type":"response.steer","input":[1]}',
            b'{"type":1,"stream_id":{}}',
            b"\x03\xe8",
            b"\x03",
            b"\x00\x00",
            b"\x03\xe8\xff",
            b"\xff",
            b"x" * 125,
            b"x" * 126,
            b"x" * 70_000,
            rng.randbytes(9),
        )
    )
    mask = rng.randbytes(4)
    size = len(payload)
    if rng.random() < oddness / 2:
        size = rng.choice((0, 1, 2**20, 2**40, 2**63, size + 1))
    masked = 0x80 if rng.random() > oddness / 4 else 0
    if size < 126:
        start = bytes((opcode | final | reserved, masked | size))
    elif size < 65536:
        start = bytes((opcode | final | reserved, masked | 126)) + size.to_bytes(2, "big")
    else:
        start = bytes((opcode | final | reserved, masked | 127)) + size.to_bytes(8, "big")
    if not masked:
        return start + payload
    if len(payload) > 500:
        mask = bytes(4)
    return start + mask + bytes([byte ^ mask[place % 4] for place, byte in enumerate(payload)])
