"""The messages in the body of an HTTP answer, be it one JSON text or a stream of events. Sends nothing.

Every message has the bound that it has on a pipe, and no step of the event loop decodes more than a few of them.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from toolgate.conversation.errors import Garbled, InvalidRequest
from toolgate.tools.sources.mcp.line import Broken, HttpAnswer
from toolgate.tools.sources.mcp.messages import Failure, Message, read
from toolgate.tools.sources.mcp.pieces import A_STEP, LARGE, LONGEST_LINE, TOO_LARGE, Measure
from toolgate.wire.sse import SseDecoder

STREAM = "text/event-stream"
JSON = "application/json"
_SLICE = 16 * 1024


def media_type(answer: HttpAnswer) -> str:
    """What the body says it is, without parameters."""
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


async def messages(answer: HttpAnswer) -> AsyncGenerator[Message, None]:
    """The messages one by one as they arrive; whatever is none is passed over, and a flood is slowed down."""
    if media_type(answer) != STREAM:
        for number, message in enumerate(await _decoded(await _body(answer)), 1):
            yield message
            if number % A_STEP == 0:
                await asyncio.sleep(0)
        return
    decoder = SseDecoder(LONGEST_LINE)
    measure = Measure(asyncio.get_running_loop().time)
    async for chunk in answer:
        for start in range(0, len(chunk), _SLICE):
            piece = chunk[start : start + _SLICE]
            heard = 0
            for frame in decoder.feed(piece):
                for message in await _readable(frame.data):
                    yield message
                    heard += 1
                    if heard % A_STEP == 0:
                        await asyncio.sleep(0)
            await asyncio.sleep(measure.pause(heard, len(piece)))


async def failure(answer: HttpAnswer) -> Failure | None:
    """The JSON-RPC error that came with a bad status, if one did."""
    if media_type(answer) != JSON:
        return None
    try:
        found = await _readable(await _body(answer))
    except Broken:
        return None
    return next((message for message in found if isinstance(message, Failure)), None)


async def _body(answer: HttpAnswer) -> bytes:
    """The whole body, within the bound of a message."""
    pieces: list[bytes] = []
    size = 0
    async for piece in answer:
        size += len(piece)
        if size > LONGEST_LINE:
            raise Broken(f"gave no answer that can be read: {TOO_LARGE}")
        pieces.append(piece)
    return b"".join(pieces)


async def _decoded(text: bytes) -> Sequence[Message]:
    try:
        return read(text) if len(text) <= LARGE else await asyncio.to_thread(read, text)
    except InvalidRequest as error:
        raise Broken(f"gave no answer that can be read: {error.message}") from None


async def _readable(text: bytes) -> Sequence[Message]:
    try:
        return await _decoded(text) if text.strip() else ()
    except Garbled:
        return ()
