"""A whole answer of megabytes that JSON escapes, relayed: a text, and the arguments of a call, which are escaped twice."""

from tests.laws.answers import whole
from tests.laws.gateway import DIALECTS, Gateway, size
from toolgate.conversation.message import Text, ToolCall

VARIANTS = tuple(f"{dialect}-{form}" for dialect in DIALECTS for form in ("text", "call"))


async def play(gateway: Gateway, variant: str) -> None:
    dialect, form = variant.split("-")
    quotes = '\\"' * size(1_000_000, 2_000_000)
    part = Text(quotes) if form == "text" else ToolCall("call_1", "look", f'{{"a": "{quotes}"}}')
    gateway.play(whole(dialect, part))
    assert (await gateway.ask(dialect, dialect)).status == 200
