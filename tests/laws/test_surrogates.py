"""Half a surrogate pair, wherever an upstream puts it, costs nothing but itself.

UTF-8 cannot encode it, so that one in the name of a call, or in an error, had taken the records of other requests with it,
the timelines of other callers' runs, and log lines.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.laws.gateway import DIALECTS, Gateway, Served, chat_answer, measured_gateway, sse

HALF = "\ud83d"
AUTO: dict[str, Any] = {"tool_execution": "auto", "use_server_tools": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
PLACES: dict[str, dict[str, Any]] = {
    "name": {"tool_calls": [{**CALL, "function": {"name": f"now{HALF}", "arguments": "{}"}}]},
    "id": {"tool_calls": [{**CALL, "id": f"c{HALF}"}]},
    "arguments": {"tool_calls": [{**CALL, "function": {"name": "now", "arguments": f'{{"a": "{HALF}"}}'}}]},
    "text": {"content": f"a{HALF}b"},
    "reasoning": {"reasoning_content": f"a{HALF}b", "content": "c"},
    "details": {"reasoning_details": [{"type": "reasoning.text", "text": "a", "id": HALF}], "content": "c"},
    "unknown field": {"annotations": [{"type": HALF, HALF: HALF}], "x": {HALF: [HALF]}, "content": "c"},
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with measured_gateway() as opened:
        yield opened


def served(message: dict[str, Any], stream: bool) -> Served:
    """An answer of a Chat upstream with this message, in which a half is an escape, as JSON allows."""
    if not stream:
        return chat_answer(**{"content": "", **message})
    calls = [{"index": number, **call} for number, call in enumerate(message.get("tool_calls", ()))]
    delta = {"role": "assistant", **message, **({"tool_calls": calls} if calls else {})}
    ends = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
    chunks = [
        {"id": "c", "object": "chat.completion.chunk", "choices": [one]} for one in ({"index": 0, "delta": delta}, ends)
    ]
    return sse("".join([f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]).encode() + b"data: [DONE]\n\n")


async def newest(gateway: Gateway, count: int) -> set[str]:
    """The ids of the requests that were recorded last."""
    page = (await gateway.get(f"/v1/requests?limit={count}")).json
    return {one["id"] for one in page["data"]}


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "server tools"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("place", PLACES)
async def test_half_a_surrogate_pair_loses_no_record(gateway: Gateway, place: str, stream: bool, tools: bool) -> None:
    count = len(DIALECTS) + 1
    before, more = await newest(gateway, count), AUTO if tools else {}
    for client in DIALECTS:
        gateway.play(served(PLACES[place], stream), chat_answer("Done."))
        answered = await gateway.ask(client, "openai_chat", stream=stream, **more)
        assert answered.status == 200, (client, answered.body)
        answered.body.decode()  # is UTF-8
    gateway.play(chat_answer("Done."))
    assert (await gateway.ask("openai_chat", "openai_chat")).status == 200
    assert len(await newest(gateway, count) - before) == count
    assert b"UnicodeEncodeError" not in (gateway.place / "log").read_bytes()


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "server tools"])
async def test_an_error_with_half_a_surrogate_pair_is_recorded(gateway: Gateway, tools: bool) -> None:
    error = {"error": {"message": f"broken {HALF}", "code": f"c{HALF}", "type": HALF, "param": HALF}}
    more = AUTO if tools else {}
    for status in (400, 500):
        gateway.play(Served(json.dumps(error).encode(), status=status))
        answered = await gateway.ask("openai_chat", "openai_chat", **more)
        assert answered.status in (400, 502)
        failed = (await gateway.get("/v1/requests?limit=1&status=error")).json["data"][0]
        assert "broken \ufffd" in failed["error"]
        if tools:
            runs = (await gateway.get("/v1/runs?limit=1")).json["data"]
            assert runs[0]["state"] == "failed"
