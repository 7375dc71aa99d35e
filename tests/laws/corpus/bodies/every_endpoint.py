"""Megabytes of text and of small values for every endpoint that takes a body."""

from tests.laws.gateway import Gateway, size

VARIANTS = (
    "/v1/chat/completions",
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
    "/v1/keys",
    "/v1/keys/k_1",
    "/v1/keys/k_1/rotate",
    "/api/chat",
    "/api/generate",
    "/api/show",
    "/mcp",
)
FIELDS = ("input", "messages", "items", "prompt", "model", "name", "metadata", "ids", "params")


async def play(gateway: Gateway, path: str) -> None:
    text = b"x" * size(3_000_000, 9_000_000)
    await gateway.post(path, b'{"model":"openai_chat","input":"%s","prompt":"%s"}' % (text[::2], text[::2]))
    lists = b",".join(b'"%s":[%s0]' % (field.encode(), b'{"a":[]},' * size(30_000, 110_000)) for field in FIELDS)
    await gateway.post(path, b"{" + lists + b"}")
