"""Answers that are no answers: blanks, HTML, endless lines, brackets, lone surrogates, enormous numbers, errors."""

from tests.laws.gateway import Gateway, Served, size
from toolgate.upstreams.transport.limits import ResponseSizeLimits

WHOLE = ResponseSizeLimits().whole - 100  # bytes beside the hostile ones

BODIES = {
    "blank": b" " * size(3_000_000, WHOLE),
    "html": b"<html>" + b"<p>" * size(300_000, WHOLE // 3),
    "line": b"data: " + b"x" * size(5_000_000, WHOLE),
    "brackets": b"[" * size(3_000_000, WHOLE),
    "surrogates": b'{"choices":[{"message":{"content":"' + b"\\ud800" * size(400_000, WHOLE // 6) + b'"}}]}',
    "number": b'{"choices":[{"message":{"content":' + b"9" * size(3_000_000, WHOLE) + b"}}]}",
    "error": b'{"error":{"message":"' + b"x" * size(3_000_000, WHOLE) + b'"}}',
    "newlines": b"\n" * size(600_000, WHOLE),
    "returns": b"\r\n\r" * size(300_000, WHOLE // 3),
    "braces": b"{}" * size(1_000_000, WHOLE // 2),
    "glued": b'{"x":[' + b"0," * size(4_000_000, WHOLE // 2 - 10) + b"0]}{}",
    "lines": b"data:\n" * (WHOLE // 6),
}
VARIANTS = tuple(BODIES)


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
