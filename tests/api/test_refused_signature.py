"""A signature of earlier thinking that Anthropic refuses: the request is repeated without it, with a warning."""

from typing import Any

import pytest

from tests.api.http_client import ask
from tests.stage import Stage
from toolgate.conversation.errors import InvalidRequest
from toolgate.conversation.message import Reasoning, ToolCall

REFUSED = "messages.1.content.0: Invalid `signature` in `thinking` block"
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "How is the weather?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Let me look.", "signature": "stale"},
            {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny."}]},
]


def body(stream: bool) -> dict[str, Any]:
    return {"model": "anthropic", "max_tokens": 100, "stream": stream, "messages": HISTORY}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_signature_is_left_out_and_the_request_made_once_more(stage: Stage, stream: bool) -> None:
    model = stage.play(InvalidRequest(REFUSED), "It is sunny.")
    answer = await ask(stage.url, "/v1/messages", body(stream))
    assert answer.status == 200
    assert b"sunny" in answer.body
    assert "signature" in answer.headers["x-toolgate-warning"]
    first, second = [[part for message in asked.messages for part in message.parts] for asked in model.requests]
    assert any(isinstance(part, Reasoning) for part in first)
    assert not any(isinstance(part, Reasoning) for part in second)
    assert any(isinstance(part, ToolCall) for part in second)


@pytest.mark.parametrize("given", [REFUSED, "max_tokens is too large"])
async def test_a_request_is_made_once_more_at_most_and_for_no_other_reason(stage: Stage, given: str) -> None:
    model = stage.play(InvalidRequest(given), InvalidRequest(given), "Never.")
    answer = await ask(stage.url, "/v1/messages", body(stream=False))
    assert answer.status == 400
    assert len(model.requests) == (2 if given == REFUSED else 1)
