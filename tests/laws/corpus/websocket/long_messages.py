"""Messages of nine megabytes on a WebSocket: text, lone surrogates, small values, bad UTF-8, in one frame and in many."""

from tests.laws.gateway import Gateway, frame

TEXTS = {
    "text": b'{"type":"response.create","model":"openai_chat","store":false,"input":"' + b"x" * 9_000_000 + b'"}',
    "surrogates": b'{"type":"response.create","model":"openai_chat","store":false,"input":"'
    + b"\\ud83d" * 1_500_000
    + b'","stream_id":"a"}',
    "values": b'{"type":"response.create","model":"openai_chat","input":[' + b"{}," * 3_000_000 + b"0]}",
    "garbled": b"\xff" * 9_000_000,
    "blank": b" " * 9_000_000,
}
ANSWERS = {
    "text": b"response.completed",
    "surrogates": b"response.completed",
    "values": b"The body holds more than",
    "garbled": b"This text is not UTF-8.",
    "blank": b"The body is not valid JSON",
}
VARIANTS = tuple(f"{kind}-{form}" for kind in TEXTS for form in ("one", "many"))


async def play(gateway: Gateway, variant: str) -> None:
    kind, form = variant.split("-")
    text = TEXTS[kind]
    size = len(text) if form == "one" else 1_000
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    frames = [frame(1 if number == 0 else 0, piece, number == len(pieces) - 1) for number, piece in enumerate(pieces)]
    assert ANSWERS[kind] in await gateway.websocket([b"".join(frames)])
