"""Bodies that are nested one level too deep, behind and between as much as a body may hold."""

from tests.laws.gateway import Gateway

DEEP = b"[" * 512 + b"]" * 512
SHALLOW = b",".join([b"[" * 500 + b"]" * 500] * 290)
BODIES = {
    "small": b'{"x":' + DEEP + b"}",
    "small and dense": b'{"x":[' + b",".join([b"[[]]"] * 12_000) + b'],"y":' + DEEP + b"}",
    "behind much text": b'{"x":"' + b"x" * 9_000_000 + b'","y":' + DEEP + b"}",
    "behind brackets in strings": b'{"x":"' + b"[{" * 4_000_000 + b'","y":' + DEEP + b"}",
    "behind many lists": b'{"x":[' + SHALLOW + b'],"y":' + DEEP + b"}",
    "never closed": b"[" * 60_000,
}
VARIANTS = tuple(BODIES)


async def play(gateway: Gateway, shape: str) -> None:
    answer = await gateway.post("/v1/chat/completions", BODIES[shape])
    assert answer.status == 400
    assert b"512 levels" in answer.body
