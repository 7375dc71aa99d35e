"""Answers of an HTTP service whose tool was registered: text, rows, parts, deep lists, pictures, HTML, bad characters."""

import json

from tests.laws.gateway import Gateway, Served, call_answer, chat_answer

MOST = 2_000_000
ANSWERS = {
    "text": Served(json.dumps({"content": "word " * (MOST // 5)}).encode()),
    "escapes": Served(b'{"content":"' + b"\\u0001" * (MOST // 6) + b'"}'),
    "rows": Served(json.dumps([{"n": number} for number in range(70_000)]).encode()),
    "parts": Served(json.dumps({"content": [{"type": "text", "text": "x"}] * 30_000}).encode()),
    "nested": Served(b"[" * 100_000 + b"]" * 100_000),
    "picture": Served(
        json.dumps({"content": [{"type": "image", "data": "A" * MOST, "mime_type": "image/png"}]}).encode()
    ),
    "tokens": Served(json.dumps({"content": "eyJ-" * (MOST // 4)}).encode()),
    "html": Served(b"<" * MOST, "text/html"),
    "garbled": Served(b"\xff" * MOST, "text/plain"),
    "failure": Served(b"x" * MOST, "text/plain", 500),
}
VARIANTS = tuple(ANSWERS)


async def play(gateway: Gateway, kind: str) -> None:
    tool = {"type": "http", "name": "service", "description": "A service.", "url": f"{gateway.upstream.url}/hook"}
    registered = await gateway.post("/v1/tools", tool)
    assert registered.status == 201, registered.body
    try:
        gateway.play(call_answer("service", {}), ANSWERS[kind], chat_answer())
        assert b"Done." in (await gateway.ask_with_tools()).body
    finally:
        await gateway.request("DELETE", "/v1/tools/service")
