"""A stream with two thousand tool calls in one read."""

from tests.laws.answers import PAIRS, streamed
from tests.laws.gateway import Gateway
from toolgate.conversation.message import ToolCall

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    calls = [ToolCall(f"call_{number}", "look", '{"at": 1}') for number in range(2_000)]
    gateway.play(streamed(upstream, *calls))
    await gateway.ask(client, upstream, stream=True)
