"""The seventeen cases of the Open Responses acceptance suite, as its page describes them, over every upstream.

The suite itself is not run: these are checks of our own of what each of its cases is said to want.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponsesServerEvent
from openai.types.responses.response_stream_event import ResponseStreamEvent
from pydantic import TypeAdapter
from websockets.sync.client import ClientConnection, connect

from tests.clients.obliging import oblige
from tests.clients.scenes import WEATHER_SCHEMA
from tests.conformance.clients import PIXEL
from tests.stage import UPSTREAMS, Stage

REQUIRED = (
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
)
"""The fields that the specification's response resource requires, if only as null."""
OF_TOOLS = ("type", "name", "description", "parameters", "strict")
ENDS = ("response.completed", "response.failed", "response.incomplete", "error")
_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_SOCKET_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)
over_every_upstream = pytest.mark.parametrize("model", UPSTREAMS)


@pytest.fixture
def http(whole_stage: Stage) -> Iterator[httpx.Client]:
    whole_stage.play(*itertools.repeat(oblige, 20))
    with httpx.Client(base_url=f"{whole_stage.url}/v1", timeout=60) as http:
        yield http


@pytest.fixture
def socket(whole_stage: Stage, http: httpx.Client) -> Iterator[ClientConnection]:
    with opened(whole_stage) as socket:
        yield socket


def opened(stage: Stage) -> ClientConnection:
    return connect(f"{stage.url.replace('http', 'ws', 1)}/v1/responses")


def conforms(response: Any) -> None:
    """The resource has every required field, and what the SDK's types say."""
    missing = [name for name in REQUIRED if name not in response]
    assert missing == []
    for tool in response["tools"]:
        assert all(name in tool for name in OF_TOOLS if tool["type"] == "function")
    Response.model_validate(response)
    assert response["status"] == "completed"
    assert response["output"]


def post(http: httpx.Client, model: str, input: Any, **more: Any) -> Any:
    answer = http.post("/responses", json={"model": model, "input": input, **more})
    assert answer.status_code == 200, answer.text
    response = answer.json()
    conforms(response)
    return response


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **more}


@over_every_upstream
def test_basic_text_response(http: httpx.Client, model: str) -> None:
    response = post(http, model, [message("user", "Say hello in exactly 3 words.")])
    assert [item["type"] for item in response["output"]] == ["message"]


@over_every_upstream
def test_assistant_message_phase(http: httpx.Client, model: str) -> None:
    stated = message("assistant", [{"type": "output_text", "text": "Let me see."}], phase="commentary")
    done = message("assistant", [{"type": "output_text", "text": "It is 4."}], phase="final_answer")
    post(http, model, [message("user", "2 + 2?"), stated, done, message("user", "And 3 + 3?")])


@over_every_upstream
def test_response_output_phase_schema(http: httpx.Client, model: str) -> None:
    """A phase that the output has is one that the schema knows."""
    response = post(http, model, "Say hello.")
    phases = {item.get("phase") for item in response["output"] if item["type"] == "message"}
    assert phases <= {None, "commentary", "final_answer"}
    for phase in ("commentary", "final_answer"):
        output = [{**item, "phase": phase} for item in response["output"]]
        Response.model_validate({**response, "output": output})


