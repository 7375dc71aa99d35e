"""Answers that are no answers: blanks, HTML, an endless line, brackets, lone surrogates, enormous numbers, errors."""

from tests.laws.gateway import Gateway, Served

VARIANTS = ("blank", "html", "line", "brackets", "surrogates", "number", "error", "newlines", "returns", "braces")
BODIES = {
    "blank": b" " * 8_000_000,
    "html": b"<html>" + b"<p>" * 1_000_000,
    "line": b"data: " + b"x" * 15_000_000,
    "brackets": b"[" * 8_000_000,
    "surrogates": b'{"choices":[{"message":{"content":"' + b"\\ud800" * 1_300_000 + b'"}}]}',
    "number": b'{"choices":[{"message":{"content":' + b"9" * 8_000_000 + b"}}]}",
    "error": b'{"error":{"message":"' + b"x" * 8_000_000 + b'"}}',
    "newlines": b"\n" * 2_000_000,
    "returns": b"\r\n\r" * 1_000_000,
    "braces": b"{}" * 4_000_000,
}


async def play(gateway: Gateway, kind: str) -> None:
    status = 500 if kind == "error" else 200
    for upstream in ("openai_chat", "ollama"):
        for stream in (False, True):
            content_type = "application/json" if not stream else "text/event-stream"
            gateway.play(
                Served(
                    (BODIES[kind][start : start + 65_536] for start in range(0, len(BODIES[kind]), 65_536)),
                    content_type,
                    status,
                )
            )
            await gateway.ask(upstream, upstream, stream=stream)
