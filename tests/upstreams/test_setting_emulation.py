"""Settings that an upstream's API lacks and that are carried out here, through the HTTP edge."""

import json
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from anthropic.types import TextBlock
from openai import OpenAI

from tests.stage import Stage
from tests.typed import given, of
from toolgate.conversation.errors import UpstreamRejected
from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, PartStart, StepEnd, StepStart, Usage
from toolgate.conversation.fold import fold, unfold_part
from toolgate.conversation.message import Media, Reasoning, Text, ToolCall
from toolgate.conversation.request import ModelRequest, RequestSettings, StructuredOutputFormat
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.setting_emulation import StopCutter, in_turn, substitute

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "Looks up.", "parameters": SCHEMA}}
    for name in ("look_up", "forecast")
]
HI: list[Any] = [{"role": "user", "content": "Hi"}]


def chat(stage: Stage) -> Any:
    return OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0).chat.completions


def ask(stage: Stage, stream: bool, **fields: Any) -> tuple[Any, str, list[str]]:
    """The message, the finish reason and the pieces of text that a Chat client gets."""
    if not stream:
        choice = chat(stage).create(messages=HI, **fields).choices[0]
        return choice.message, choice.finish_reason, []
    with chat(stage).stream(messages=HI, **fields) as events:
        pieces = [event.delta for event in events if event.type == "content.delta"]
        choice = events.get_final_completion().choices[0]
    return choice.message, choice.finish_reason, pieces


def warnings(stage: Stage, **fields: Any) -> str:
    return str(chat(stage).with_raw_response.create(messages=HI, **fields).headers.get("x-toolgate-warning", ""))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["END"], "One two EN E "),
        (["never"], "One two EN E END three."),
        (["three", "two"], "One "),
        (["END t", "E"], "One two "),
        (["One"], None),
        (["."], "One two EN E END three"),
    ],
)
def test_stop_texts_cut_an_answer_of_a_responses_upstream(
    stage: Stage, stream: bool, stop: list[str], text: str | None
) -> None:
    model = stage.play("One two EN E END three.")
    message, reason, _ = ask(stage, stream, model="openai_responses", stop=stop)
    assert (message.content or None, reason) == (text, "stop")
    assert model.requests[0].settings.stop == ()


@pytest.mark.parametrize("stream", [False, True])
def test_a_messages_client_is_reported_which_stop_sequence_was_found(stage: Stage, stream: bool) -> None:
    stage.play("One two END three.")
    client = Anthropic(base_url=stage.url, api_key="unused", max_retries=0).messages
    asked: Any = {"model": "openai_responses", "max_tokens": 99, "messages": HI, "stop_sequences": ["END", "x"]}
    if stream:
        with client.stream(**asked) as events:
            message = events.get_final_message()
    else:
        message = client.create(**asked)
    assert of(TextBlock, message.content[0]).text == "One two "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


def test_a_stop_text_of_blanks_cuts_an_answer_of_an_anthropic_upstream(stage: Stage) -> None:
    stage.play("One.\n\nTwo.")
    message, reason, _ = ask(stage, True, model="anthropic", stop=["\n\n"])
    assert (message.content, reason) == ("One.", "stop")


def test_the_beginning_of_a_stop_text_is_held_back_and_nothing_else() -> None:
    cutter = StopCutter(("<end>", "<stop>"))
    sent = [
        cutter.restore([event]) for event in (PartStart(Text("")), PartDelta("a<"), PartDelta("e"), PartDelta("x<sto"))
    ]
    assert sent == [[PartStart(Text(""))], [PartDelta("a")], [], [PartDelta("<ex")]]
    assert cutter.restore([PartDelta("p>b"), PartDelta("c")]) == [
        PartEnd(Text("a<ex")),
        StepEnd("stop", stop_sequence="<stop>"),
    ]
    assert cutter.done


def test_a_stop_text_that_is_too_long_to_be_looked_for_is_named(stage: Stage) -> None:
    stage.play("One two.", "One two.")
    assert "stop texts" in warnings(stage, model="openai_responses", stop=["x" * 5000, "two"])
    assert warnings(stage, model="openai_responses", stop=["x" * 256, "two"]) == ""


