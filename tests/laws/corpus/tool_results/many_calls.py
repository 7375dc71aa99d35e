"""Sixty calls at a time whose results are a quarter of a megabyte each, for Chat and Responses clients."""

from tests.laws.gateway import Gateway, call_answer, chat_answer

VARIANTS = ("openai_chat", "openai_responses")


async def play(gateway: Gateway, client: str) -> None:
    gateway.play(call_answer("repeat", {"text": "ab ", "count": 85_000}, 60), chat_answer())
    response = await gateway.ask(client, "openai_chat", tool_execution="auto", use_server_tools=True)
    assert response.status == 200
