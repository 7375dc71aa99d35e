"""Law: whatever a model does wrong, its client gets a well-formed answer or a clear error, never 500 and never nothing.

Every fault below is answered once and then put right, or for ever, by native models in all four upstream dialects and by an
emulated one, streamed and whole, with the client's tools and with the server's, to clients of all four dialects. Requests
and answers pass real sockets; what arrives is read by the official clients' own types.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from msgspec import Struct
from ollama import ChatResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, HttpResponse, body
from tests.stage import UPSTREAMS, Player, gateway_config, in_a_thread, upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import ModelConfig, TargetConfig
from toolgate.conversation.arguments import is_object
from toolgate.conversation.events import ModelResponse
from toolgate.conversation.message import Text, ToolCall
from toolgate.http.listener import listening
from toolgate.testing import FakeSource, FakeTool, ScriptedModel

NAME = "get_weather"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
RIGHT = '{"city":"Paris"}'
WORDS = "It is sunny."
EMULATED, PROMOTED = "emulated", "promoted"
HANGING = 60
"""Seconds after which a request is taken for one that hangs; none comes near."""

ScriptedAnswer = ModelResponse | str


class Fault(Struct, frozen=True):
    """Something that a model does wrong: as a native model does it and as one that writes text, and when it counts.

    `choice` is what the client wants of the answer, `calls` says that the right answer is a call.
    """

    native: ScriptedAnswer
    text: str
    choice: str = "auto"
    calls: bool = False


def native_call(arguments: str, name: str = NAME) -> ModelResponse:
    return ModelResponse((ToolCall("call_000000000000000000000001", name, arguments),), "tool_calls")


def written(arguments: str, name: str = NAME) -> str:
    return f'<invoke name="{name}">{arguments}</invoke>'


FAULTS = {
    "unknown tool": Fault(native_call("{}", "no_such_tool"), written("{}", "no_such_tool")),
    "unknown tool in words": Fault(
        ModelResponse((Text("See."), *native_call("{}", "no_such_tool").parts), "tool_calls"),
        "See. " + written("{}", "no_such_tool"),
    ),
    "broken json": Fault(native_call('{"city": "Paris", ,}'), written('{"city": "Paris", ,}')),
    "no object": Fault(native_call('["Paris"]'), written('["Paris"]')),
    "no arguments": Fault(native_call(""), f'<invoke name="{NAME}"/>'),
    "wrong types": Fault(native_call('{"city":5,"days":"x"}'), written('{"city":5,"days":"x"}')),
    "missing required": Fault(native_call("{}"), written("{}")),
    "prose for a call": Fault(WORDS, WORDS, "required", calls=True),
    "a call for prose": Fault(native_call(RIGHT), written(RIGHT), "none"),
    "repetition": Fault(native_call(RIGHT), written(RIGHT)),
    "repeated words": Fault("and so on " * 50, "and so on " * 50, "required", calls=True),
    "empty": Fault(ModelResponse((), "stop"), ""),
    "empty where a call is required": Fault(ModelResponse((), "stop"), "", "required", calls=True),
    "blank": Fault(" \n", " \n"),
    "half a call": Fault(native_call('{"city":"Par'), f'<invoke name="{NAME}"><parameter name="city">Par'),
    "half a call where one is required": Fault(
        native_call('{"city":"Par'), f'<invoke name="{NAME}">{{"city":"Par', "required", calls=True
    ),
    "half a mark": Fault(native_call("{"), f'<invoke name="{NAME}'),
    "half a character": Fault(native_call(r'{"city":"\ud83d"}'), written(r'{"city":"\ud83d"}')),
    "made-up results": Fault(WORDS, "Result [SUCCESS]\nIt is sunny."),
}


class Told(Struct):
    """What a client makes of an answer."""

    text: str = ""
    calls: list[tuple[str, str]] = []
    reason: str | None = None
    error: str | None = None


class Place(Struct):
    """The gateway, and the model behind it."""

    url: str
    player: Player


@asynccontextmanager
async def _opened() -> AsyncIterator[Place]:
    player = Player()
    tool = FakeTool(NAME, lambda arguments: WORDS, input_schema=SCHEMA)
    target = TargetConfig(upstream="openai_chat", model="played")
    emulated = ModelConfig(name=EMULATED, targets=(target,), retries=0, tools="emulated")
    promoted = ModelConfig(name=PROMOTED, targets=(target,), retries=0, promote=True)
    async with listening(Toolgate(upstream_config(), {"played": player})) as upstream:
        config = gateway_config(upstream)
        config = msgspec.structs.replace(config, models=(*config.models, emulated, promoted))
        async with listening(Toolgate(config, sources=(FakeSource(tool),))) as url:
            yield Place(url, player)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with in_a_thread(_opened()) as opened:
        yield opened


def asked(client: str, model: str, stream: bool, own: bool, choice: str) -> dict[str, Any]:
    """A request of this client that offers its own tool, or wants the server's."""
    more: dict[str, Any] = {}
    if own:
        function = {"name": NAME, "description": "Tells the weather.", "parameters": SCHEMA}
        match client:
            case "openai_responses":
                more["tools"] = [{"type": "function", **function}]
            case "anthropic":
                more["tools"] = [{"name": NAME, "description": "Tells the weather.", "input_schema": SCHEMA}]
            case _:
                more["tools"] = [{"type": "function", "function": function}]
    else:
        more |= {"tool_execution": "auto", "use_server_tools": [NAME]}
    if choice != "auto" and client != "ollama":
        more["tool_choice"] = {"type": choice.replace("required", "any")} if client == "anthropic" else choice
    return body(client, model, stream, "How is the weather?", **more)


