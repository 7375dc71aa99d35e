"""A whole answer with five thousand tool calls."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway
from toolgate.conversation.message import ToolCall

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    calls = [ToolCall(f"call_{number}", "look", '{"at": 1}') for number in range(5_000)]
    gateway.play(whole(upstream, *calls))
    await gateway.ask(client, upstream)
