"""As many keys, lists, objects and numbers as a body may hold, all passed on to the upstream."""

from tests.laws.gateway import Gateway

SHAPES = {
    "keys": b"{" + b",".join([b'"%d":1' % number for number in range(99_000)]) + b"}",
    "objects": b"[" + b",".join([b'{"%d":[]}' % number for number in range(48_000)]) + b"]",
    "nested": b"[" + b",".join([b"[" * 510 + b"]" * 510] * 290) + b"]",
    "enormous": b"[" + b",".join([b"1e999"] * 145_000) + b"]",
    "colons": b"[" + b",".join([b'{"\\u003a":1}'] * 49_000) + b"]",
}
VARIANTS = tuple(SHAPES)


async def play(gateway: Gateway, shape: str) -> None:
    messages = b'"messages":[{"role":"user","content":"Hi"}]'
    body = b'{"model":"openai_chat",' + messages + b',"x":' + SHAPES[shape] + b"}"
    assert (await gateway.post("/v1/chat/completions", body)).status == 200
