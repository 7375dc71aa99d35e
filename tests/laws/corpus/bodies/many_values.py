"""Ten megabytes of small values in a field that nobody knows: objects, lists, numbers, strings, escapes, long numbers."""

from tests.laws.gateway import PATHS, Gateway

VALUES = {
    "objects": b'{"a":{}},',
    "spaced": b'{"a" : {}},',
    "lists": b"[],",
    "numbers": b"1.5,",
    "strings": b'"a",',
    "escapes": b'"\\u0041\\n",',
    "surrogates": b'"\\ud83d\\ude00",',
    "digits": b"9" * 3_000 + b",",
    "deep": b"[[[[[[[[]]]]]]]],",
}
VARIANTS = tuple(VALUES)


async def play(gateway: Gateway, kind: str) -> None:
    piece = VALUES[kind]
    more = b'"metadata":{"x":[' + piece * (10_000_000 // len(piece)) + b"0]},"
    body = b"{" + more + b'"model":"openai_chat","messages":[{"role":"user","content":"Hi"}]}'
    assert (await gateway.post(PATHS["openai_chat"], body)).status in (200, 400, 413)
