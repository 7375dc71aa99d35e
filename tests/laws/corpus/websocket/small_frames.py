"""Three hundred thousand small frames on one WebSocket: empty texts, pings, pongs, continuations."""

from tests.laws.gateway import Gateway, frame

FRAMES = {
    "empty": frame(1),
    "tiny": frame(1, b"{}"),
    "pings": frame(9),
    "pongs": frame(10),
    "fragments": frame(1, b"x", final=False),
    "continuations": frame(0, b"", final=False),
}
VARIANTS = tuple(FRAMES)


async def play(gateway: Gateway, kind: str) -> None:
    piece = FRAMES[kind] * 10_000
    start = [frame(1, b"{", final=False)] if kind == "continuations" else []
    reason = b"expected a continuation frame" if kind == "fragments" else b"Too many small frames."
    assert reason in await gateway.websocket([*start, *[piece] * 30])
