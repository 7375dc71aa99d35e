"""A stream with one event of megabytes."""

from tests.laws.answers import PAIRS, streamed
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    gateway.play(streamed(upstream, Text("word " * size(600_000, 1_250_000))))
    assert (await gateway.ask(client, upstream, stream=True)).status == 200
