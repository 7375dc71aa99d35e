"""A whole answer of megabytes that JSON escapes: a text, and the arguments of a call, which are escaped twice."""

from tests.laws.answers import PAIRS, whole
from tests.laws.gateway import Gateway, size
from toolgate.conversation.message import Text, ToolCall

VARIANTS = tuple(f"{pair}-{form}" for pair in PAIRS for form in ("text", "call"))


async def play(gateway: Gateway, variant: str) -> None:
    client, upstream, form = variant.split("-")
    if form == "text":
        gateway.play(whole(upstream, Text('"' * size(2_000_000, 6_200_000))))
    else:
        quotes = '\\"' * size(1_000_000, 2_000_000)
        gateway.play(whole(upstream, ToolCall("call_1", "look", f'{{"a": "{quotes}"}}')))
    assert (await gateway.ask(client, upstream)).status == 200
