"""Calls of server tools with megabytes of arguments, also broken ones and those that a person is asked about."""

from tests.laws.gateway import Gateway, call_answer, chat_answer

VARIANTS = ("text", "rows", "broken", "asked", "unknown")


async def play(gateway: Gateway, kind: str) -> None:
    arguments: object = {
        "text": {"text": "x" * 4_000_000},
        "rows": {"text": "x", "rows": [{"a": 1}] * 200_000},
        "broken": '{"text": "' + "\\" * 1_500_000,
        "asked": {"text": "x" * 4_000_000},
        "unknown": {"text": "x" * 4_000_000},
    }[kind]
    name = {"asked": "harmful", "unknown": "absent"}.get(kind, "repeat")
    gateway.play(call_answer(name, arguments), chat_answer())
    response = await gateway.ask("openai_responses", "openai_chat", tool_execution="auto", use_server_tools=True)
    assert response.status in (200, 400, 502)
    if kind == "asked":
        await gateway.get("/v1/approvals?limit=100")
        await gateway.post("/v1/approvals/deny_all", {})