def test_a_held_beginning_is_sent_when_the_text_ends() -> None:
    cutter = StopCutter(("END",))
    events = [StepStart(), *unfold_part(Text("the E")), StepEnd("stop", Usage(1, 2))]
    restored = cutter.restore(events)
    assert [event.text for event in restored if isinstance(event, PartDelta)] == ["the ", "E"]
    assert fold(restored) == fold(events)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "function", "function": {"name": "forecast"}}, ["forecast"]),
        ("required", ["look_up", "forecast"]),
    ],
)
def test_a_demanded_call_over_ollama_is_demanded_by_its_format(
    stage: Stage, stream: bool, choice: Any, names: list[str]
) -> None:
    model = stage.play(ModelResponse((Text('{"name":"forecast","arguments":{"city":"Rome"}}'),), "stop", Usage(1, 1)))
    message, reason, pieces = ask(stage, stream, model="ollama", tools=TOOLS, tool_choice=choice)
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("forecast", {"city": "Rome"})
    assert (message.content or None, "".join(pieces), reason) == (None, "", "tool_calls")
    (asked,) = model.requests
    schema = given(given(asked.settings.output).schema)
    calls = schema.get("anyOf", [schema])
    assert [call["properties"]["name"]["enum"] for call in calls] == [[name] for name in names]
    assert all(call["properties"]["arguments"] == SCHEMA for call in calls)
    assert [tool.name for tool in asked.tools] == names


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_ollama_makes_itself_and_words_that_are_none_pass(stage: Stage, stream: bool) -> None:
    stage.play([Reasoning("Hm."), ToolCall("call_" + "a" * 24, "look_up", '{"city":"Rome"}')], "I would rather not.")
    message, reason, _ = ask(stage, stream, model="ollama", tools=TOOLS, tool_choice="required")
    assert ([call.function.name for call in message.tool_calls], reason) == (["look_up"], "tool_calls")
    message, reason, _ = ask(stage, stream, model="ollama", tools=TOOLS, tool_choice="required")
    assert (message.content, reason) == ("I would rather not.", "stop")