@over_every_upstream
def test_streaming_response(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": [message("user", "Count from 1 to 5.")], "stream": True}
    lines = http.post("/responses", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for event in events:
        _EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    conforms(events[-1]["response"])


@over_every_upstream
def test_system_prompt(http: httpx.Client, model: str) -> None:
    post(http, model, [message("system", "You are a pirate."), message("user", "Say hello.")])


@over_every_upstream
def test_tool_calling(http: httpx.Client, model: str) -> None:
    tool = {
        "type": "function",
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": WEATHER_SCHEMA,
    }
    response = post(http, model, [message("user", "How is the weather in San Francisco?")], tools=[tool])
    assert "function_call" in [item["type"] for item in response["output"]]


@over_every_upstream
def test_image_input(http: httpx.Client, model: str) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
    post(http, model, [message("user", [{"type": "input_text", "text": "What do you see?"}, image])])


@over_every_upstream
def test_multi_turn_conversation(http: httpx.Client, model: str) -> None:
    stated = message("assistant", "Hello Alice!")
    post(http, model, [message("user", "My name is Alice."), stated, message("user", "What is my name?")])


@over_every_upstream
def test_compaction_endpoint(http: httpx.Client, model: str) -> None:
    compacted(http, model)


def compacted(http: httpx.Client, model: str) -> Any:
    stated = message("assistant", [{"type": "output_text", "text": "Noted."}], id="msg_1", status="completed")
    body = {"model": model, "input": [message("user", "The word is ember."), stated], "prompt_cache_key": "key"}
    answer = http.post("/responses/compact", json=body)
    assert answer.status_code == 200, answer.text
    resource = answer.json()
    assert resource["object"] == "response.compaction"
    assert {"id", "created_at", "output", "usage"} <= set(resource)
    assert "compaction" in [item["type"] for item in resource["output"]]
    return resource


def test_compaction_missing_required_model(http: httpx.Client) -> None:
    answer = http.post("/responses/compact", json={"input": [message("user", "Hi")]})
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["message"]


def ask(socket: ClientConnection, model: str, input: Any, **more: Any) -> Any:
    """Create a response and return its last event; every event must be one of the specification's."""
    socket.send(json.dumps({"type": "response.create", "model": model, "input": input, "store": False, **more}))
    while True:
        event = json.loads(socket.recv(60))
        _SOCKET_EVENTS.validate_python(event)
        if event["type"] in ENDS:
            return event


def ended(event: Any) -> Any:
    assert event["type"] == "response.completed"
    conforms(event["response"])
    return event["response"]


def not_found(event: Any) -> None:
    assert (event["type"], event["error"]["code"]) == ("error", "previous_response_not_found")


@over_every_upstream
def test_websocket_response(socket: ClientConnection, model: str) -> None:
    ended(ask(socket, model, "Say hello."))


@over_every_upstream
def test_websocket_sequential_responses(socket: ClientConnection, model: str) -> None:
    first, second = ended(ask(socket, model, "Say one.")), ended(ask(socket, model, "Say two."))
    assert first["id"] != second["id"]


@over_every_upstream
def test_websocket_continuation(socket: ClientConnection, model: str) -> None:
    first = ended(ask(socket, model, "Remember: copper."))
    second = ended(ask(socket, model, "Which word?", previous_response_id=first["id"]))
    assert second["previous_response_id"] == first["id"]


@over_every_upstream
def test_websocket_store_false_reconnect_recovery(whole_stage: Stage, socket: ClientConnection, model: str) -> None:
    first = ended(ask(socket, model, "Remember: copper."))
    with opened(whole_stage) as other:
        not_found(ask(other, model, "Which word?", previous_response_id=first["id"]))
        ended(ask(other, model, "Begin anew."))


@over_every_upstream
def test_websocket_missing_previous_response(socket: ClientConnection, model: str) -> None:
    not_found(ask(socket, model, "Hi", previous_response_id="resp_of_nobody"))


@over_every_upstream
def test_websocket_failed_continuation_evicts_cache(socket: ClientConnection, model: str) -> None:
    first = ended(ask(socket, model, "Remember: ember."))
    result = {"type": "function_call_output", "call_id": "call_of_nobody", "output": "x"}
    failed = ask(socket, model, [result], previous_response_id=first["id"])
    assert failed["type"] in ("error", "response.failed")
    not_found(ask(socket, model, "Which word?", previous_response_id=first["id"]))


@over_every_upstream
def test_websocket_compact_new_chain(http: httpx.Client, socket: ClientConnection, model: str) -> None:
    output = compacted(http, model)["output"]
    ended(ask(socket, model, [*output, message("user", "Which word?")]))
