"""Whatever type a client gives to a field of its request, it gets an answer or a refusal, never 500.

Requests that are answered when they are right have each of their values replaced by others, one at a time.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.http_client import HttpConnection, HttpResponse
from tests.laws.fields import RecordingUpstream
from tests.laws.test_wrong_types import places
from tests.stage import UPSTREAMS, gateway_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.http.listener import listening

OTHER_VALUES: tuple[Any, ...] = (None, True, 10**30, "x", "\0\ud800", [{}], {"a": [1]})
MODELS = (*UPSTREAMS, "emulated", "echo")

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}}
GRAMMAR = {"syntax": "lark", "definition": "start: /a/"}
IMAGE = "data:image/png;base64,AAAA"
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "name": "u", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ],
    "tools": [
        FUNCTION,
        {"type": "custom", "custom": {"name": "g", "format": {"type": "grammar", "grammar": GRAMMAR}}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "stop": ["a"],
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    "max_tokens": 5,
    "temperature": 1,
    "logit_bias": {"1": 2},
    "metadata": {"a": "b"},
    "store": True,
    "tool_execution": "auto",
    "use_server_tools": ["*"],
    "max_tool_rounds": 2,
}
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": IMAGE, "detail": "auto"}]},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    {"type": "mcp_approval_request", "id": "mcpr_2", "server_label": "toolgate", "name": "n", "arguments": "{}"},
    {"type": "mcp_call", "id": "mcp_1", "server_label": "toolgate", "name": "n", "arguments": "{}", "output": "o"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "b", "annotations": [{"type": "url_citation", "url": "x"}]}],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "x"},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}', "namespace": "n"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "3"}]},
    {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "i"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "o"},
]
RESPONSE = {
    "input": ITEMS,
    "instructions": "i",
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "g", "format": {"type": "grammar", **GRAMMAR}},
    ],
    "tool_choice": {"type": "function", "name": "f"},
    "max_output_tokens": 20,
    "metadata": {"a": "b"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "tool_execution": "auto",
    "max_tool_calls": 3,
}
MESSAGES = {
    "max_tokens": 3000,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "r"}],
                },
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": "AAAA"}},
            ],
        },
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA, "input_examples": [{"a": 1}]}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["a"],
    "thinking": {"type": "enabled", "budget_tokens": 2000},
}
OLLAMA = {
    "messages": [
        {"role": "user", "content": "a", "images": ["AAAA"]},
        {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "tool_name": "f", "content": "r"},
    ],
    "tools": [FUNCTION],
    "format": SCHEMA,
    "options": {"temperature": 1, "num_ctx": 5, "stop": ["a"], "num_predict": 5},
    "stream": False,
    "keep_alive": "5m",
    "think": True,
}  # fmt: skip
TOOL = {
    "type": "http",
    "name": "t",
    "url": "https://tools.example/t",
    "headers": {"a": "b"},
    "description": "d",
    "inputSchema": SCHEMA,
    "outputSchema": SCHEMA,
    "tags": ["t"],
    "when": "model == 'x'",
    "annotations": {"readOnlyHint": True},
    "timeout": 3,
}
KEY = {
    "name": "k",
    "scopes": ["chat"],
    "models": ["*"],
    "tools": ["*"],
    "requests_per_minute": 3,
    "budget": {"amount": 1, "period": "day"},
}
CALL = {"name": "nonesuch", "arguments": {"a": 1}, "_meta": {"progressToken": 1}}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/responses/compact": {"input": [*ITEMS, {"type": "function_call", "call_id": "c3", "name": "f"}, ITEMS[0]]},
    "/v1/conversations": {"items": ITEMS, "metadata": {"a": "b"}},
    "/v1/messages": MESSAGES,
    "/api/chat": OLLAMA,
    "/api/generate": {"prompt": "p", "system": "s", "images": ["AAAA"], "options": {"stop": ["a"]}, "stream": False},
    "/v1/tools": TOOL,
    "/v1/keys": KEY,
    "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL},
}
STREAMED = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate")
WITHOUT_MODEL = frozenset(("/v1/conversations", "/v1/tools", "/v1/keys", "/mcp"))


def config_of(url: str) -> Config:
    config = gateway_config(url)
    emulated = ModelConfig(
        name="emulated", targets=(TargetConfig(upstream="openai_chat", model="m"),), retries=0, tools="emulated"
    )
    echo = ModelConfig(name="echo", targets=(TargetConfig(upstream=BUILTIN, model="echo"),))
    root = KeySettings(name="root", key=Secret("a-key"), scopes=("chat", "tools", "admin"))
    return replace(config, keys=(root,), models=(*config.models, emulated, echo))


def wrong(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body with each of its values replaced by each of the others, one at a time."""
    for number in range(len(list(places(body)))):
        for other in OTHER_VALUES:
            changed = copy.deepcopy(body)
            container, key = list(places(changed))[number]
            container[key] = other
            yield changed


async def send(caller: HttpConnection, path: str, body: dict[str, Any], number: int) -> HttpResponse:
    """Send the body for one model after the other."""
    model = {} if path in WITHOUT_MODEL else {"model": MODELS[number % len(MODELS)]}
    headers = ("authorization: Bearer a-key", "accept: application/json, text/event-stream")
    await caller.post(path, json.dumps({**model, **body}).encode(), *headers)
    return await caller.response()


@pytest.mark.parametrize(
    ("path", "request_body"),
    [*REQUESTS.items(), *[(path, {**REQUESTS[path], "stream": True}) for path in STREAMED]],
    ids=[*REQUESTS, *[f"{path} streamed" for path in STREAMED]],
)
async def test_values_of_wrong_types_are_the_clients_fault(path: str, request_body: dict[str, Any]) -> None:
    async with (
        RecordingUpstream().listening() as upstream,
        listening(Toolgate(config_of(upstream))) as url,
        HttpConnection(url) as caller,
    ):
        for number in range(len(MODELS)):
            right = await send(caller, path, request_body, number)
            assert right.status in (200, 201) or (number and right.status == 409), right.body
        for number, body in enumerate(wrong(request_body)):
            received = await send(caller, path, body, number)
            assert received.status != 500, (body, received.body)
            assert b"internal error" not in received.body, (body, received.body)


async def test_a_prompt_without_input_is_no_internal_error() -> None:
    prompt = {"prompt": {"id": "p", "variables": {"a": "b"}}}
    async with (
        RecordingUpstream().listening() as upstream,
        listening(Toolgate(config_of(upstream))) as url,
        HttpConnection(url) as caller,
    ):
        for number, model in enumerate(MODELS):
            received = await send(caller, "/v1/responses", prompt, number)
            assert received.status != 500, (model, received.body)
