"""No frame of an editor keeps the event loop busy for long (spec: V1)."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.bridge.gateway import ask
from tests.bridge.gateway import gateway as unmeasured_gateway
from tests.bridge.scripted_editor import GPT, Frame, ScriptedEditor, delta, done, editor, text
from tests.laws.gateway import KEY, Gateway, measured_gateway
from toolgate.api import editor_approvals
from toolgate.bridge import session
from toolgate.bridge.bound_lent_items import usable_tools
from toolgate.wire.jsontext import encode

MOST = 15 * 2**20


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with measured_gateway() as served:
        yield served


def tools() -> str:
    field = {"type": "string", "description": "x" * 60}
    schema = {"type": "object", "properties": {f"field_{number}": field for number in range(70)}}
    items = [{"name": f"tool_{number}", "input_schema": schema, "tags": ["a", "b"]} for number in range(1024)]
    return json.dumps({"type": "tools", "rev": 99, "items": items})


FRAMES: dict[str, Callable[[], str]] = {
    "1,024 tools with large schemas": tools,
    "many models": lambda: json.dumps(
        {"type": "models", "rev": 99, "items": [{**GPT, "id": str(n)} for n in range(9000)]}
    ),
    "a context of many keys": lambda: json.dumps(
        {"type": "window", "window": {"id": "w", "context": {str(n): n for n in range(90_000)}}}
    ),
    "many parts of unknown types": lambda: json.dumps({"type": "delta", "id": "x", "parts": [{"type": "n"}] * 40_000}),
    "many parts": lambda: json.dumps({"type": "delta", "id": "x", "parts": [{"type": "text", "text": ""}] * 40_000}),
    "a large frame of an unknown type": lambda: json.dumps({"type": "new", "text": "é" * (MOST // 8)}),
    "a large call": lambda: json.dumps(
        {
            "type": "delta",
            "id": "x",
            "parts": [{"type": "tool_call", "call_id": "1", "name": "n", "input": {"a": "x" * MOST}}],
        }
    ),
    "deeply nested": lambda: '{"type": "new", "a": ' + "[" * 70_000 + "]" * 70_000 + "}",
    "many values": lambda: '{"type": "new", "a": [' + "1," * 5_000_000 + "1]}",
}


@pytest.mark.parametrize("name", FRAMES)
async def test_a_hostile_frame_takes_no_step_of_more_than_50_ms(gateway: Gateway, name: str) -> None:
    frame = FRAMES[name]()
    gateway.begin()
    async with editor(gateway.url, id="w") as window:
        await window.send_text(frame)
        await window.round_trip_or_close()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as http:
            await http.get("/v1/tools?name=none", headers={"authorization": f"Bearer {KEY}"})
    assert [str(one) for one in gateway.end()] == []


async def test_a_flood_of_small_frames_takes_no_long_step(gateway: Gateway) -> None:
    gateway.begin()
    async with editor(gateway.url) as window:
        for _ in range(200):
            for _ in range(100):
                await window.send_text('{"type":"delta","id":"x","parts":[{"type":"text","text":"y"}]}')
        await window.round_trip_or_close()
    assert [str(one) for one in gateway.end()] == []


async def test_a_large_answer_takes_no_long_step(gateway: Gateway) -> None:
    async def script(window: ScriptedEditor, asked: Frame) -> Any:
        for _ in range(3):
            yield delta(*text("word " * 200_000))
            await window.round_trip()
        yield done(usage={"input": 1, "output": 600_000})

    gateway.begin()
    async with (
        editor(gateway.url, script=script),
        httpx.AsyncClient(base_url=gateway.url, timeout=60, headers={"authorization": f"Bearer {KEY}"}) as http,
    ):
        for client in ("openai_chat", "anthropic"):
            for stream in (False, True):
                assert (await ask(http, client, "gpt-4o", stream)).status == 200
    assert [str(one) for one in gateway.end()] == []


async def test_what_an_editor_sends_is_measured_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame has up to 16 MiB, and to encode as many characters that JSON escapes takes 50 ms."""
    threads: list[threading.Thread] = []

    def noting_threads(function: Callable[..., Any]) -> Callable[..., Any]:
        def noting_thread(*args: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*args)

        return noting_thread

    monkeypatch.setattr(session, "usable_tools", noting_threads(usable_tools))
    monkeypatch.setattr(editor_approvals, "encode", noting_threads(encode))
    async with unmeasured_gateway() as http, editor(str(http.base_url), approvals=True) as window:
        await window.lend(tools=[{"name": "tool"}])
        await window.send({"type": "answer", "id": "mcpr_1", "decision": "approve", "arguments": {"a": 1}})
        await window.received("error", id="mcpr_1")
    assert len(threads) == 3  # the window lends nothing first
    assert threading.current_thread() not in threads