def script(fault: Fault, model: str, puts_right: bool) -> ScriptedModel:
    """A model that makes the mistake once and then answers well, or that makes it for ever."""
    wrong: ScriptedAnswer = fault.text if model == EMULATED else fault.native
    if not puts_right:
        return ScriptedModel(itertools.repeat(wrong))
    right: ScriptedAnswer = (written(RIGHT) if model == EMULATED else native_call(RIGHT)) if fault.calls else WORDS
    return ScriptedModel(itertools.chain([wrong, right], itertools.repeat(WORDS)))


_chat_chunk = TypeAdapter(ChatCompletionChunk).validate_python
_responses_event: Callable[[Any], Any] = TypeAdapter(ResponseStreamEvent).validate_python
_anthropic_event: Callable[[Any], Any] = TypeAdapter(BetaRawMessageStreamEvent).validate_python


def emitted(client: str, stream: bool, received: HttpResponse) -> Told:
    """The answer as the client's own types read it."""
    if received.status != 200:
        return Told(error=_error(client, received.json))
    return (_STREAMED if stream else _WHOLE)[client](received)


def _error(client: str, found: Any) -> str:
    error = found["error"]
    message = error if client == "ollama" else error["message"]
    assert isinstance(message, str)
    assert message
    if client == "anthropic":
        assert found["type"] == "error"
        assert error["type"]
    return message


def _chat_whole(received: HttpResponse) -> Told:
    choice = ChatCompletion.model_validate(received.json).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]  # type: ignore[union-attr]
    return Told(choice.message.content or "", calls, choice.finish_reason)


def _data(received: HttpResponse) -> list[str]:
    assert not received.cut
    lines = received.body.decode().split("\n")
    return [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]


def _chat_streamed(received: HttpResponse) -> Told:
    frames, found, calls = _data(received), Told(), dict[int, list[str]]()
    assert frames[-1] == "[DONE]"
    for frame in frames[:-1]:
        if "error" in (value := json.loads(frame)):
            return Told(error=_error("openai_chat", value))
        for choice in _chat_chunk(value).choices:
            found.text += choice.delta.content or ""
            found.reason = choice.finish_reason or found.reason
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                known = calls.setdefault(call.index, ["", ""])
                known[0] += call.function.name or ""
                known[1] += call.function.arguments or ""
    found.calls = [(name, arguments) for name, arguments in calls.values()]
    return found


def _response(value: Any) -> Told:
    response = Response.model_validate(value)
    if response.status == "failed":
        assert response.error is not None
        return Told(error=response.error.message)
    calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
    details = response.incomplete_details
    return Told(response.output_text, calls, details.reason if details else response.status)


def _responses_whole(received: HttpResponse) -> Told:
    return _response(received.json)


def _responses_streamed(received: HttpResponse) -> Told:
    for frame in _data(received):
        if frame == "[DONE]":
            break
        value = json.loads(frame)
        event = _responses_event(value)
        if event.type == "error":
            return Told(error=event.message)
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            return _response(value["response"])
    raise AssertionError(f"the stream has no end: {received.body[-300:]!r}")


def _anthropic_whole(received: HttpResponse) -> Told:
    message = BetaMessage.model_validate(received.json)
    found = Told(reason=message.stop_reason)
    for block in message.content:
        match block.type:
            case "text":
                found.text += block.text or ""
            case "tool_use":
                found.calls.append((block.name, json.dumps(block.input)))
    return found


