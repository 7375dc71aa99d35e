"""What is tried with every client over every upstream: a check for each feature, and a sentence where there is none to run.

A check plays a script on the upstream, asks through the client, and looks at both ends: what the client got and what the
model was asked.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest
from msgspec import Struct

from tests.clients.obliging import fill
from tests.clients.scenes import HELLO, ID1, LOOK_UP, LOOK_UP_TWICE, SUNNY, THOUGHT, WEATHER_SCHEMA, weather
from tests.conformance.clients import CLIENTS, Conversation, Responses, Tool, Wanted
from tests.conformance.sdks import SDK, PythonSDK, SDKError
from tests.conformance.stage import COLUMNS, TEXT, as_text
from tests.stage import Stage
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Media, Reasoning, ReasoningSignature, Text, ToolCall, ToolResult, plain_text
from toolgate.conversation.request import ModelRequest
from toolgate.testing import Entry, ScriptedModel

WEATHER = Tool("get_weather", WEATHER_SCHEMA)
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CLOCK = ModelResponse((ToolCall(ID1, "get_time", "{}"),), "tool_calls", Usage(20, 8))
NOON = ModelResponse((Text("It is noon."),), "stop", Usage(40, 4))
WRITE = ModelResponse((ToolCall(ID1, "write", "{}"),), "tool_calls", Usage(20, 8))
DONE = ModelResponse((Text("It is written."),), "stop", Usage(40, 4))


class Scene(Struct, frozen=True):
    """One client over one upstream, streamed or whole."""

    stage: Stage
    sdk: SDK
    client: str
    upstream: str
    stream: bool

    def play(self, *entries: Entry, **options: Any) -> ScriptedModel:
        """Put a script on the upstream; a model that only writes text gets its calls as text."""
        script = [as_text(entry) for entry in entries] if self.upstream == TEXT else entries
        return self.stage.play(*script, **options)

    def talk(self, **wanted: Any) -> Any:
        """A conversation that asks for this."""
        return self.conversation(Wanted(**wanted))

    def conversation(self, wanted: Wanted) -> Conversation:
        """A conversation in the client's API."""
        return CLIENTS[self.client](self.sdk, self.upstream, wanted, stream=self.stream)

    @property
    def native(self) -> bool:
        """Whether the upstream's API has tools."""
        return self.upstream != TEXT


def received(model: ScriptedModel, step: int = -1) -> str:
    """All texts and results of a request that reached the model."""
    parts = [part for message in model.requests[step].messages for part in message.parts]
    texts = [part.text for part in parts if isinstance(part, Text)]
    return "\n".join([*texts, *[plain_text(part.content) for part in parts if isinstance(part, ToolResult)]])


def text(scene: Scene) -> None:
    scene.play(HELLO)
    answer = scene.talk().ask("Hi")
    assert answer.text == "Hello from the model."
    assert answer.finish in ("stop", "completed", "end_turn")


def system_prompt(scene: Scene) -> None:
    model = scene.play(HELLO)
    scene.talk(system="Speak like a pirate.").ask("Hi")
    request = model.requests[0]
    assert "Speak like a pirate." in received(model)
    assert any(message.role == "system" for message in request.messages)


def one_tool(scene: Scene) -> None:
    model = scene.play(LOOK_UP)
    (call,) = scene.talk(tools=(WEATHER,)).ask("How is the weather?").calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    offered = [tool.name for tool in model.requests[0].tools]
    assert offered == (["get_weather"] if scene.native else [])


def parallel_tools(scene: Scene) -> None:
    model = scene.play(LOOK_UP_TWICE, SUNNY)
    talk = scene.talk(tools=(WEATHER,))
    calls = talk.ask("How is the weather?").calls
    assert [call.arguments["city"] for call in calls] == ["Paris", "Rome"]
    assert talk.answer([(call, weather(**call.arguments)) for call in calls]).text == "It is sunny."
    assert received(model).index("22 degrees in Paris") < received(model).index("22 degrees in Rome")


def round_trip(scene: Scene) -> None:
    model = scene.play(LOOK_UP, SUNNY)
    talk = scene.talk(tools=(WEATHER,))
    (call,) = talk.ask("How is the weather?").calls
    assert talk.answer([(call, weather(**call.arguments))]).text == "It is sunny."
    assert "22 degrees in Paris" in received(model)
    results = [part for m in model.requests[1].messages for part in m.parts if isinstance(part, ToolResult)]
    assert [result.name for result in results] == (["get_weather"] if scene.native else [])


