"""VS Code's own chat as a client: errors in the forms that it shows to its user (spec: V3)."""

import json
from typing import Any

import httpx
import pytest

from tests.api.http_client import PATHS, body
from tests.bridge.gateway import tool
from tests.stage import UPSTREAMS, Stage
from toolgate.conversation.errors import GatewayOverloaded, InvalidUpstreamAnswer
from toolgate.conversation.message import Part, Text, ToolCall

CHAT = {"user-agent": "GitHubCopilotChat/0.67.0"}
OTHER = {"user-agent": "curl/8"}
EACH = pytest.mark.parametrize("upstream", UPSTREAMS)


def events(response: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def ask(stage: Stage, client: str, upstream: str, stream: bool, headers: dict[str, str], **more: Any) -> httpx.Response:
    return httpx.post(
        stage.url + PATHS[client], json=body(client, upstream, stream, **more), headers=headers, timeout=60
    )


@EACH
@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_byte_is_a_400_with_its_message(
    stage: Stage, client: str, upstream: str, stream: bool
) -> None:
    stage.play(GatewayOverloaded("out of order"), GatewayOverloaded("out of order"))
    shown = ask(stage, client, upstream, stream, CHAT)
    assert shown.status_code == 400
    assert "out of order" in shown.text
    assert ask(stage, client, upstream, stream, OTHER).status_code >= 500


@EACH
def test_an_error_in_a_chat_stream_comes_after_the_end_of_the_choice(stage: Stage, upstream: str) -> None:
    broken: list[Part | Exception] = [Text("Once upon"), InvalidUpstreamAnswer("boom")]
    stage.play(broken, broken)
    *_, last, error = events(ask(stage, "openai_chat", upstream, True, CHAT))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert error["error"]["message"]
    others = events(ask(stage, "openai_chat", upstream, True, OTHER))
    assert [one for one in others if one.get("choices") and one["choices"][0]["finish_reason"]] == []


@EACH
def test_a_call_that_breaks_off_is_not_released(stage: Stage, upstream: str) -> None:
    """The editor runs calls that end with `stop` or `tool_calls`, and drops those that end with `length`."""
    stage.play([ToolCall("call_1", "weather", '{"city":"Oslo"}'), InvalidUpstreamAnswer("boom")])
    shown = events(ask(stage, "openai_chat", upstream, True, CHAT, tools=[tool("openai_chat", "weather")]))
    reasons = [one["choices"][0]["finish_reason"] for one in shown if one.get("choices")]
    assert reasons[-1] == "length"


@EACH
def test_an_error_in_a_messages_stream_is_text(stage: Stage, upstream: str) -> None:
    stage.play([Text("Once upon"), InvalidUpstreamAnswer("boom")])
    shown = events(ask(stage, "anthropic", upstream, True, CHAT))
    text = "".join(one["delta"].get("text", "") for one in shown if one["type"] == "content_block_delta")
    assert text.startswith("Once upon\n\nThe answer broke off: ")
    assert [one["type"] for one in shown][-2:] == ["message_delta", "message_stop"]
    starts = [one["index"] for one in shown if one["type"] == "content_block_start"]
    assert starts == sorted(set(starts))
