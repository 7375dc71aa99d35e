"""A whole answer with more characters than a stream may have: it is refused as well."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway
from toolgate.conversation.message import Text

VARIANTS = PAIRS


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    gateway.play(whole(upstream, Text('"' * 6_300_000)))
    answer = await gateway.ask(client, upstream)
    assert (answer.status, b"has more than 6291456 characters" in answer.body) == (502, True)
