"""A stream of thousands of deltas of one character, sent at once."""

from tests.laws.answers import PAIRS, streamed
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    gateway.play(streamed(upstream, Text("x"), times=size(8_000, 100_000)))
    assert (await gateway.ask(client, upstream, stream=True)).status == 200
