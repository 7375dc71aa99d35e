"""A call whose arguments are megabytes of JSON, whole and in many fragments."""

from tests.laws.answers import PAIRS, streamed, whole
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import ToolCall

VARIANTS = tuple(f"{pair}-{form}" for pair in PAIRS for form in ("whole", "streamed"))


async def play(gateway: Gateway, variant: str) -> None:
    client, upstream, form = variant.split("-")
    if form == "whole":
        call = ToolCall("call_1", "look", '{"rows": [' + '{"a": 1}, ' * size(250_000, 1_600_000) + "0]}")
        gateway.play(whole(upstream, call))
    else:
        gateway.play(streamed(upstream, ToolCall("call_1", "look", "{}"), times=size(30_000, 100_000)))
    await gateway.ask(client, upstream, stream=form == "streamed")
