"""Warnings that are known only after the headers of a stream were sent (spec: C8)."""

import asyncio
from typing import Any

import pytest

from tests.api.http_client import PATHS, HttpConnection, body
from tests.api.test_chat import open_stage
from toolgate.config import ServerSettings

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
DROPPED: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "openai_chat": ("anthropic", {"frequency_penalty": 1.0}, b"frequency_penalty"),
    "ollama": ("anthropic", {"options": {"frequency_penalty": 1.0}}, b"frequency_penalty"),
    "anthropic": ("openai_responses", {"top_k": 5}, b"top_k"),
    "openai_responses": ("ollama", {"tools": [{"type": "web_search"}]}, b"web_search"),
}


@pytest.mark.parametrize("client", DROPPED)
async def test_a_stream_that_started_before_the_answer_still_warns_of_what_was_dropped(client: str) -> None:
    upstream, given, name = DROPPED[client]
    answering = asyncio.Event()

    async def later(request: Any) -> str:
        await answering.wait()
        return "Hello."

    async with (
        open_stage(later, server=ServerSettings(port=0, first_event_wait=0.01)) as (url, _),
        HttpConnection(url) as caller,
    ):
        await caller.post(PATHS[client], body(client, upstream, stream=True, **given))
        status, headers = await caller.head()
        assert (status, headers.get("x-toolgate-warning")) == (200, None)
        answering.set()
        output = b""
        while piece := await caller.chunk():
            output += piece
    lines = [line for line in output.splitlines() if name in line and b"warning" in line]
    assert len(lines) == 1
    assert b"Hello." in output
    assert client == "ollama" or lines[0].startswith(b": ")
