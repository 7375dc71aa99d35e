"""Models whose row says that they only write text, or take no system messages: the configuration makes up for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.stage import Player, gateway_config, served, upstream_config
from tests.text.reading import unmarked
from toolgate.config import Config, Model, Target
from toolgate.config.settings import TextPrompts
from toolgate.conversation.message import plain_text
from toolgate.server.build import Toolgate, serve
from toolgate.testing import ScriptedModel

CALL = 'Let me see. <invoke name="calculator"><parameter name="expression">6*7</parameter></invoke>'
AT_OLLAMA = (Target(upstream="ollama", model="played"),)
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]
ROWS = (
    Model(name="plain", targets=AT_OLLAMA, tools="emulated", system="inject"),
    Model(name="begun", targets=AT_OLLAMA, tools="emulated", thinking="begun"),
    Model(name="unclosed", targets=AT_OLLAMA, tools="emulated", thinking="unclosed"),
    Model(name="deaf", targets=AT_OLLAMA, system="inject"),
    Model(name="leaky", targets=AT_OLLAMA, promote=True),
)


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[str, Player]]:
    player = Player()
    with served(Toolgate(upstream_config(), {"played": player})) as upstream:
        config = gateway_config(upstream)
        with served(Toolgate(msgspec.structs.replace(config, models=ROWS))) as url:
            yield url, player


def ask(url: str, model: str, **more: Any) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "6*7?"}],
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, **more}, timeout=20)
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
    assert "Result [SUCCESS]\n42" in unmarked(plain_text(second.messages[-1].parts))


def test_system_messages_of_a_model_that_takes_none_stand_in_the_users_text(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel(["42"])
    ask(url, "deaf")
    (message,) = player.scripted.requests[0].messages
    assert plain_text(message.parts).index("Be kind.") < plain_text(message.parts).index("6*7?")


def test_a_call_that_a_model_leaks_as_text_is_promoted_if_its_row_says_so(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel([CALL])
    message = ask(url, "leaky", tools=TOOLS)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "calculator"


def test_a_row_says_that_the_text_starts_inside_reasoning(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel(["Six times seven.</think>It is 42."])
    message = ask(url, "begun", tools=TOOLS)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Six times seven.", "It is 42.")


def test_a_row_says_that_a_call_may_end_reasoning(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel([f"<think>Hm. {CALL}</think> Done."])
    message = ask(url, "unclosed", tools=TOOLS)["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["calculator"]


@pytest.mark.parametrize(
    ("row", "text", "words"),
    [
        (Model(name="m", targets=AT_OLLAMA, tools="emulated", syntax="smoke"), TextPrompts(), "no syntax is called"),
        (Model(name="m", targets=AT_OLLAMA, tools="emulated"), TextPrompts(rules=("none.md",)), "none.md"),
    ],
)
def test_a_row_that_cannot_be_served_is_told_at_the_start(
    row: Model, text: TextPrompts, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: Config = msgspec.structs.replace(gateway_config("http://127.0.0.1:9"), models=(row,), text=text)
    assert serve(config, config_path=None) == 2
    assert words in capsys.readouterr().err


def test_a_stale_result_is_passed_over_for_a_model_that_only_writes_text(stage: tuple[str, Player]) -> None:
    url, player = stage
    player.scripted = ScriptedModel(["Well."])
    stale = {"role": "tool", "tool_call_id": "call_gone_0000000000000001", "content": "old"}
    user = {"role": "user", "content": "And?"}
    answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "plain", "messages": [user, stale, user]})
    assert (answer.status_code, "was ignored" in answer.headers["x-toolgate-warning"]) == (200, True)
