"""The editor's models, used by the official clients of all four APIs, in the real editor."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, body
from tests.clients.api_clients import API_CLIENTS, ApiClient
from tests.editor.gateways import Gateway, get, model_names
from tests.editor.window import Window, wait_until
from toolgate.config.settings import TimeoutSettings

MODEL = "vscode/scripted/mini"
IDLE_SECONDS = TimeoutSettings().idle
DIALECTS = ("chat", "responses", "plain_messages", "ollama")
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@pytest.fixture(params=[(dialect, stream) for dialect in DIALECTS for stream in (False, True)], ids=str)
def start_chat(request: pytest.FixtureRequest, gateway: Gateway) -> Any:
    """Opens a conversation with the lent model by one client, streamed or whole."""
    dialect, stream = request.param

    def talk(*own: str, **wants: Any) -> ApiClient:
        speaker: ApiClient = API_CLIENTS[dialect](gateway.stage, MODEL, stream, own, **wants)
        return speaker

    return talk


def test_lent_models_are_listed_with_their_window(window: Window, gateway: Gateway) -> None:
    names = model_names(gateway.url)
    assert "vscode/guarded/locked" in names
    assert not any("empty" in name or "copilotcli" in name or "toolgate" in name for name in names), names
    [listed] = [model for model in get(f"{gateway.url}/v1/models")["data"] if model["id"] == MODEL]
    assert listed["context_length"] >= 100_000
    assert window.run("return (await vscode.lm.selectChatModels({ vendor: 'toolgate' })).map(({ id }) => id)") == [
        "openai_chat",
        "openai_responses",
        "anthropic",
        "ollama",
        "text-only",
        "peer",
    ]


def test_text_arrives(window: Window, start_chat: Any) -> None:
    window.play([{"text": "Hello "}, {"text": "from the editor."}, {"usage": USAGE}])
    assert start_chat().ask("Hi").text == "Hello from the editor."
    [request] = window.requests
    assert request["messages"][-1] == {"role": 1, "parts": [{"text": "Hi"}]}


def test_one_tool_and_a_round_trip(window: Window, start_chat: Any) -> None:
    window.play(
        [{"text": "Let me read."}, {"call": "read", "id": "c1", "input": {"path": "a"}}], [{"text": "It is sunny."}]
    )
    talk = start_chat("read")
    turn = talk.ask("What does it say?")
    assert (turn.text, list(turn.calls)) == ("Let me read.", ["read"])
    assert talk.answer({turn.calls["read"]: "sunny"}).text == "It is sunny."
    first, second = window.requests
    assert first["tools"] == ["read"]
    results = [part for message in second["messages"] for part in message["parts"] if "result" in part]
    assert [part["parts"] for part in results] == [[{"text": "sunny"}]]


def test_several_tools_at_once(window: Window, start_chat: Any) -> None:
    calls = [{"call": name, "id": f"c-{name}", "input": {"path": name}} for name in ("read", "write")]
    window.play(calls, [{"text": "Both done."}])
    talk = start_chat("read", "write")
    turn = talk.ask("Do both.")
    assert sorted(turn.calls) == ["read", "write"]
    assert talk.answer({id: f"did {name}" for name, id in turn.calls.items()}).text == "Both done."
    results = [part for message in window.requests[1]["messages"] for part in message["parts"] if "result" in part]
    assert len(results) == 2


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def with_picture(client: str, data: str) -> dict[str, Any]:
    """A question about a picture in the client's dialect."""
    url = f"data:image/png;base64,{data}"
    content: Any = [{"type": "text", "text": "What is it?"}]
    match client:
        case "openai_chat":
            content.append({"type": "image_url", "image_url": {"url": url}})
        case "openai_responses":
            content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]
        case "anthropic":
            content.append({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
    asked = body(client, MODEL, False)
    [message] = asked["input" if client == "openai_responses" else "messages"]
    if client == "ollama":
        message["images"] = [data]
    else:
        message["content"] = content
    return asked


@pytest.mark.parametrize("client", CLIENTS)
def test_pictures_reach_the_model(window: Window, gateway: Gateway, client: str) -> None:
    window.play([{"text": "A pixel."}])
    response = httpx.post(gateway.url + PATHS[client], json=with_picture(client, PIXEL), timeout=60)
    assert response.status_code == 200, response.text
    parts = [part for message in window.requests[0]["messages"] for part in message["parts"]]
    assert {"mime": "image/png", "bytes": 70} in parts


def test_a_picture_that_the_editor_cannot_read_is_refused(window: Window, gateway: Gateway) -> None:
    response = httpx.post(gateway.url + PATHS["openai_chat"], json=with_picture("openai_chat", "AAAA"), timeout=60)
    assert response.status_code == 400, response.text
    assert window.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", CLIENTS)
def test_thinking_arrives_apart_from_the_text(window: Window, gateway: Gateway, client: str, stream: bool) -> None:
    window.play([{"thinking": "Let me think.", "id": "t1"}, {"text": "Done."}])
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000} if client == "anthropic" else {}
    asked = body(client, MODEL, stream, **({"think": True} if client == "ollama" else more))
    response = httpx.post(gateway.url + PATHS[client], json=asked, timeout=60)
    assert response.status_code == 200, response.text
    assert "Let me think." in response.text
    if not stream and client == "openai_chat":
        message = response.json()["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("Done.", "Let me think.")


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("read", "write")
]


def chat(gateway: Gateway, **more: Any) -> httpx.Response:
    """A request of Chat Completions to the lent model."""
    return httpx.post(gateway.url + PATHS["openai_chat"], json=body("openai_chat", MODEL, False, **more), timeout=60)


def test_a_forced_tool_is_forced_in_the_editor(window: Window, gateway: Gateway) -> None:
    window.play([{"call": "write", "id": "c1"}])
    choice = {"type": "function", "function": {"name": "write"}}
    answer = chat(gateway, tools=TOOLS, tool_choice=choice).json()["choices"][0]
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["write"]
    [request] = window.requests
    assert (request["tools"], request["toolMode"]) == (["write"], 2)


def test_any_of_several_tools_can_be_forced(window: Window, gateway: Gateway) -> None:
    window.play([{"forced": {"call": {"name": "read", "arguments": {}}}, "id": "c1"}])
    answer = chat(gateway, tools=TOOLS, tool_choice="required").json()["choices"][0]
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["read"]
    [request] = window.requests
    assert (len(request["tools"]), request["toolMode"]) == (1, 2)  # the editor takes one tool at most by force


def test_forbidden_tools_do_not_reach_the_model(window: Window, gateway: Gateway) -> None:
    answer = chat(gateway, tools=TOOLS, tool_choice="none").json()["choices"][0]
    assert answer["message"]["content"] == "Hello from the editor."
    assert window.requests[0]["tools"] == []


def test_usage_is_the_models_own(window: Window, gateway: Gateway) -> None:
    window.play([{"text": "Hello."}, {"usage": USAGE}])
    usage = chat(gateway).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (11, 7)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_leaves_cancels_the_request_in_the_editor(window: Window, gateway: Gateway, client: str) -> None:
    window.play([{"text": "One."}, {"hang": True}])
    asked = body(client, MODEL, True)
    with httpx.stream("POST", gateway.url + PATHS[client], json=asked, timeout=60) as response:
        next(response.iter_bytes())
        window.until("return state.requests.length === 1")
        left = time.time() * 1000
    # Nothing else cancels it: the gateway waits 60 s for more of an answer.
    cancelled = window.until("return state.requests[0].cancelled", seconds=IDLE_SECONDS / 2)
    print(f"cancelled {cancelled - left:.0f} ms after the client left")


@pytest.mark.parametrize(
    ("step", "status", "code"),
    [
        ({"error": "Message exceeds token limit."}, 400, "context_length_exceeded"),
        ({"error": "Slow down", "name": "ChatRateLimited"}, 429, None),
        ({"error": "Used up", "name": "ChatQuotaExceeded"}, 429, None),
    ],
)
def test_failures_of_the_model_keep_their_meaning(
    window: Window, gateway: Gateway, step: dict[str, Any], status: int, code: str | None
) -> None:
    window.play([step])
    response = chat(gateway)
    assert response.status_code == status, response.text
    if code:
        assert response.json()["error"]["code"] == code
    assert step["error"] in response.json()["error"]["message"]


def test_a_model_that_disappears_is_listed_no_longer(window: Window, gateway: Gateway) -> None:
    window.run("state.models = () => []; state.changed.fire()")
    try:
        wait_until(lambda: MODEL not in model_names(gateway.url))
    finally:
        window.run("state.models = undefined; state.changed.fire()")
    wait_until(lambda: MODEL in model_names(gateway.url))


@pytest.fixture
def capped(window: Window) -> Iterator[Window]:
    """The window, with a cap of two rounds for one request."""
    window.set("toolgate.lending.maxRoundsPerRequest", 2)
    yield window
    window.set("toolgate.lending.maxRoundsPerRequest", None)


def test_the_persons_cap_stops_a_loop_of_rounds(capped: Window, gateway: Gateway) -> None:
    capped.play([{"call": "add", "id": "c1", "input": {"a": 1, "b": 2}}])
    response = chat(gateway, tool_execution="auto", use_server_tools=["add"], max_tool_rounds=8)
    assert len(capped.requests) == 2
    assert "maxRoundsPerRequest" in response.text
    capped.toast("maxRoundsPerRequest").wait_for()
