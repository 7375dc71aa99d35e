"""A stream of thousands of empty events before the first word: nothing is told until then."""

from tests.laws.answers import streamed
from tests.laws.gateway import Gateway, Served, size
from toolgate.conversation.message import Text

VARIANTS = ("openai_chat", "openai_responses", "anthropic", "ollama")
EMPTY = {
    "openai_chat": b'data: {"id":"c","choices":[]}\n\n',
    "openai_responses": b'event: response.queued\ndata: {"type":"response.queued","response":{}}\n\n',
    "anthropic": b'event: ping\ndata: {"type":"ping"}\n\n',
    "ollama": b'{"model":"m","message":{"role":"assistant","content":""},"done":false}\n',
}


async def play(gateway: Gateway, upstream: str) -> None:
    served = streamed(upstream, Text("x"))
    gateway.play(Served([EMPTY[upstream] * size(12_000, 100_000), *served.body], served.content_type))
    await gateway.ask(upstream, upstream, stream=True)
