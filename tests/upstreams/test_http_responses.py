"""A stream that begins with nothing but blanks is read in time that grows with its length alone."""

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from toolgate.conversation.errors import InvalidUpstreamAnswer
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.openai_chat import DIALECT
from toolgate.upstreams.http_responses import open_stream


async def blanks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" \n" * 500


async def seconds(count: int) -> float:
    times = []
    for _ in range(3):
        before = time.thread_time()
        with pytest.raises(InvalidUpstreamAnswer, match="ended before it began"):
            await open_stream("u", DIALECT, ModelRequest("m", ()), cast(Any, blanks(count)), (), None)
        times.append(time.thread_time() - before)
    return min(times)


async def test_pieces_of_blanks_are_each_looked_at_once() -> None:
    assert await seconds(2000) < 8 * await seconds(500)
