"""The official clients over a model that only writes text: their tool loops pass as they are, streamed and whole.

U3, T1, T3, T7
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ollama
import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.clients import test_anthropic as messages
from tests.clients import test_ollama as ollama_chat
from tests.clients import test_openai_chat as chat
from tests.clients import test_openai_responses as responses
from tests.clients.scenes import WEATHER_SCHEMA
from tests.stage import MEMORY, QUIET, Player, served
from tests.text_tools.parsed import without_result_marks
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, ModelConfig, TargetConfig
from toolgate.config.settings import ServerSettings
from toolgate.conversation.message import ToolCall, plain_text
from toolgate.conversation.request import ToolDef
from toolgate.testing import Entry, ScriptedModel
from toolgate.text_tools.emulation.model import EmulatedModel
from toolgate.text_tools.syntaxes import syntax

SYNTAXES = ("invoke", "hermes", "pythonic")
WEATHER = {"get_weather": ToolDef("get_weather", None, WEATHER_SCHEMA)}
NO_TOOL = "It is sunny."


class Hall:
    """A gateway whose one model for each syntax writes what is played."""

    def __init__(self, url: str, player: Player) -> None:
        self.url = url
        self._player = player

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put on a script."""
        self._player.scripted = ScriptedModel(entries, **options)
        return self._player.scripted


@pytest.fixture(scope="module")
def hall() -> Iterator[Hall]:
    player = Player()
    config = Config(
        server=ServerSettings(port=0),
        models=tuple(
            [ModelConfig(name=name, targets=(TargetConfig(upstream=BUILTIN, model=name),)) for name in SYNTAXES]
        ),
        storage=MEMORY,
        log=QUIET,
    )
    with served(Toolgate(config, {name: EmulatedModel(player, syntax=name) for name in SYNTAXES})) as url:
        yield Hall(url, player)


def written(model: str, *cities: str) -> str:
    """Calls for these cities, as the model writes them."""
    calls = [ToolCall(f"call_{number}", "get_weather", f'{{"city":"{city}"}}') for number, city in enumerate(cities)]
    return syntax(model).render(calls, WEATHER)


def over_chat(hall: Hall, model: str, stream: bool) -> str:
    with OpenAI(base_url=f"{hall.url}/v1", api_key="unused", max_retries=0) as client:
        return chat.run_tools(client, model, stream)


def over_responses(hall: Hall, model: str, stream: bool) -> str:
    with OpenAI(base_url=f"{hall.url}/v1", api_key="unused", max_retries=0) as client:
        return responses.run_tools(client, model, stream, chained=stream)


def over_messages(hall: Hall, model: str, stream: bool) -> str:
    with Anthropic(base_url=hall.url, api_key="unused", max_retries=0) as client:
        return messages.run_tools(client, model, stream)


def over_ollama(hall: Hall, model: str, stream: bool) -> str:
    with ollama.Client(host=hall.url) as client:
        return ollama_chat.run_tools(client, model, stream)


Loop = Callable[[Hall, str, bool], str]
in_every_loop = pytest.mark.parametrize("loop", [over_chat, over_responses, over_messages, over_ollama])
in_every_syntax = pytest.mark.parametrize("model", SYNTAXES)
both_ways = pytest.mark.parametrize("stream", [True, False])


def response(model: ScriptedModel) -> list[tuple[str, str]]:
    """The last conversation that the model saw: who said what."""
    return [(message.role, plain_text(message.parts)) for message in model.requests[-1].messages]


@in_every_loop
@in_every_syntax
@both_ways
def test_a_tool_round_trip(hall: Hall, loop: Loop, model: str, stream: bool) -> None:
    call = written(model, "Paris")
    scripted = hall.play(f"Let me look.\n{call}", NO_TOOL)
    assert loop(hall, model, stream) == NO_TOOL
    asked, output, (role, result) = response(scripted)
    assert asked[1].endswith("How is the weather?")
    assert output == ("assistant", f"Let me look.\n{call}")
    assert (role, without_result_marks(result)) == (
        "user",
        'Tool Call: get_weather({"city":"Paris"})\nResult [SUCCESS]\n22 degrees in Paris',
    )
    assert all(request.tools == () for request in scripted.requests)


@in_every_loop
@both_ways
def test_parallel_calls(hall: Hall, loop: Loop, stream: bool) -> None:
    scripted = hall.play(written("invoke", "Paris", "Rome"), NO_TOOL)
    assert loop(hall, "invoke", stream) == NO_TOOL
    _, _, (_, results) = response(scripted)
    assert "22 degrees in Paris\n---\nTool Call: get_weather" in without_result_marks(results)
    assert without_result_marks(results).endswith("22 degrees in Rome")


