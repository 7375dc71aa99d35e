"""A call whose arguments are eight megabytes of JSON, whole and in a hundred thousand fragments."""

from tests.laws.answers import PAIRS, streamed, whole
from tests.laws.gateway import Gateway
from toolgate.conversation.message import ToolCall

VARIANTS = tuple(f"{pair}-{form}" for pair in PAIRS for form in ("whole", "streamed"))


async def play(gateway: Gateway, variant: str) -> None:
    client, upstream, form = variant.split("-")
    if form == "whole":
        call = ToolCall("call_1", "look", '{"rows": [' + '{"a": 1}, ' * 800_000 + "0]}")
        gateway.play(whole(upstream, call))
    else:
        gateway.play(streamed(upstream, ToolCall("call_1", "look", "{}"), times=100_000))
    await gateway.ask(client, upstream, stream=form == "streamed")
