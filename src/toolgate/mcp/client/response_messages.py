"""Decode the JSON-RPC messages in the body of an HTTP response, be it JSON or an event stream. Sends nothing.

A message has the same size limit as on a pipe, and no step of the event loop decodes more than a few messages.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from toolgate.conversation.errors import InvalidRequest, InvalidUpstreamAnswer
from toolgate.mcp.protocol.jsonrpc import Message, RpcErrorResponse, decode_messages
from toolgate.mcp.protocol.line_reader import (
    LARGE,
    MAX_MESSAGE_BYTES,
    MESSAGES_PER_STEP,
    TOO_LARGE,
    McpReadRateLimit,
)
from toolgate.mcp.protocol.transport import McpHttpResponse, McpResponseBroken
from toolgate.wire.sse_decoder import SseDecoder

EVENT_STREAM = "text/event-stream"
JSON = "application/json"
# A chunk may hold thousands of tiny events; no step of the event loop decodes more of it than this.
_SLICE_BYTES = 16 * 1024


def media_type(response: McpHttpResponse) -> str:
    """Return the media type of the body, without parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_messages(response: McpHttpResponse) -> AsyncGenerator[Message, None]:
    """Yield the messages as they arrive; anything else is skipped, and a flood is throttled."""
    if media_type(response) != EVENT_STREAM:
        for number, message in enumerate(await _decode(await _read_body(response)), 1):
            yield message
            if number % MESSAGES_PER_STEP == 0:
                await asyncio.sleep(0)
        return
    decoder = SseDecoder(MAX_MESSAGE_BYTES)
    throttle = McpReadRateLimit(asyncio.get_running_loop().time)
    async for chunk in response:
        for start in range(0, len(chunk), _SLICE_BYTES):
            piece = chunk[start : start + _SLICE_BYTES]
            count = 0
            for frame in decoder.feed(piece):
                for message in await _decode_lenient(frame.data):
                    yield message
                    count += 1
                    if count % MESSAGES_PER_STEP == 0:
                        await asyncio.sleep(0)
            await asyncio.sleep(throttle.pause(count, len(piece)))


async def read_error(response: McpHttpResponse) -> RpcErrorResponse | None:
    """Return the JSON-RPC error in the body of a response with an error status, if there is one."""
    if media_type(response) != JSON:
        return None
    try:
        found = await _decode_lenient(await _read_body(response))
    except McpResponseBroken:
        return None
    return next((message for message in found if isinstance(message, RpcErrorResponse)), None)


async def _read_body(response: McpHttpResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response:
        size += len(piece)
        if size > MAX_MESSAGE_BYTES:
            raise McpResponseBroken(f"gave no answer that can be read: {TOO_LARGE}")
        pieces.append(piece)
    return b"".join(pieces)


async def _decode(text: bytes) -> Sequence[Message]:
    try:
        return decode_messages(text) if len(text) <= LARGE else await asyncio.to_thread(decode_messages, text)
    except InvalidRequest as error:
        raise McpResponseBroken(f"gave no answer that can be read: {error.message}") from None


async def _decode_lenient(text: bytes) -> Sequence[Message]:
    try:
        # Since 2025-11-25 a stream may begin with an event without data, whose id a client could resume from.
        return await _decode(text) if text.strip() else ()
    except InvalidUpstreamAnswer:
        return ()
