"""Background responses and conversations over the whole server, with the official client and server tools."""

import time
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.stage import Stage, on_stage
from toolgate.conversation.message import Text, ToolCall
from toolgate.testing import FakeSource, FakeTool

CALL = ToolCall("call_time_000000000000000001", "get_time", "{}")
WANTS = {"tool_execution": "auto", "use_server_tools": True}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with on_stage(FakeSource(FakeTool("get_time", lambda arguments: "noon"))) as stage:
        yield stage


@pytest.fixture
def client(stage: Stage) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_background_response_with_a_server_tool_is_polled_to_its_end(stage: Stage, client: OpenAI) -> None:
    """field: D14"""
    stage.play([Text("Let me look."), CALL], "It is noon.")
    response = client.responses.create(model="openai_chat", input="Time?", background=True, extra_body=WANTS)
    assert response.status in ("queued", "in_progress")
    for _ in range(500):
        response = client.responses.retrieve(response.id)
        if response.status not in ("queued", "in_progress"):
            break
        time.sleep(0.01)
    assert (response.status, [item.type for item in response.output]) == (
        "completed",
        ["message", "mcp_call", "message"],
    )


def test_a_background_stream_is_resumed_where_it_was_left(stage: Stage, client: OpenAI) -> None:
    stage.play([Text("Let me look."), CALL], "It is noon.")
    with client.responses.create(
        model="openai_chat", input="Time?", background=True, stream=True, extra_body=WANTS
    ) as stream:
        first = next(iter(stream))
        assert first.type == "response.created"
    with client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number) as rest:
        events = list(rest)
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text.endswith("It is noon.")


def test_a_conversation_holds_messages_and_calls(stage: Stage, client: OpenAI) -> None:
    stage.play([CALL], "It is noon.", "You asked for the time.")
    conversation = client.conversations.create()
    client.responses.create(model="openai_chat", input="Time?", conversation=conversation.id, extra_body=WANTS)
    client.responses.create(model="openai_chat", input="What did I ask?", conversation=conversation.id)
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "mcp_call", "message", "message", "message"]
