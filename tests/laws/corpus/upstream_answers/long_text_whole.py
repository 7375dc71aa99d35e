"""A whole answer with one text of fifteen megabytes."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway
from toolgate.conversation.message import Text

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    gateway.play(whole(upstream, Text("word " * 3_000_000)))
    await gateway.ask(client, upstream)
