"""How a client of a dialect without words for server tools can see what they do (spec: X4)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.stage import Stage, on_stage
from toolgate.conversation.message import Media, Text, ToolCall
from toolgate.testing import FakeSource, FakeTool
from toolgate.tools.tool import CallProgressUpdate, ToolCallInput, ToolOutput

TIME = ToolCall("call_time_000000000000000001", "get_time", '{"zone":"UTC"}')
ASK: Any = [{"role": "user", "content": "Time?"}]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with on_stage(
        FakeSource(FakeTool("get_time", lambda arguments: "noon"), PaintingTool("paint", lambda _: ""))
    ) as stage:
        yield stage


class PaintingTool(FakeTool):
    """A tool that reports its progress and returns a picture."""

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        invocation.report(CallProgressUpdate("halfway", 1, 2))
        return ToolOutput((Text("painted"), Media("image", "image/png", "iVBORw0K")))


PAINT = ToolCall("call_paint_00000000000000001", "paint", "{}")


def post(stage: Stage, path: str, **body: Any) -> httpx.Response:
    stage.play([TIME], "It is noon.")
    wants = {"tool_execution": "auto", "use_server_tools": True}
    answer = httpx.post(f"{stage.url}{path}", json={"model": "openai_chat", "messages": ASK, **wants, **body})
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize(("path", "content"), [("/v1/chat/completions", "choices"), ("/api/chat", "message")])
def test_a_line_of_text_shows_each_call(stage: Stage, path: str, content: str) -> None:
    body = post(stage, path, tool_status="text", stream=False).json()
    message = body["message"] if content == "message" else body["choices"][0]["message"]
    assert message["content"] == '[get_time {"zone":"UTC"}]\n\nIt is noon.'


@pytest.mark.parametrize("ending", ["", "\n", "\n\n", "\n\n\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_one_blank_line_is_between_the_texts_of_two_rounds(stage: Stage, stream: bool, ending: str) -> None:
    stage.play([Text(f"Let me look.{ending}"), TIME], "It is noon.")
    wants = {"tool_execution": "auto", "use_server_tools": True, "stream": stream}
    answer = httpx.post(f"{stage.url}/api/chat", json={"model": "openai_chat", "messages": ASK, **wants})
    text = "".join([json.loads(line)["message"]["content"] for line in answer.text.splitlines()])
    assert text == "Let me look." + (ending if len(ending) > 2 else "\n\n") + "It is noon."


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_events_show_calls_and_results_in_a_field_of_our_own(stage: Stage, path: str) -> None:
    streamed = post(stage, path, tool_status="events", stream=True).text
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if "toolgate" in line]
    emitted = [json.loads(line)["toolgate"] for line in lines]
    assert [(event["type"], event["id"]) for event in emitted] == [
        ("tool_call", "call_time_000000000000000001"),
        ("tool_result", "call_time_000000000000000001"),
    ]
    assert post(stage, path, tool_status="events", stream=False).json()["toolgate"] == emitted


@pytest.mark.parametrize("status", ["events", "off"])
def test_responses_shows_progress_and_pictures_on_demand_in_a_field_of_our_own(stage: Stage, status: str) -> None:
    stage.play([PAINT], "Done.")
    wants = {"tool_execution": "auto", "use_server_tools": True, "tool_status": status, "stream": True}
    streamed = httpx.post(f"{stage.url}/v1/responses", json={"model": "openai_chat", "input": "Paint.", **wants}).text
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: {")]
    progress = [
        one["toolgate"] for one in events if one["type"] == "response.mcp_call.in_progress" and "toolgate" in one
    ]
    (call,) = [one for one in events[-1]["response"]["output"] if one["type"] == "mcp_call"]
    assert call["output"].startswith("painted")
    if status == "events":
        assert progress == [{"message": "halfway", "done": 1, "total": 2}]
        assert call["toolgate"] == {"images": ["data:image/png;base64,iVBORw0K"]}
    else:
        assert (progress, "toolgate" in call) == ([], False)


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
