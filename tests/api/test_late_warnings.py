"""Warnings that are known only after the headers of a stream were sent (spec: C8)."""

import asyncio
import json
from typing import Any

import pytest

from tests.api.http_client import PATHS, HttpConnection, ask, body
from tests.api.test_chat import get, open_stage
from tests.stage import UPSTREAMS, Stage
from toolgate.config import ServerSettings
from toolgate.conversation.message import Text

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


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_the_stored_stream_of_a_background_response_warns_as_a_live_one_does(stage: Stage, upstream: str) -> None:
    stage.play([Text("   ")])
    given: dict[str, Any] = {"top_logprobs": 3, "tools": [{"type": "sparkle_tool"}], "background": True, "store": True}
    first = await ask(stage.url, "/v1/responses", body("openai_responses", upstream, True, **given))
    frames = [frame for frame in first.body.split(b"\n\n") if b"data: {" in frame]
    events = [json.loads(frame.partition(b"data: ")[2]) for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
    again = await get(stage.url, path)
    assert again.body == first.body.replace(b": ping\n", b"")

    def warnings(received: bytes) -> str:
        return " ".join([line.decode() for line in received.splitlines() if line.startswith(b": toolgate-warning: ")])

    assert warnings(again.body).count("sparkle_tool") == (upstream != "openai_responses")
    assert warnings(again.body).count("empty answer") == 1
    [number] = [number for number, frame in enumerate(frames) if "empty answer" in warnings(frame)]
    for after, found in ((number - 1, 1), (number, 0)):
        rest = await get(stage.url, path + (f"&starting_after={after}" if after >= 0 else ""))
        assert warnings(rest.body).count("empty answer") == found
        assert rest.body.count(b"data: {") == len(events) - 1 - after
