"""Patterns of tools that are slow to compile, in a body, in a header and in the query of a list."""

from tests.laws.gateway import Gateway

VARIANTS = ("at the limit", "beyond", "header", "query")


async def play(gateway: Gateway, kind: str) -> None:
    if kind == "query":
        assert (await gateway.get("/v1/tools?name=" + "*a" * 128)).status == 200
        assert (await gateway.get("/v1/tools?name=" + "*a" * 3_500)).status == 400
        return
    patterns = [f"{number:03}" + "*a" * 126 for number in range(8 if kind == "at the limit" else 128)]
    header = f"x-toolgate-tools: {','.join(patterns[:28])}" if kind == "header" else "x-none: 1"
    body = {"model": "openai_chat", "messages": [{"role": "user", "content": "Hi"}], "tool_execution": "auto"}
    answer = await gateway.post(
        "/v1/chat/completions", body if kind == "header" else {**body, "use_server_tools": patterns}, header
    )
    assert answer.status == (200 if kind == "at the limit" else 400), answer.body
