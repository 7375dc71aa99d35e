"""How a client of a dialect without words for server tools can see what they do: X4."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.stage import Stage, on_stage
from toolgate.conversation.message import ToolCall
from toolgate.testing import FakeSource, FakeTool

TIME = ToolCall("call_time_000000000000000001", "get_time", '{"zone":"UTC"}')
ASK: Any = [{"role": "user", "content": "Time?"}]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with on_stage(FakeSource(FakeTool("get_time", lambda arguments: "noon"))) as stage:
        yield stage


def post(stage: Stage, path: str, **body: Any) -> httpx.Response:
    stage.play([TIME], "It is noon.")
    wants = {"tool_execution": "auto", "use_server_tools": True}
    answer = httpx.post(f"{stage.url}{path}", json={"model": "openai_chat", "messages": ASK, **wants, **body})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(("path", "content"), [("/v1/chat/completions", "choices"), ("/api/chat", "message")])
def test_a_line_of_text_tells_of_each_call(stage: Stage, path: str, content: str) -> None:
    body = post(stage, path, tool_status="text", stream=False).json()
    message = body["message"] if content == "message" else body["choices"][0]["message"]
    assert message["content"] == '[get_time {"zone":"UTC"}]\n\nIt is noon.'


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_events_tell_of_calls_and_results_in_a_field_of_our_own(stage: Stage, path: str) -> None:
    streamed = post(stage, path, tool_status="events", stream=True).text
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if "toolgate" in line]
    told = [json.loads(line)["toolgate"] for line in lines]
    assert [(event["type"], event["id"]) for event in told] == [
        ("tool_call", "call_time_000000000000000001"),
        ("tool_result", "call_time_000000000000000001"),
    ]
    assert post(stage, path, tool_status="events", stream=False).json()["toolgate"] == told


def test_without_a_wish_nothing_of_them_is_seen(stage: Stage) -> None:
    """field: E1"""
    assert "get_time" not in post(stage, "/v1/chat/completions", stream=True).text


def test_a_response_makes_no_more_calls_than_its_request_allows(stage: Stage) -> None:
    stage.play([TIME], [ToolCall("call_time_000000000000000002", "get_time", '{"zone":"X"}')], "Enough.")
    wants = {"tool_execution": "auto", "use_server_tools": True, "max_tool_calls": 1}
    answer = httpx.post(f"{stage.url}/v1/responses", json={"model": "openai_chat", "input": "Time?", **wants}).json()
    assert [item.get("status") for item in answer["output"]] == ["completed", "failed", "completed"]
    assert answer["max_tool_calls"] == 1


def test_an_unknown_wish_is_refused(stage: Stage) -> None:
    wants = {"tool_status": "loud", "tool_execution": "auto"}
    answer = httpx.post(f"{stage.url}/v1/chat/completions", json={"model": "openai_chat", "messages": ASK, **wants})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_status")
