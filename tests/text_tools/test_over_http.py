"""The configuration says that a model only writes text, or takes no system messages, and the gateway emulates both."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpResponse, body
from tests.laws.client_readers import outcome
from tests.stage import Player, gateway_config, served, upstream_config
from tests.text_tools.parsed import without_result_marks
from tests.upstreams.transport.faulty import Faulty, Peer, chunked, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.serve import serve
from toolgate.config import Config, ModelConfig, TargetConfig
from toolgate.config.settings import AllModelsTextPromptSettings
from toolgate.conversation.message import plain_text
from toolgate.http.listener import listening
from toolgate.testing import ScriptedModel

CALL = 'Let me see. <invoke name="calculator"><parameter name="expression">6*7</parameter></invoke>'
AT_OLLAMA = (TargetConfig(upstream="ollama", model="played"),)
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]
MODELS = (
    ModelConfig(name="plain", targets=AT_OLLAMA, tools="emulated", system="inject"),
    ModelConfig(name="begun", targets=AT_OLLAMA, tools="emulated", thinking="begun"),
    ModelConfig(name="unclosed", targets=AT_OLLAMA, tools="emulated", thinking="unclosed"),
    ModelConfig(name="any", targets=AT_OLLAMA, tools="emulated", syntax="auto"),
    ModelConfig(name="deaf", targets=AT_OLLAMA, system="inject"),
    ModelConfig(name="leaky", targets=AT_OLLAMA, promote=True),
)


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[str, Player]]:
    player = Player()
    with served(Toolgate(upstream_config(), {"played": player})) as upstream:
        config = gateway_config(upstream)
        with served(Toolgate(msgspec.structs.replace(config, models=MODELS))) as url:
            yield url, player


def ask(url: str, model: str, **more: Any) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "6*7?"}],
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, **more}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_a_model_that_only_writes_text_uses_server_tools(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel([CALL, "It is 42."])
    wants = {"tool_execution": "auto", "use_server_tools": ["calculator"]}
    answer = ask(url, "plain", **wants)
    assert answer["choices"][0]["message"]["content"] == "Let me see. \n\nIt is 42."
    first, second = player.scripted.requests
    assert (first.tools, [message.role for message in first.messages]) == ((), ["user"])
    assert "Be kind." in plain_text(first.messages[0].parts)
    assert "Result [SUCCESS]\n42" in without_result_marks(plain_text(second.messages[-1].parts))


def test_system_messages_of_a_model_that_takes_none_stand_in_the_users_text(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel(["42"])
    ask(url, "deaf")
    (message,) = player.scripted.requests[0].messages
    assert plain_text(message.parts).index("Be kind.") < plain_text(message.parts).index("6*7?")


def test_a_call_that_a_model_leaks_as_text_is_promoted_if_configured(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel([CALL])
    message = ask(url, "leaky", tools=TOOLS)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "calculator"


def test_a_model_setting_makes_the_text_start_inside_reasoning(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel(["Six times seven.</think>It is 42."])
    message = ask(url, "begun", tools=TOOLS)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Six times seven.", "It is 42.")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("model", "opened"), [("plain", "<think>"), ("begun", "")])
def test_thinking_between_marks_is_reasoning_in_an_answer_without_tools(
    stage: tuple[str, Player], client: str, stream: bool, model: str, opened: str
) -> None:
    url, player = stage
    written = f"It is <think>42</think>, <final_answer>so</final_answer>. {CALL}"
    player.scripted = ScriptedModel([f"{opened}Six times seven.</think>\n\n{written}"])
    answer = httpx.post(f"{url}{PATHS[client]}", json=body(client, model, stream, "6*7?"), timeout=120)
    found = outcome(client, stream, HttpResponse(answer.status_code, dict(answer.headers), answer.content))
    assert (found.reasoning, found.text) == ("Six times seven.", written)
    assert player.scripted.requests[0].tools == ()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_quotes_the_line_of_a_result_is_not_cut(
    stage: tuple[str, Player], client: str, stream: bool
) -> None:
    url, player = stage
    written = "A log looks so:\nResult [SUCCESS]\nabc"
    player.scripted = ScriptedModel([written])
    asked = {**body(client, "plain", stream, "Show me a log."), "tools": declared(client)}
    answer = httpx.post(f"{url}{PATHS[client]}", json=asked, timeout=120)
    found = outcome(client, stream, HttpResponse(answer.status_code, dict(answer.headers), answer.content))
    assert (found.text, found.calls) == (written, [])


def test_a_model_setting_makes_a_call_end_reasoning(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel([f"<think>Hm. {CALL}</think> Done."])
    message = ask(url, "unclosed", tools=TOOLS)["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["calculator"]


MISSHAPEN: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "a parameter that is never closed": (
        "plain",
        '<invoke name="calculator"><parameter name="expression">6*7</invoke>',
        {"expression": "6*7"},
    ),
    "a number that JSON does not have": (
        "plain",
        '<invoke name="calculator">{"expression": "6*7", "scale": NaN, "limit": -Infinity}</invoke>',
        {"expression": "6*7", "scale": "NaN", "limit": "-Infinity"},
    ),
    "an example in a fence of tildes": ("plain", f"~~~\n{CALL}\n~~~", None),
    "a mark of arguments with nothing behind it": ("any", "[TOOL_CALLS]calculator[ARGS]", {}),
}


def declared(client: str) -> list[dict[str, Any]]:
    """The calculator as a client of this dialect declares it."""
    function = TOOLS[0]["function"]
    match client:
        case "openai_responses":
            return [{"type": "function", **function}]  # type: ignore[dict-item]
        case "anthropic":
            return [{"name": "calculator", "input_schema": {"type": "object"}}]
        case _:
            return TOOLS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("model", "written", "arguments"), MISSHAPEN.values(), ids=MISSHAPEN)
def test_a_misshapen_call_is_a_whole_call_or_text(
    stage: tuple[str, Player], client: str, stream: bool, model: str, written: str, arguments: dict[str, Any] | None
) -> None:
    url, player = stage
    player.scripted = ScriptedModel([written] * 3)
    asked = body(client, model, stream, "6*7?", tools=declared(client))
    answer = httpx.post(f"{url}{PATHS[client]}", json=asked, timeout=120)
    found = outcome(client, stream, HttpResponse(answer.status_code, dict(answer.headers), answer.content))
    if arguments is None:
        assert (found.calls, found.text, found.reason) == ([], written, "stop")
    else:
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [("calculator", arguments)]
        assert found.reason == "tool_calls"
    assert len(player.scripted.requests) == 1


ONE_ANSWER = {
    "server tools": ({"tool_execution": "auto", "use_server_tools": ["calculator"]}, {}),
    "legacy functions": ({"functions": [{"name": "f", "parameters": {"type": "object"}}]}, {}),
    "whole arguments": ({"tools": TOOLS}, {"x-toolgate-arguments": "whole"}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "headers"), ONE_ANSWER.values(), ids=ONE_ANSWER)
async def test_several_answers_are_refused_where_only_one_would_arrive(
    stream: bool, fields: dict[str, Any], headers: dict[str, str]
) -> None:
    config = gateway_config("http://127.0.0.1:9")
    async with listening(Toolgate(config)) as url, httpx.AsyncClient(timeout=30) as client:
        asked = body("openai_chat", "openai_chat", stream, n=2, **fields)
        answer = await client.post(f"{url}{PATHS['openai_chat']}", json=asked, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_several_answers_of_a_model_that_leaks_calls_all_arrive(stream: bool) -> None:
    texts = ["One.", "Two."]
    if stream:
        deltas = [{"index": n, "delta": {"content": text}, "finish_reason": "stop"} for n, text in enumerate(texts)]
        lines = [json.dumps({"id": "c", "created": 1, "model": "m", "choices": [one]}) for one in deltas]
        sent = chunked(*[f"data: {line}\n\n".encode() for line in (*lines, "[DONE]")])
    else:
        messages = [{"role": "assistant", "content": text} for text in texts]
        choices = [{"index": n, "message": one, "finish_reason": "stop"} for n, one in enumerate(messages)]
        sent = whole(json.dumps({"id": "c", "created": 1, "model": "m", "choices": choices}).encode())

    async def play(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)

    model = ModelConfig(name="leaky", targets=(TargetConfig(upstream="openai_chat", model="played"),), promote=True)
    async with Faulty(play) as upstream:
        config = msgspec.structs.replace(gateway_config(f"http://127.0.0.1:{upstream.port}"), models=(model,))
        async with listening(Toolgate(config)) as url, httpx.AsyncClient(timeout=30) as client:
            asked = body("openai_chat", "leaky", stream, tools=TOOLS, n=2)
            answer = await client.post(f"{url}{PATHS['openai_chat']}", json=asked)
    assert [text for text in texts if text in answer.text] == texts


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        (
            ModelConfig(name="m", targets=AT_OLLAMA, tools="emulated", syntax="smoke"),
            AllModelsTextPromptSettings(),
            "no syntax is called",
        ),
        (
            ModelConfig(name="m", targets=AT_OLLAMA, tools="emulated"),
            AllModelsTextPromptSettings(rules=("none.md",)),
            "none.md",
        ),
    ],
)
def test_a_model_that_cannot_be_served_is_reported_at_the_start(
    model: ModelConfig,
    text: AllModelsTextPromptSettings,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config: Config = msgspec.structs.replace(gateway_config("http://127.0.0.1:9"), models=(model,), text=text)
    assert serve(config, config_path=None) == 2
    assert message in capsys.readouterr().err


def test_a_stale_result_is_left_out_for_a_model_that_only_writes_text(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel(["Well."])
    stale = {"role": "tool", "tool_call_id": "call_gone_0000000000000001", "content": "old"}
    user = {"role": "user", "content": "And?"}
    answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "plain", "messages": [user, stale, user]})
    assert (answer.status_code, "was ignored" in answer.headers["x-toolgate-warning"]) == (200, True)
