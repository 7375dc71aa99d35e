"""Megabytes of text and of small values for every endpoint that takes a body."""

from typing import Any

from tests.laws.gateway import Gateway, size

VARIANTS = (
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/resp_1/cancel",
    "/v1/conversations",
    "/v1/conversations/conv_1",
    "/v1/conversations/conv_1/items",
    "/v1/chat/completions/c_1",
    "/v1/tools",
    "/v1/tools/repeat/accept",
    "/v1/approvals/deny_all",
    "/v1/approvals/reset",
    "/v1/approvals/a_1",
    "/v1/runs/r_1/cancel",
    "/v1/runs/r_1/fork",
    "/v1/keys",
    "/v1/keys/k_1",
    "/v1/keys/k_1/rotate",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/mcp",
)
FIELDS = ("input", "messages", "items", "prompt", "model", "name", "metadata", "ids", "params")
NAMES = [f"name-{number}-*" for number in range(40_000)]
LONG = "x" * 3_000_000
OWN: dict[str, Any] = {
    "/v1/conversations": {"metadata": dict.fromkeys(NAMES, "x")},
    "/v1/responses": {"model": "openai_chat", "input": "x", "metadata": dict.fromkeys(NAMES, "x")},
    "/v1/tools": {
        "type": "http",
        "name": "t",
        "url": "https://x",
        "description": "x",
        "tags": NAMES,
        "when": "a&&" * 9_000,
    },
    "/v1/tools/repeat/accept": {"digest": LONG},
    "/v1/approvals/deny_all": {"reason": LONG, "tool": LONG, "run": LONG},
    "/v1/approvals/a_1": {"decision": "approve", "reason": LONG, "arguments": {name: [] for name in NAMES}},
    "/v1/keys": {"name": "many", "models": NAMES, "tools": NAMES, "blocked_tools": NAMES},
    "/v1/keys/k_1": {"models": NAMES, "tools": NAMES},
    "/v1/keys/k_1/rotate": {"grace_seconds": 10**300},
    "/v1/runs/r_1/fork": {"from": 1, "results": dict.fromkeys(NAMES, "x")},
    "/api/show": {"model": LONG, "name": LONG},
}
"""Bodies of the fields that an endpoint knows; those of models are in files of their own."""


async def play(gateway: Gateway, path: str) -> None:
    text = b"x" * size(3_000_000, 9_000_000)
    await gateway.post(path, b'{"model":"openai_chat","input":"%s","prompt":"%s"}' % (text[::2], text[::2]))
    lists = b",".join(b'"%s":[%s0]' % (field.encode(), b'{"a":[]},' * size(30_000, 110_000)) for field in FIELDS)
    await gateway.post(path, b"{" + lists + b"}")
    if path in OWN:
        await gateway.post(path, OWN[path])