def _obedient(request: ModelRequest) -> ModelResponse:
    """Fill the schema that the answer must have, or call the tool that must be called; else only talk."""
    if request.settings.output is not None:
        text = json.dumps(fill(request.settings.output.schema or {"type": "object"}, request))
        return ModelResponse((Text(text),), "stop", Usage(20, 8))
    if request.tool_choice is not None and request.tool_choice.mode == "required":
        tool = next(tool for tool in request.tools if tool.name in (request.tool_choice.names or (tool.name,)))
        arguments = json.dumps(fill(tool.input_schema or {"type": "object"}, request))
        return ModelResponse((ToolCall(ID1, tool.name, arguments),), "tool_calls", Usage(20, 8))
    return HELLO


def forced_tool(scene: Scene) -> None:
    scene.play(_obedient if scene.native else LOOK_UP)
    (call,) = scene.talk(tools=(WEATHER,), choice="required").ask("Hi").calls
    assert (call.name, set(call.arguments)) == ("get_weather", {"city"})


def forbidden_tools(scene: Scene) -> None:
    model = scene.play(HELLO)
    answer = scene.talk(tools=(WEATHER,), choice="none").ask("How is the weather?")
    assert (answer.text, answer.calls) == ("Hello from the model.", ())
    request = model.requests[0]
    assert not request.tools or (request.tool_choice is not None and request.tool_choice.mode == "none")


def json_mode(scene: Scene) -> None:
    scene.play(_obedient if scene.native else '{"name":"Ada"}')
    assert isinstance(json.loads(scene.talk(output="json").ask("Who? Answer as JSON.").text), dict)


def json_schema(scene: Scene) -> None:
    scene.play(_obedient if scene.native else '{"name":"Ada","age":36}')
    assert set(json.loads(scene.talk(output=PERSON).ask("Who?").text)) == {"name", "age"}


def _media(model: ScriptedModel) -> list[str]:
    return [part.kind for m in model.requests[0].messages for part in m.parts if isinstance(part, Media)]


def image(scene: Scene) -> None:
    model = scene.play(HELLO)
    answer = scene.talk(image=True).ask("What is it?")
    assert answer.text == "Hello from the model."
    assert _media(model) == ["image"]


def image_left_out(scene: Scene) -> None:
    model = scene.play(HELLO)
    answer = scene.talk(image=True).ask("What is it?")
    assert (answer.text, _media(model)) == ("Hello from the model.", [])
    assert "image" in answer.warnings


def document(scene: Scene) -> None:
    model = scene.play(HELLO)
    assert scene.talk(document=True).ask("What is it?").text == "Hello from the model."
    assert _media(model) == ["file"]


def document_left_out(scene: Scene) -> None:
    model = scene.play(HELLO)
    answer = scene.talk(document=True).ask("What is it?")
    assert (answer.text, _media(model)) == ("Hello from the model.", [])
    assert "file" in answer.warnings or "document" in answer.warnings


def reasoning(scene: Scene) -> None:
    scene.play(THOUGHT if scene.native else "<think>Let me think.</think>Done.")
    answer = scene.talk(tools=(WEATHER,)).ask("Hi")
    assert (answer.reasoning.strip(), answer.text.strip()) == ("Let me think.", "Done.")


SIGNATURES = {"anthropic": {"signature": "signature-1"}, "openai_responses": {"encrypted_content": "encrypted-1"}}


def signatures(scene: Scene) -> None:
    signature = ReasoningSignature(scene.upstream, SIGNATURES[scene.upstream])
    model = scene.play(
        (Reasoning("Let me think.", signature), ToolCall(ID1, "get_weather", '{"city":"Paris"}')), "Done."
    )
    talk = scene.talk(tools=(WEATHER,))
    (call,) = talk.ask("How is the weather?").calls
    talk.answer([(call, "sunny")])
    parts = [part for message in model.requests[1].messages for part in message.parts]
    (thought,) = [part for part in parts if isinstance(part, Reasoning)]
    assert thought.text == "Let me think."
    assert thought.signature is not None
    ((name, value),) = SIGNATURES[scene.upstream].items()
    assert (thought.signature.dialect, thought.signature.fields[name]) == (scene.upstream, value)


def stop_sequences(scene: Scene) -> None:
    def counting(request: ModelRequest) -> ModelResponse:
        text = "One two STOP three"
        return ModelResponse((Text(text.split("STOP")[0] if request.settings.stop else text),), "stop", Usage(12, 4))

    scene.play(counting)
    assert scene.talk(stop="STOP").ask("Count.").text.strip() == "One two"


def usage(scene: Scene) -> None:
    scene.play(HELLO)
    assert scene.talk().ask("Hi").usage == (12, 5)


def error_before(scene: Scene) -> None:
    scene.play(UpstreamUnavailable("The model is out of order.", status=503))
    with pytest.raises(SDKError, match="out of order") as caught:
        scene.talk().ask("Hi")
    assert caught.value.status == 503