@in_every_loop
@both_ways
def test_a_chain_of_three_rounds(hall: Hall, loop: Loop, stream: bool) -> None:
    scripted = hall.play(*[written("invoke", city) for city in ("Paris", "Rome", "Oslo")], NO_TOOL)
    assert loop(hall, "invoke", stream) == NO_TOOL
    roles = [role for role, _ in response(scripted)]
    assert roles == ["user", "assistant"] * 3 + ["user"]
    assert "22 degrees in Oslo" in response(scripted)[-1][1]


class Pen:
    """Lets a model write so many pieces, and the rest when it is told to; `late` if nobody did in time."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._go_on = threading.Event()
        self.late = False

    async def pace(self) -> None:
        self._pieces -= 1
        if self._pieces == 0:
            self.late = not await asyncio.to_thread(self._go_on.wait, 10)

    def go_on(self) -> None:
        self._go_on.set()


def first_of_chat(hall: Hall) -> Iterator[str]:
    with OpenAI(base_url=f"{hall.url}/v1", api_key="unused", max_retries=0) as client:
        for chunk in client.chat.completions.create(model="invoke", messages=chat.ASK, tools=chat.TOOLS, stream=True):
            for call in (chunk.choices[0].delta.tool_calls if chunk.choices else None) or ():
                yield (call.function.arguments if call.function else None) or ""


def first_of_responses(hall: Hall) -> Iterator[str]:
    with (
        OpenAI(base_url=f"{hall.url}/v1", api_key="unused", max_retries=0) as client,
        client.responses.stream(model="invoke", input="Hi", tools=responses.TOOLS) as stream,
    ):
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                yield event.delta


def first_of_messages(hall: Hall) -> Iterator[str]:
    with (
        Anthropic(base_url=hall.url, api_key="unused", max_retries=0) as client,
        client.messages.stream(model="invoke", max_tokens=100, messages=messages.ASK, tools=messages.TOOLS) as stream,
    ):
        for event in stream:
            if event.type == "input_json":
                yield event.partial_json


@pytest.mark.parametrize("arguments", [first_of_chat, first_of_responses, first_of_messages])
def test_the_first_arguments_arrive_while_the_model_still_writes_the_call(
    hall: Hall, arguments: Callable[[Hall], Iterator[str]]
) -> None:
    """field: F30"""
    city = "Paris " * 40
    pen = Pen(20)
    hall.play(written("invoke", city), NO_TOOL, pace=pen.pace)
    response = ""
    for piece in arguments(hall):
        response += piece
        if response:
            pen.go_on()
    assert not pen.late, "the arguments came only when the call was complete"
    assert response.count("Paris") == 40


EDITOR = (
    "<attachments>\n</attachments>\n<context>\nThe time is now.\n</context>\n<userRequest>\nFix it.\n</userRequest>\n"
)


def test_an_editors_agent_gets_its_calls_and_its_errors_are_reported_as_such(hall: Hall) -> None:
    """spec: V3, T1: as the editor sends it, with a picture in a message of its own and dozens of tools."""
    tools: Any = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": "Does it.", "parameters": WEATHER_SCHEMA}}
        for n in range(43)
    ]
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "media_type": "image/png"},
    }
    history: Any = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": EDITOR},
        {"role": "user", "content": [picture]},
        {"role": "assistant", "content": "", "tool_calls": [_call("c1", "tool_7")]},
        {"role": "tool", "tool_call_id": "c1", "content": "ERROR while calling tool: no such file"},
    ]
    scripted = hall.play(written("invoke", "Rome").replace("get_weather", "tool_42"))
    with OpenAI(base_url=f"{hall.url}/v1", api_key="unused", max_retries=0) as client:
        options: Any = {"temperature": 0.1, "top_p": 1, "n": 1, "stream_options": {"include_usage": True}}
        answer = client.chat.completions.with_raw_response.create(
            model="invoke", messages=history, tools=tools, stream=True, **options
        )
        chunks = list(answer.parse())
    names = [call.function.name for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or ()]
    assert [name for name in names if name] == ["tool_42"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens > 1000
    assert "image content was left out" in answer.headers["x-toolgate-warning"]
    (_, asked), _, (_, result) = response(scripted)
    assert asked.startswith("<system_context>\nYou are an agent.\n</system_context>")
    assert f"{EDITOR}\n\n[image (image/png) left out: this model reads text only]" in asked
    assert "## tool_42\n" in asked
    assert (
        without_result_marks(result)
        == 'Tool Call: tool_7({"city":"Paris"})\nResult [ERROR]\nERROR while calling tool: no such file'
    )


def _call(id: str, name: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": '{"city":"Paris"}'}}
