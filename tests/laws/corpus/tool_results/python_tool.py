"""Results of a Python tool: megabytes of text, of tokens to redact, of rows, and deeply nested lists."""

from tests.laws.gateway import Gateway

VARIANTS = ("text", "tokens", "mixed", "rows", "numbers", "nested", "lines")
TEXTS = {"text": "word ", "tokens": "eyJ-", "mixed": "password=sk-abc Bearer eyJhbGciOi.eyJ ", "lines": "\n"}


async def play(gateway: Gateway, kind: str) -> None:
    if kind in TEXTS:
        text = TEXTS[kind]
        response = await gateway.run_tool("repeat", text=text, count=8_000_000 // len(text))
    else:
        response = await gateway.run_tool("structure", kind=kind, count=500 if kind == "nested" else 200_000)
    assert response.status == 200