def error_in_stream(scene: Scene) -> None:
    scene.play(
        [Text("Half an answer"), UpstreamUnavailable("The model is out of order.")], pace=partial(asyncio.sleep, 0.01)
    )
    with pytest.raises(SDKError, match="out of order"):
        scene.talk().ask("Hi")


def cancel(scene: Scene) -> None:
    class Endless:
        """Waits for ever after a few events."""

        def __init__(self) -> None:
            self.events = 0

        async def pace(self) -> None:
            self.events += 1
            if self.events > 4:
                await asyncio.sleep(0.01)
            if self.events > 3000:
                raise AssertionError("nobody stopped the model")

    model = scene.play("word " * 10_000, pace=Endless().pace)
    scene.talk().cancel("Write a book.")
    for _ in range(3000):
        if model.answers[-1].closed:
            break
        time.sleep(0.01)
    assert model.answers[-1].closed
    assert not model.answers[-1].complete


def server_tools(scene: Scene) -> None:
    model = scene.play(CLOCK, NOON)
    answer = scene.talk(server_tools=True).ask("What time is it?")
    assert answer.text.endswith("It is noon.")
    assert answer.calls == ()
    assert "noon" in received(model)


def approvals(scene: Scene) -> None:
    model = scene.play(WRITE, DONE)
    talk = scene.talk(server_tools=True)
    if isinstance(talk, Responses):
        (id,) = talk.ask("Write.").asked
        answer = talk.decide(id, approve=True)
    else:
        with ThreadPoolExecutor(1) as pool:
            approved = pool.submit(_approve, scene.stage.url)
            answer = talk.ask("Write.")
            approved.result(30)
    assert answer.text.endswith("It is written.")
    assert "written" in received(model)


def _approve(url: str) -> None:
    with httpx.Client(base_url=url) as http:
        for _ in range(3000):
            if waiting := http.get("/v1/approvals", params={"state": "pending"}).json()["data"]:
                http.post(f"/v1/approvals/{waiting[0]['id']}", json={"decision": "approve"}).raise_for_status()
                return
            threading.Event().wait(0.01)
    raise AssertionError("no approval was asked for")


def count_tokens(scene: Scene) -> None:
    assert isinstance(scene.sdk, PythonSDK)
    tools: Any = [{"name": WEATHER.name, "input_schema": WEATHER.schema}]
    messages: Any = [{"role": "user", "content": "How is the weather?"}]
    count = scene.sdk.anthropic().messages.count_tokens
    plain = count(model=scene.upstream, messages=messages).input_tokens
    assert 3 < plain < count(model=scene.upstream, messages=messages, tools=tools).input_tokens


def background(scene: Scene) -> None:
    assert isinstance(scene.sdk, PythonSDK)
    scene.play(HELLO)
    client = scene.sdk.openai()
    response = client.responses.create(model=scene.upstream, input="Hi", background=True)
    for _ in range(3000):
        if response.status not in ("queued", "in_progress"):
            break
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == ("completed", "Hello from the model.")


def resume(scene: Scene) -> None:
    assert isinstance(scene.sdk, PythonSDK)
    scene.play(HELLO)
    client = scene.sdk.openai()
    with client.responses.create(model=scene.upstream, input="Hi", background=True, stream=True) as stream:
        first: Any = next(iter(stream))
    with client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number) as rest:
        events: Any = list(rest)
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].response.output_text == "Hello from the model."


def websocket(scene: Scene) -> None:
    assert isinstance(scene.sdk, PythonSDK)
    scene.play(LOOK_UP, SUNNY)
    tools: Any = [{"type": "function", "name": WEATHER.name, "parameters": WEATHER.schema, "strict": True}]
    options: Any = {"model": scene.upstream, "tools": tools, "store": False}
    with scene.sdk.openai().responses.connect() as socket:
        socket.response.create(input="How is the weather?", **options)
        first: Any = next(event for event in socket if event.type == "response.completed")
        (call,) = [item for item in first.response.output if item.type == "function_call"]
        result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "22 degrees"}]
        socket.response.create(input=result, previous_response_id=first.response.id, **options)
        last: Any = next(event for event in socket if event.type == "response.completed")
    assert last.response.output_text == "It is sunny."


