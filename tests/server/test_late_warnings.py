"""Warnings that are known only when the headers of a stream have gone out (C8)."""

import asyncio
from typing import Any

import pytest

from tests.server.talk import PATHS, Caller, body
from tests.server.test_gateway import open_stage
from toolgate.config import Server

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
DROPPED: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "openai_chat": ("anthropic", {"frequency_penalty": 1.0}, b"frequency_penalty"),
    "ollama": ("anthropic", {"options": {"frequency_penalty": 1.0}}, b"frequency_penalty"),
    "anthropic": ("openai_responses", {"top_k": 5}, b"top_k"),
    "openai_responses": ("ollama", {"tools": [{"type": "web_search"}]}, b"web_search"),
}


@pytest.mark.parametrize("client", DROPPED)
async def test_a_stream_that_began_without_its_answer_still_tells_what_was_dropped(client: str) -> None:
    upstream, said, name = DROPPED[client]
    answering = asyncio.Event()

    async def later(request: Any) -> str:
        await answering.wait()
        return "Hello."

    async with open_stage(later, server=Server(port=0, first_event_wait=0.01)) as (url, _), Caller(url) as caller:
        await caller.post(PATHS[client], body(client, upstream, stream=True, **said))
        status, headers = await caller.head()
        assert (status, headers.get("x-toolgate-warning")) == (200, None)
        answering.set()
        told = b""
        while piece := await caller.piece():
            told += piece
    lines = [line for line in told.splitlines() if name in line and b"warning" in line]
    assert len(lines) == 1
    assert b"Hello." in told
    assert client == "ollama" or lines[0].startswith(b": ")
