"""An answer that nearly has each of many stop texts, at every place, for an upstream that knows none."""

from tests.laws.answers import streamed, whole
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text
from toolgate.dialects.openai_chat.requests import MAX_STOPS
from toolgate.upstreams.setting_emulation import LONGEST_STOP

VARIANTS = ("whole", "streamed", "long event")
STOPS = ["a" * (LONGEST_STOP - 1) + chr(ord("b") + number) for number in range(MAX_STOPS)]
NEARLY = "a" * (LONGEST_STOP - 2) + "."


async def play(gateway: Gateway, variant: str) -> None:
    stream, text = variant != "whole", "a" * size(2_000_000, 6_200_000)
    if variant == "streamed":
        gateway.play(streamed("openai_responses", Text(NEARLY), times=size(3_000, 24_000)))
    else:
        gateway.play(streamed("openai_responses", Text(text)) if stream else whole("openai_responses", Text(text)))
    response = await gateway.ask("openai_chat", "openai_responses", stream=stream, stop=STOPS)
    assert response.status == 200
    assert b"upstream_garbled" not in response.body
