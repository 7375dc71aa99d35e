"""A whole answer with thousands of tool calls."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import ToolCall

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    calls = [ToolCall(f"call_{number}", "look", '{"at": 1}') for number in range(size(2_000, 5_000))]
    gateway.play(whole(upstream, *calls))
    await gateway.ask(client, upstream)
