"""A stream with a text of megabytes that JSON escapes, for a client that gets all of it again at the end, stored."""

from tests.laws.answers import streamed
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text


async def play(gateway: Gateway) -> None:
    gateway.play(streamed("anthropic", Text('"' * 16_000), times=size(160, 390)))
    assert (await gateway.ask("openai_responses", "anthropic", stream=True)).status == 200