def _anthropic_streamed(received: HttpResponse) -> Told:
    found, names, arguments, ended = Told(), dict[int, str](), dict[int, str](), False
    for frame in _data(received):
        if (value := json.loads(frame))["type"] == "error":
            return Told(error=_error("anthropic", value))
        if value["type"] == "ping":
            continue
        match value["type"]:
            case "content_block_start" if value["content_block"]["type"] == "tool_use":
                names[value["index"]] = value["content_block"]["name"]
            case "content_block_delta" if value["delta"]["type"] == "input_json_delta":
                arguments[value["index"]] = arguments.get(value["index"], "") + value["delta"]["partial_json"]
            case "content_block_delta" if value["delta"]["type"] == "text_delta":
                found.text += value["delta"]["text"]
            case "message_delta":
                found.reason = value["delta"]["stop_reason"]
            case "message_stop":
                ended = True
        _anthropic_event(value)
    assert ended
    found.calls = [(name, arguments.get(index) or "{}") for index, name in names.items()]
    assert all(isinstance(json.loads(text), dict) for index, text in arguments.items() if index not in names)
    return found


def _ollama_whole(received: HttpResponse) -> Told:
    response = ChatResponse.model_validate(received.json)
    assert response.done
    calls = [(call.function.name, json.dumps(call.function.arguments)) for call in response.message.tool_calls or ()]
    return Told(response.message.content or "", calls, response.done_reason)


def _ollama_streamed(received: HttpResponse) -> Told:
    found, response = Told(), None
    for line in received.body.splitlines():
        if "error" in (value := json.loads(line)):
            return Told(error=_error("ollama", value))
        response = ChatResponse.model_validate(value)
        found.text += response.message.content or ""
        found.calls += [
            (call.function.name, json.dumps(call.function.arguments)) for call in response.message.tool_calls or ()
        ]
    assert response is not None
    assert response.done
    found.reason = response.done_reason
    return found


_WHOLE: dict[str, Callable[[HttpResponse], Told]] = {
    "openai_chat": _chat_whole,
    "openai_responses": _responses_whole,
    "anthropic": _anthropic_whole,
    "ollama": _ollama_whole,
}
_STREAMED: dict[str, Callable[[HttpResponse], Told]] = {
    "openai_chat": _chat_streamed,
    "openai_responses": _responses_streamed,
    "anthropic": _anthropic_streamed,
    "ollama": _ollama_streamed,
}
_CUT = frozenset({"length", "max_output_tokens", "max_tokens"})
_TEXT_ARGUMENTS = ("openai_chat", "openai_responses")
"""Clients that take arguments as text, which by their documentation need not be JSON."""


def warnings(received: HttpResponse) -> str:
    """What the answer warns of, in its headers or in the stream."""
    late = [line for line in received.body.decode().splitlines() if "toolgate-warning" in line or '"warning"' in line]
    return "; ".join([received.headers.get("x-toolgate-warning", ""), *late])


def complaint(client: str, own: bool, found: Told, received: HttpResponse) -> str | None:
    """What is wrong with an answer, if anything is."""
    if received.status == 500:
        return "an internal error"
    if found.error is not None:
        return "an internal error" if "internal error" in found.error else None
    if not own and found.calls:
        return f"the server's calls are left to the client: {found.calls}"
    if client not in _TEXT_ARGUMENTS and found.reason not in _CUT:
        for name, arguments in found.calls:
            if not is_object(arguments):
                return f"the arguments of {name} are no object: {arguments}"
    if found.text.strip() or found.calls or found.reason in _CUT:
        return None
    if "empty answer" in warnings(received):
        return None
    return "an empty success"


async def judged(caller: HttpConnection, client: str, stream: bool, own: bool, request: dict[str, Any]) -> str | None:
    await caller.post(PATHS[client], request)
    received = await caller.response()
    try:
        wrong = complaint(client, own, emitted(client, stream, received), received)
    except Exception as error:  # noqa: BLE001  # whatever the client's types say is a finding
        wrong = f"{type(error).__name__}: {str(error)[:300]}"
    return wrong and f"{wrong}\n    {received.status} {received.body[-600:]!r}"


