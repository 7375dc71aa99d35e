"""A whole answer of a million small values in a field that nobody knows."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway, Served
from toolgate.conversation.message import Text

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    body = whole(upstream, Text("x")).body
    assert isinstance(body, bytes)
    gateway.play(Served(b'{"more":[' + b'{"a":[]},' * 1_000_000 + b"0]," + body[1:]))
    await gateway.ask(client, upstream)
