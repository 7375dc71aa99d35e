"""A stream whose text grows without end: it is ended, before the client gets all of it again at the end."""

from tests.laws.answers import streamed
from tests.laws.gateway import Gateway
from toolgate.conversation.message import Text

VARIANTS = ("openai_responses-openai_chat", "anthropic-ollama")


async def play(gateway: Gateway, pair: str) -> None:
    client, upstream = pair.split("-")
    gateway.play(streamed(upstream, Text("x" * 16_000), times=400))
    answer = await gateway.ask(client, upstream, stream=True)
    assert (answer.status, b"has more than 6291456 characters" in answer.body) == (200, True)