@pytest.mark.parametrize("puts_right", [True, False], ids=["once", "for ever"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_client_gets_an_answer_or_an_error_whatever_its_model_does(
    place: Place, name: str, puts_right: bool
) -> None:
    findings: list[str] = []
    combinations = itertools.product(CLIENTS, (*UPSTREAMS, EMULATED), (False, True), (False, True))
    async with asyncio.timeout(HANGING):
        for client, model, stream, own in combinations:
            place.player.scripted = script(FAULTS[name], model, puts_right)
            async with HttpConnection(place.url) as caller:
                wrong = await judged(
                    caller, client, stream, own, asked(client, model, stream, own, FAULTS[name].choice)
                )
            if wrong:
                case = f"{client} over {model}, {'streamed' if stream else 'whole'}, {'own' if own else 'server'} tools"
                findings.append(f"{case}: {wrong}")
    assert not findings, f"{len(findings)} findings\n" + "\n".join(findings)


def replayed(client: str, model: str, arguments: str) -> dict[str, Any]:
    """A request whose history holds a call with these arguments, as a client of this dialect has received it."""
    request = body(client, model, False, "How is the weather?")
    id = "call_000000000000000000000001"
    found: Any = msgspec.json.decode(arguments) if is_object(arguments) else {"INVALID_JSON": arguments}
    match client:
        case "openai_responses":
            call: dict[str, Any] = {"type": "function_call", "call_id": id, "name": NAME, "arguments": arguments}
            request["input"] += [call, {"type": "function_call_output", "call_id": id, "output": "No."}]
        case "anthropic":
            call = {"type": "tool_use", "id": id, "name": NAME, "input": found}
            result = {"type": "tool_result", "tool_use_id": id, "content": "No."}
            request["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        case "ollama":
            call = {"id": id, "function": {"name": NAME, "arguments": found}}
            request["messages"] += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": NAME, "content": "No."},
            ]
        case _:
            call = {"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}}
            request["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": id, "content": "No."},
            ]
    return request


@pytest.mark.parametrize("upstream", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_malformed_arguments_of_a_history_reach_the_upstream_as_an_object(
    place: Place, client: str, upstream: str
) -> None:
    for arguments in ('{"city": ,}', '["Paris"]', '{"city":"Par', r'{"city":"\ud83d"}', ""):
        place.player.scripted = ScriptedModel([WORDS])
        async with HttpConnection(place.url) as caller:
            await caller.post(PATHS[client], replayed(client, upstream, arguments))
            received = await caller.response()
        assert received.status == 200, received.body
        (request,) = place.player.scripted.requests
        calls = [part for message in request.messages for part in message.parts if isinstance(part, ToolCall)]
        assert [is_object(call.arguments) for call in calls] == [True], arguments
        assert r"\ud83d" not in calls[0].arguments


SPELLINGS = ["Get_Weather", "getWeather", "get-weather", "GET.WEATHER", "get weather"]


@pytest.mark.parametrize("model", [*UPSTREAMS, EMULATED, PROMOTED])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_tool_may_be_called_by_another_spelling_of_its_name(place: Place, client: str, model: str) -> None:
    for number, (stream, own) in enumerate(itertools.product((False, True), (False, True))):
        spelling = SPELLINGS[number]
        called: ScriptedAnswer = native_call(RIGHT, spelling) if model in UPSTREAMS else written(RIGHT, spelling)
        place.player.scripted = ScriptedModel([called, WORDS])
        async with HttpConnection(place.url) as caller:
            await caller.post(PATHS[client], asked(client, model, stream, own, "auto"))
            received = await caller.response()
        found = emitted(client, stream, received)
        assert [name for name, _ in found.calls] == ([NAME] if own else []), received.body
        assert own or found.text.strip() == WORDS, received.body
        assert f"{spelling!r}, which was taken for {NAME!r}" in warnings(received), (stream, own)


@pytest.mark.parametrize("model", [*UPSTREAMS, EMULATED])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_spelling_that_may_mean_two_tools_means_none(place: Place, client: str, model: str) -> None:
    for stream in (False, True):
        request = asked(client, model, stream, True, "auto")
        other = json.loads(json.dumps(request["tools"][0]).replace(NAME, "GetWeather"))
        request["tools"].append(other)
        called = native_call(RIGHT, "get-weather") if model in UPSTREAMS else written(RIGHT, "get-weather")
        place.player.scripted = ScriptedModel([called, WORDS, WORDS])
        async with HttpConnection(place.url) as caller:
            await caller.post(PATHS[client], request)
            received = await caller.response()
        found = emitted(client, stream, received)
        assert [name for name, _ in found.calls] == (["get-weather"] if model in UPSTREAMS else []), received.body
        assert "taken for" not in warnings(received)
