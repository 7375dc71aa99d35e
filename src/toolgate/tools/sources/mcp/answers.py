"""The messages in the body of an HTTP answer, be it one JSON text or a stream of events. Sends nothing."""

import asyncio
from collections.abc import AsyncGenerator

from toolgate.conversation.errors import Garbled
from toolgate.tools.sources.mcp.line import HttpAnswer
from toolgate.tools.sources.mcp.messages import Failure, Message, read
from toolgate.tools.sources.mcp.pieces import LONGEST_LINE, Measure
from toolgate.wire.sse import SseDecoder

STREAM = "text/event-stream"
JSON = "application/json"


def media_type(answer: HttpAnswer) -> str:
    """What the body says it is, without parameters."""
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


async def messages(answer: HttpAnswer) -> AsyncGenerator[Message, None]:
    """The messages one by one as they arrive; whatever is none is passed over, and a flood is slowed down."""
    if media_type(answer) != STREAM:
        for message in read(await answer.read()):
            yield message
        return
    decoder = SseDecoder(LONGEST_LINE)
    measure = Measure(asyncio.get_running_loop().time)
    async for chunk in answer:
        frames = decoder.feed(chunk)
        for frame in frames:
            for message in _readable(frame.data):
                yield message
        await asyncio.sleep(measure.pause(len(frames)))


async def failure(answer: HttpAnswer) -> Failure | None:
    """The JSON-RPC error that came with a bad status, if one did."""
    if media_type(answer) != JSON:
        return None
    return next((message for message in _readable(await answer.read()) if isinstance(message, Failure)), None)


def _readable(text: bytes) -> list[Message]:
    if not text.strip():
        return []
    try:
        return read(text)
    except Garbled:
        return []