def test_definitions_of_a_tool_stand_at_the_root_of_the_format(stage: Stage) -> None:
    model = stage.play('{"name":"move","arguments":{}}')
    schema = {"type": "object", "properties": {"to": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": "string"}}}
    tool: Any = {"type": "function", "function": {"name": "move", "parameters": schema}}
    ask(stage, False, model="ollama", tools=[tool], tool_choice="required")
    assert given(given(model.requests[0].settings.output).schema)["$defs"] == {"p": {"type": "string"}}
    assert "$defs" not in given(given(model.requests[0].settings.output).schema)["properties"]["arguments"]


@pytest.mark.parametrize("stream", [False, True])
def test_json_mode_over_anthropic_is_the_input_of_a_tool(stage: Stage, stream: bool) -> None:
    model = stage.play([Text("Here it is:"), ToolCall("toolu_" + "a" * 24, "json_answer", '{"city": "Rome"}')])
    message, reason, pieces = ask(stage, stream, model="anthropic", response_format={"type": "json_object"})
    assert (json.loads(message.content), message.tool_calls, reason) == ({"city": "Rome"}, None, "stop")
    assert "".join(pieces) == (message.content if stream else "")
    (asked,) = model.requests
    assert [tool.name for tool in asked.tools] == ["json_answer"]
    assert (given(asked.tool_choice).mode, given(asked.tool_choice).names) == ("required", ("json_answer",))


@pytest.mark.parametrize("stream", [False, True])
def test_json_mode_beside_tools_leaves_the_choice_to_the_model(stage: Stage, stream: bool) -> None:
    call = ToolCall("toolu_" + "a" * 24, "look_up", '{"city":"Rome"}')
    model = stage.play([Text("Let me see."), call])
    fields: Any = {"model": "anthropic", "response_format": {"type": "json_object"}, "tools": TOOLS}
    message, reason, _ = ask(stage, stream, **fields)
    assert (message.content, reason) == ("Let me see.", "tool_calls")
    assert [call.function.name for call in message.tool_calls] == ["look_up"]
    assert (given(model.requests[0].tool_choice).mode, given(model.requests[0].tool_choice).names) == ("required", ())


def test_json_mode_that_cannot_be_demanded_is_named(stage: Stage) -> None:
    form: Any = {"type": "json_object"}
    stage.play("{}", [ToolCall("toolu_" + "a" * 24, "look_up", '{"city":"Rome"}')])
    assert "output format" in warnings(stage, model="anthropic", response_format=form, reasoning_effort="high")
    assert "output format" in warnings(
        stage, model="anthropic", response_format=form, tools=TOOLS, tool_choice="required"
    )


@pytest.mark.parametrize("upstream", ["openai_chat", "openai_responses"])
@pytest.mark.parametrize("think", [False, True, "high"])
def test_ollamas_think_reaches_an_upstream_of_openai(stage: Stage, upstream: str, think: Any) -> None:
    model = stage.play("Hello.")
    body = {"model": upstream, "messages": HI, "think": think, "stream": False}
    assert httpx.post(f"{stage.url}/api/chat", json=body).status_code == 200
    expected = {False: "none", True: "medium", "high": "high"}[think]
    assert given(model.requests[0].settings.thinking).effort == expected


@pytest.mark.parametrize("upstream", ["openai_chat", "openai_responses"])
def test_effort_none_arrives(stage: Stage, upstream: str) -> None:
    model = stage.play("Hello.")
    ask(stage, False, model=upstream, reasoning_effort="none")
    assert given(model.requests[0].settings.thinking).effort == "none"


@pytest.mark.parametrize(
    ("upstream", "other"), [("openai_chat", "openai_responses"), ("openai_responses", "openai_chat")]
)
def test_wishes_pass_between_the_two_apis_of_openai(stage: Stage, upstream: str, other: str) -> None:
    model = stage.play("Hello.")
    image: Any = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    same: Any = {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "user": "u"}
    same |= {"metadata": {"a": "b"}, "service_tier": "flex", "top_logprobs": 2, "model": upstream}
    client = OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0)
    if other == "openai_chat":
        client.chat.completions.create(
            messages=[{"role": "user", "content": [image]}], verbosity="low", logprobs=True, **same
        )
    else:
        picture: Any = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"}
        client.responses.create(
            input=[{"role": "user", "content": [picture]}],
            text={"verbosity": "low"},
            include=["message.output_text.logprobs"],
            **same,
        )
    settings = model.requests[0].settings
    assert model.requests[0].messages[-1].parts == (Media("image", url="https://example.com/a.png", detail="low"),)
    assert (settings.cache_key, settings.cache_retention, settings.safety_identifier) == ("k", "24h", "s")
    assert (settings.verbosity, settings.service_tier, settings.user) == ("low", "flex", "u")
    assert (settings.metadata, settings.logprobs, settings.top_logprobs) == ({"a": "b"}, True, 2)


def test_an_answer_by_a_schema_that_is_no_object_is_unwrapped() -> None:
    """Older models take no output format, and a tool takes nothing but an object."""
    output = StructuredOutputFormat(
        {"type": "array", "items": {"$ref": "#/$defs/c"}, "$defs": {"c": {"type": "string"}}}
    )
    asked = substitute(
        ModelRequest("m", (), settings=RequestSettings(output=output)), "anthropic", Quirks(output_format="json")
    )
    (tool,) = asked.request.tools
    assert tool.input_schema == {
        "type": "object",
        "properties": {"answer": {"type": "array", "items": {"$ref": "#/$defs/c"}}},
        "required": ["answer"],
        "$defs": {"c": {"type": "string"}},
    }
    rewriter = in_turn(asked.rewriters)
    assert rewriter is not None
    answer = [StepStart(), *unfold_part(ToolCall("id", tool.name, '{"answer": ["Rome"]}')), StepEnd("tool_calls")]
    emitted = [event for one in answer for event in rewriter.restore([one])]
    assert (fold(emitted).parts, fold(emitted).reason) == ((Text('["Rome"]'),), "stop")


def test_the_answer_tool_takes_no_name_of_the_clients_tools(stage: Stage) -> None:
    model = stage.play([ToolCall("toolu_" + "a" * 24, "json_answer", "{}")])
    tool: Any = {"type": "function", "function": {"name": "json_answer", "parameters": {"type": "object"}}}
    message, _, _ = ask(stage, False, model="anthropic", tools=[tool], response_format={"type": "json_object"})
    assert [tool.name for tool in model.requests[0].tools] == ["json_answer", "json_answer_"]
    assert message.tool_calls[0].function.name == "json_answer"


def test_a_wish_that_a_server_refuses_is_left_out_and_named(stage: Stage) -> None:
    model = stage.play(UpstreamRejected("property 'prompt_cache_key' is unsupported"), "Hello.")
    body = {"model": "openai_chat", "input": "Hi", "prompt_cache_key": "k", "text": {"verbosity": "low"}}
    response = httpx.post(f"{stage.url}/v1/responses", json=body)
    assert response.json()["output"][0]["content"][0]["text"] == "Hello."
    assert "prompt_cache_key" in response.headers["x-toolgate-warning"]
    assert "verbosity" in response.headers["x-toolgate-warning"]
    assert [(asked.settings.cache_key, asked.settings.verbosity) for asked in model.requests] == [
        ("k", "low"),
        (None, None),
    ]


def test_an_effort_that_a_model_refuses_is_left_out_and_named(stage: Stage) -> None:
    model = stage.play(UpstreamRejected("Unsupported value: 'reasoning_effort' does not support 'none'"), "Hello.")
    response = httpx.post(
        f"{stage.url}/api/chat", json={"model": "openai_chat", "messages": HI, "think": False, "stream": False}
    )
    assert response.status_code == 200
    assert "reasoning_effort" in response.headers["x-toolgate-warning"]
    assert model.requests[1].settings.thinking is None


def test_a_client_of_the_same_api_gets_the_upstreams_rejection(stage: Stage) -> None:
    stage.play(UpstreamRejected("property 'prompt_cache_key' is unsupported"))
    response = httpx.post(
        f"{stage.url}/v1/chat/completions", json={"model": "openai_chat", "messages": HI, "prompt_cache_key": "k"}
    )
    assert response.status_code == 400


LIKELY = [
    {
        "token": "Hi",
        "logprob": -0.5,
        "bytes": [72, 105],
        "top_logprobs": [{"token": "Ho", "logprob": -2.0, "bytes": None}],
    }
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", ["openai_chat", "openai_responses", "ollama"])
def test_log_probabilities_of_an_answer_reach_clients_of_other_apis(stage: Stage, upstream: str, stream: bool) -> None:
    stated = ModelResponse((Text("Hi", logprobs=tuple(LIKELY)),), "stop", Usage(1, 1))
    stage.play(stated, stated, stated)
    client: Any = OpenAI(base_url=f"{stage.url}/v1", api_key="unused", max_retries=0)
    if stream:
        with client.chat.completions.stream(model=upstream, messages=HI, logprobs=True, top_logprobs=1) as events:
            choice = events.get_final_completion().choices[0]
        with client.responses.stream(model=upstream, input="Hi", include=["message.output_text.logprobs"]) as events:
            response = events.get_final_response()
    else:
        choice = client.chat.completions.create(model=upstream, messages=HI, logprobs=True, top_logprobs=1).choices[0]
        response = client.responses.create(model=upstream, input="Hi", include=["message.output_text.logprobs"])
    assert [entry.model_dump() for entry in choice.logprobs.content] == LIKELY
    assert [entry.model_dump() for entry in response.output[0].content[0].logprobs] == LIKELY
    body = {"model": upstream, "messages": HI, "logprobs": True, "stream": stream}
    lines = [json.loads(line) for line in httpx.post(f"{stage.url}/api/chat", json=body).text.splitlines()]
    assert [entry for line in lines for entry in line.get("logprobs", [])] == LIKELY
