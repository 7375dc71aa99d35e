"""Law: a part of the history arrives at the upstream, or a warning names it once, whatever stands between.

Reasoning of every dialect, and parts and fields that not every upstream can take, are sent over upstreams of all dialects,
over models that only write text or take no system messages, and over a peer.
"""

import http.client
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.api.http_client import PATHS
from tests.laws.fields import RecordingUpstream
from tests.laws.sdk_fields import PIXEL
from tests.stage import UPSTREAMS, gateway_config, in_a_thread
from tests.upstreams.local.scripted import user
from tests.upstreams.peers.talking import reference
from toolgate.app.asgi_app import Toolgate
from toolgate.config import ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.conversation.message import REASONING_DROPPED, Message, Opaque, Reasoning
from toolgate.conversation.request import ModelRequest
from toolgate.http.listener import listening
from toolgate.upstreams.local import tool_choice_plan

MARKER = "MARKER1"
HI = {"role": "user", "content": "Hi."}
WELL = {"type": "text", "text": "Well."}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": MARKER}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
SUMMARY = [{"type": "summary_text", "text": MARKER}]
TOOL = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}


def answered(**fields: Any) -> dict[str, Any]:
    return {"messages": [HI, {"role": "assistant", "content": "Well.", **fields}, HI]}


def thought(*blocks: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [HI, {"role": "assistant", "content": [*blocks, WELL]}, HI]}


def output(*items: Any) -> dict[str, Any]:
    return {"store": False, "input": [HI, *items, HI]}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Chat's reasoning": ("openai_chat", answered(reasoning_content=MARKER)),
    "reasoning details": ("openai_chat", answered(reasoning_details=[{"type": "reasoning.text", "text": MARKER}])),
    "a refusal": ("openai_chat", answered(content=None, refusal=MARKER)),
    "the name of the system": ("openai_chat", {"messages": [{"role": "system", "content": "x", "name": MARKER}, HI]}),
    "two thoughts of Ollama": (
        "ollama",
        {"messages": answered(thinking=MARKER)["messages"] * 2, "stream": False},
    ),
    "a role of a model's own": ("ollama", {"messages": [{"role": "control", "content": MARKER}, HI], "stream": False}),
    "a picture of the system": (
        "ollama",
        {"messages": [{"role": "system", "content": "x", "images": [PIXEL]}, HI], "stream": False},
    ),
    "Anthropic's thinking": ("anthropic", thought({"type": "thinking", "thinking": MARKER, "signature": "s"})),
    "redacted thinking": ("anthropic", thought({"type": "redacted_thinking", "data": MARKER})),
    "a hosted search": ("anthropic", thought(SEARCH, FOUND)),
    "a summary": ("openai_responses", output({"type": "reasoning", "id": "rs_1", "summary": SUMMARY})),
    "encrypted reasoning": (
        "openai_responses",
        output({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": MARKER}),
    ),
    "a field of a tool": (
        "openai_chat",
        {"messages": [HI], "tools": [{"type": "function", "function": {**TOOL, "hint": MARKER}}]},
    ),
}


class Place(NamedTuple):
    """The gateway, the upstream that keeps what it received, and the peer."""

    url: str
    upstream: RecordingUpstream
    peer: Any

    def received(self) -> str:
        """All that reached the upstream or the peer last."""
        peer = list(self.peer.conversations.values())
        self.peer.conversations.clear()
        return json.dumps([self.upstream.body, peer])


def _rows() -> list[ModelConfig]:
    at = {name: (TargetConfig(upstream=name, model="played"),) for name in (*UPSTREAMS, "peer")}
    return [
        ModelConfig(name="text over Chat", targets=at["openai_chat"], tools="emulated"),
        ModelConfig(name="text over Ollama", targets=at["ollama"], tools="emulated", system="inject"),
        ModelConfig(name="no system over Anthropic", targets=at["anthropic"], system="inject"),
        ModelConfig(name="a peer", targets=at["peer"]),
        ModelConfig(name="text over a peer", targets=at["peer"], tools="emulated", system="inject"),
    ]


@asynccontextmanager
async def _opened() -> AsyncIterator[Place]:
    upstream, peer = RecordingUpstream(), reference.EchoPeer("secret")
    server = await peer.listen("127.0.0.1", 0)
    address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with upstream.listening() as base:
            config = gateway_config(base)
            row = UpstreamConfig(name="peer", dialect="peer", base_url=address, api_key=Secret("secret"))
            config = replace(config, upstreams={**config.upstreams, "peer": row}, models=(*config.models, *_rows()))
            async with listening(Toolgate(config)) as url:
                yield Place(url, upstream, peer)
    finally:
        server.close()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with in_a_thread(_opened()) as opened:
        yield opened


@pytest.mark.parametrize("model", [*UPSTREAMS, *[row.name for row in _rows()]])
@pytest.mark.parametrize(("client", "body"), CASES.values(), ids=CASES)
def test_a_part_of_the_history_arrives_or_is_named_once(
    place: Place, client: str, body: dict[str, Any], model: str
) -> None:
    place.upstream.body = None
    connection = http.client.HTTPConnection(urlsplit(place.url).netloc, timeout=60)
    connection.request(
        "POST", PATHS[client], json.dumps({**body, "model": model}), {"content-type": "application/json"}
    )
    response = connection.getresponse()
    answer, warned = response.read().decode(), response.headers.get("x-toolgate-warning", "")
    connection.close()
    assert response.status == 200, answer
    received = place.received()
    assert MARKER in received or PIXEL in received or warned
    assert warned.count(REASONING_DROPPED) <= 1


def test_the_embedded_model_warns_of_reasoning_and_of_parts_that_it_does_not_know() -> None:
    parts = (Reasoning("Hm."), Opaque("anthropic", {"type": "server_tool_use"}))
    history = (user("Hi."), Message("assistant", parts), Message("assistant", parts), user("Hi."))
    assert tool_choice_plan.make(ModelRequest("local", history), 8).warnings == (
        REASONING_DROPPED,
        "a part of type 'server_tool_use' is known to anthropic only",
    )