class Feature(Struct, frozen=True, kw_only=True):
    """A row of the matrix.

    `lacking` says of a client API, and `impossible` of an upstream, why there is nothing to try; `left_out` is what is tried
    where the upstream cannot take it, and must end in a warning; `python_only` features need more than one call.
    """

    title: str
    check: Callable[[Scene], None]
    ways: tuple[bool, ...] = (False, True)
    lacking: Mapping[str, str] = {}
    impossible: Mapping[str, str] = {}
    left_out: Callable[[Scene], None] | None = None
    warned: Mapping[str, str] = {}
    python_only: bool = False

    def reason(self, client: str, upstream: str, language: str) -> str | None:
        """Why this cell is not tried, if it is not."""
        if self.python_only and language != "python" and client not in self.lacking:
            return "Tried with the SDK of Python only: the SDK of Node takes the same path."
        return self.lacking.get(client) or self.impossible.get(upstream)

    def run(self, scene: Scene) -> None:
        """Try it."""
        if scene.upstream in self.warned and self.left_out is not None:
            self.left_out(scene)
        else:
            self.check(scene)


_RESPONSES_ONLY = {
    "chat": "Only the Responses API has it.",
    "messages": "Only the Responses API has it.",
    "ollama": "Only the Responses API has it.",
}
_OLLAMA_CHOICE = {"ollama": "Ollama's API has no tool choice."}
FEATURES: dict[str, Feature] = {
    "text": Feature(title="text, whole", check=text, ways=(False,)),
    "streaming": Feature(title="text, streamed", check=text, ways=(True,)),
    "system": Feature(title="system prompt", check=system_prompt),
    "tool": Feature(title="one tool call", check=one_tool),
    "parallel": Feature(title="parallel tool calls", check=parallel_tools),
    "round_trip": Feature(title="round trip with the tool's result", check=round_trip),
    "forced": Feature(title="forced tool", check=forced_tool, lacking=_OLLAMA_CHOICE),
    "forbidden": Feature(title="forbidden tools", check=forbidden_tools, lacking=_OLLAMA_CHOICE),
    "json_mode": Feature(
        title="JSON mode", check=json_mode, lacking={"messages": "Anthropic's API has JSON Schemas, no JSON mode."}
    ),
    "json_schema": Feature(title="JSON Schema", check=json_schema),
    "image": Feature(
        title="images",
        check=image,
        left_out=image_left_out,
        warned={TEXT: "A text model sees no image: it is left out with a warning."},
    ),
    "document": Feature(
        title="documents",
        check=document,
        lacking={"ollama": "Ollama's API has no documents."},
        left_out=document_left_out,
        warned={
            "ollama": "Ollama's API has no documents: they are left out with a warning.",
            TEXT: "A text model reads no document: it is left out with a warning.",
        },
    ),
    "reasoning": Feature(title="reasoning shown", check=reasoning),
    "signatures": Feature(
        title="reasoning returned with its signature",
        check=signatures,
        lacking={"ollama": "Ollama's API has no place for signatures."},
        impossible={
            "openai_chat": "A Chat upstream signs no reasoning.",
            "ollama": "An Ollama upstream signs no reasoning.",
            TEXT: "A text model signs no reasoning.",
        },
    ),
    "stop": Feature(
        title="stop sequences", check=stop_sequences, lacking={"responses": "The Responses API has no stop sequences."}
    ),
    "usage": Feature(title="token usage", check=usage),
    "error": Feature(title="error before the first byte", check=error_before),
    "error_in_stream": Feature(title="error in the middle of a stream", check=error_in_stream, ways=(True,)),
    "cancel": Feature(title="a client that leaves stops the model", check=cancel, ways=(True,)),
    "server_tools": Feature(title="tools that the server runs", check=server_tools),
    "approvals": Feature(title="a tool that a person approves", check=approvals),
    "count_tokens": Feature(
        title="count tokens",
        check=count_tokens,
        ways=(False,),
        python_only=True,
        lacking={
            "chat": "The Chat API counts no tokens.",
            "responses": "Its counting endpoint is not offered.",
            "ollama": "Ollama's API counts no tokens.",
        },
    ),
    "background": Feature(
        title="background response", check=background, ways=(False,), lacking=_RESPONSES_ONLY, python_only=True
    ),
    "resume": Feature(title="resumed stream", check=resume, ways=(True,), lacking=_RESPONSES_ONLY, python_only=True),
    "websocket": Feature(title="WebSocket", check=websocket, ways=(True,), lacking=_RESPONSES_ONLY, python_only=True),
}
LANGUAGES = ("python", "node")


class Cell(Struct, frozen=True):
    """One client over one upstream with one feature."""

    language: str
    client: str
    upstream: str
    feature: str

    @property
    def reason(self) -> str | None:
        """Why it is not tried, if it is not."""
        return FEATURES[self.feature].reason(self.client, self.upstream, self.language)

    @property
    def id(self) -> str:
        """The name of its tests."""
        return f"{self.language}-{self.client}-{self.upstream}-{self.feature}"


CELLS = [
    Cell(language, client, upstream, feature)
    for language in LANGUAGES
    for client in CLIENTS
    for feature in FEATURES
    for upstream in COLUMNS
]
