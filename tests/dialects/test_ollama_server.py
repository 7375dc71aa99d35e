"""What Ollama clients send, and what they are answered; every answer is valid by the official client's own types."""

import json
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from ollama import ChatResponse, Client, GenerateResponse, ResponseError
from pydantic import BaseModel

from tests.dialects.ollama_cases import DATE, DIALECT, GENERATE, REPLY, REQUEST, encode_lines, streamed
from tests.typed import all_of, of
from toolgate.conversation.errors import InvalidRequest, NotFound, UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.history import match_results
from toolgate.conversation.message import (
    Media,
    Message,
    Opaque,
    Reasoning,
    ReasoningSignature,
    RefusalPart,
    Text,
    ToolCall,
    ToolResult,
)
from toolgate.conversation.request import ModelRequest, ReasoningSettings, RequestSettings, StructuredOutputFormat
from toolgate.dialects.dialect import Dialect, Quirks
from toolgate.dialects.ollama.shared_codec import THINKING
from toolgate.upstreams.tool_definition_rewrite import adapt

PNG = "iVBORw0KGgoAAAANSUhEUg=="
CALL = ToolCall("call_aaaaaaaaaaaaaaaa", "get_weather", '{"city": "Oslo"}')
CLOCK = ToolCall("call_bbbbbbbbbbbbbbbb", "clock", "{}")
ANSWER = ModelResponse((Reasoning("Hm."), Text("I look."), CALL, CLOCK), "tool_calls", Usage(5, 7))
NEWER_THAN_THE_CLIENT = {"id", "index", "tool_calls"}


def decode(body: dict[str, Any]) -> ModelRequest:
    return DIALECT.server.decode_request({"model": "m", **body})


def results(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Which call of the last turn each result answers, by the call's arguments, and what it says."""
    request = match_results(decode({"messages": messages}))
    calls = {
        part.id: part.arguments for message in request.messages for part in message.parts if isinstance(part, ToolCall)
    }
    return [
        (calls[part.call_id], of(Text, part.content[0]).text)
        for message in request.messages
        for part in message.parts
        if isinstance(part, ToolResult)
    ]


def assistant_calls(*calls: tuple[str, int], ids: bool = False) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [{"function": {"name": name, "arguments": {"n": n}}} for name, n in calls]
    if ids:
        entries = [{**entry, "id": f"id-{entry['function']['arguments']['n']}"} for entry in entries]
    return {"role": "assistant", "content": "", "tool_calls": entries}


def surplus(value: Any, model: BaseModel) -> set[str]:
    """The keys that the client's type does not know, at any depth."""
    unknown = set(value) - set(type(model).model_fields)
    for name, inner in value.items():
        if name not in unknown:
            for one, typed in zip(
                *[x if isinstance(x, list) else [x] for x in (inner, getattr(model, name))], strict=True
            ):
                unknown |= surplus(one, typed) if isinstance(typed, BaseModel) else set()
    return unknown


@pytest.mark.parametrize(("dialect", "kind"), [(DIALECT, ChatResponse), (GENERATE, GenerateResponse)])
@pytest.mark.parametrize(
    "response",
    [
        ANSWER,
        ModelResponse((), "stop"),
        ModelResponse((RefusalPart("No."),), "content_filter", Usage(1, 2, 1, 0, 1)),
        ModelResponse((Text("a"), Media("image", "image/png", PNG), Text("b")), "length", None),
    ],
)
def test_every_answer_is_valid_by_the_clients_own_types(
    dialect: Dialect, kind: type[ChatResponse | GenerateResponse], response: ModelResponse
) -> None:
    whole = json.loads(dialect.server.encode_response(response, REQUEST, REPLY))
    for line in [whole, *encode_lines(response, dialect)]:
        model = kind.model_validate(line, strict=True)
        assert surplus(line, model) <= NEWER_THAN_THE_CLIENT
        assert (model.model, model.created_at) == ("public-name", DATE)
    assert [line["done"] for line in encode_lines(response, dialect)].index(True) == len(
        encode_lines(response, dialect)
    ) - 1


def client(answer: bytes, status: int = 200) -> Client:
    """The official client, in front of nothing but an answer."""
    return Client("http://gateway", transport=httpx.MockTransport(lambda _: httpx.Response(status, content=answer)))


def test_the_official_client_reads_a_stream() -> None:
    text = "Grüße \x0b 👩‍🚀 a\u2028b\u2029c\x85d"
    answer = replace(ANSWER, parts=(Reasoning("Hm."), Text(text), CALL))
    parts = list(client(streamed(answer)).chat("m", stream=True))
    assert "".join([part.message.content or "" for part in parts]) == text
    assert "".join([part.message.thinking or "" for part in parts]) == "Hm."
    assert [call.function.arguments for part in parts for call in part.message.tool_calls or ()] == [{"city": "Oslo"}]
    assert (parts[-1].done, parts[-1].eval_count) == (True, 7)


def test_the_official_client_raises_our_errors() -> None:
    error = UpstreamUnavailable("It broke.")
    with pytest.raises(ResponseError, match="It broke"):
        list(client(DIALECT.server.encoder(REQUEST, REPLY).error(error)).chat("m", stream=True))
    with pytest.raises(ResponseError, match="It broke") as failed:
        client(DIALECT.server.encode_error(error), 502).chat("m")
    assert failed.value.status_code == 502


def test_a_stream_has_thinking_then_text_then_calls_then_done() -> None:
    thinking, text, first, second, last = encode_lines(ANSWER)
    assert thinking["message"] == {"role": "assistant", "content": "", "thinking": "Hm."}
    assert text["message"] == {"role": "assistant", "content": "I look."}
    assert first["message"]["tool_calls"] == [
        {"id": CALL.id, "function": {"index": 0, "name": "get_weather", "arguments": {"city": "Oslo"}}}
    ]
    assert second["message"]["tool_calls"][0]["function"] == {"index": 1, "name": "clock", "arguments": {}}
    assert last == {
        "model": "public-name",
        "created_at": DATE,
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "total_duration": 0,
        "load_duration": 0,
        "prompt_eval_count": 5,
        "prompt_eval_duration": 0,
        "eval_count": 7,
        "eval_duration": 0,
    }


def test_generate_has_the_fields_response_and_thinking() -> None:
    thinking, text, *_, last = encode_lines(ANSWER, GENERATE)
    assert (thinking["response"], thinking["thinking"]) == ("", "Hm.")
    assert text["response"] == "I look."
    assert (last["response"], last["done"]) == ("", True)
    assert "message" not in last


def test_a_whole_answer_is_one_object() -> None:
    whole = json.loads(DIALECT.server.encode_response(ANSWER, REQUEST, REPLY))
    assert whole["message"]["content"] == "I look."
    assert whole["message"]["thinking"] == "Hm."
    assert [entry["function"]["name"] for entry in whole["message"]["tool_calls"]] == ["get_weather", "clock"]
    assert (whole["done"], whole["done_reason"]) == (True, "stop")


def test_half_a_call_is_not_shown_for_it_would_look_whole() -> None:
    cut = ToolCall("call_cccccccccccccccc", "get_weather", '{"city": "Os', complete=False)
    response = ModelResponse((Text("I look."), cut), "length", Usage(1, 1))
    assert "tool_calls" not in str(encode_lines(response))
    assert encode_lines(response)[-1]["done_reason"] == "length"
    assert "tool_calls" not in json.loads(DIALECT.server.encode_response(response, REQUEST, REPLY))["message"]


def test_calls_that_are_not_the_clients_are_not_shown() -> None:
    response = ModelResponse((ToolCall("srv_1", "web_search", "{}", "provider"), Text("Found.")), "stop", Usage())
    assert [line["message"].get("tool_calls") for line in encode_lines(response)] == [None, None]


def test_arguments_over_several_lines_stay_on_one_line() -> None:
    response = ModelResponse(
        (ToolCall("call_aaaaaaaaaaaaaaaa", "f", '{\r\n "a": 1.10,\n "b": "x\\ny"}'),), "tool_calls"
    )
    assert encode_lines(response)[0]["message"]["tool_calls"][0]["function"]["arguments"] == {"a": 1.1, "b": "x\ny"}


def test_line_separators_of_unicode_are_escaped() -> None:
    """The official client reads lines as Python's `splitlines` does."""
    assert (
        encode_lines(ModelResponse((Text("a\u2028b\u2029c\x85d\x0be"),), "stop"))[0]["message"]["content"]
        == "a\u2028b\u2029c\x85d\x0be"
    )


def test_arguments_that_are_no_object_are_shown_under_a_telling_key() -> None:
    """quirk: args_invalid (policy: neither repaired nor emptied); field: B12"""
    response = ModelResponse((ToolCall("call_aaaaaaaaaaaaaaaa", "f", "{'a': 1,}"),), "tool_calls")
    arguments = encode_lines(response)[0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {"INVALID_JSON": "{'a': 1,}"}


@pytest.mark.parametrize(
    "text", ["{'a': 1,}", '{"INVALID_JSON": 1}', '{"INVALID_JSON":"x","y":1}', '{"INVALID_JSON": 1e400']
)
def test_arguments_that_came_under_that_key_are_what_the_model_wrote(text: str) -> None:
    entry = encode_lines(ModelResponse((ToolCall("call_aaaaaaaaaaaaaaaa", "f", text),), "tool_calls"))[0]["message"]
    (message,) = decode({"messages": [entry]}).messages
    assert of(ToolCall, message.parts[0]).arguments in (text, text.replace(": ", ":"))


def test_signatures_of_other_dialects_are_left_out() -> None:
    """law 8"""
    response = ModelResponse(
        (Reasoning("Hm.", ReasoningSignature("anthropic", {"signature": "SECRET"})), Text("Hi")), "stop"
    )
    assert "SECRET" not in str(encode_lines(response))
    assert encode_lines(response)[0]["message"]["thinking"] == "Hm."


def test_durations_are_those_that_were_measured() -> None:
    """Clients divide the count of tokens by the time they took."""
    timed = replace(REPLY, times=lambda: (0.25, 1.0))
    last = json.loads(DIALECT.server.encode_response(ANSWER, REQUEST, timed))
    assert [last[f"{name}_duration"] for name in ("total", "prompt_eval", "eval")] == [10**9, 25 * 10**7, 75 * 10**7]


def test_durations_and_unknown_fields_of_an_ollama_upstream_are_passed_on() -> None:
    response = ModelResponse(
        (Text("Hi"),), "stop", Usage(1, 1), extra={"ollama": {"total_duration": 9, "context": [1]}}
    )
    assert encode_lines(response, GENERATE)[-1]["context"] == [1]
    assert encode_lines(response)[-1]["total_duration"] == 9
    foreign = ModelResponse((Text("Hi"),), "stop", Usage(1, 1), extra={"openai_chat": {"x": 1}})
    assert "x" not in encode_lines(foreign)[-1]


def test_errors_are_one_text() -> None:
    assert json.loads(DIALECT.server.encode_error(NotFound("model 'x' not found"))) == {"error": "model 'x' not found"}
    failed = DIALECT.server.encoder(REQUEST, REPLY).error(UpstreamUnavailable("It broke."))
    assert failed == b'{"error":"It broke."}\n'


@pytest.mark.parametrize(
    ("dialect", "body", "loads"),
    [
        (DIALECT, {"model": "m"}, True),
        (DIALECT, {"model": "m", "messages": []}, True),
        (DIALECT, {"model": "m", "messages": [{"role": "user", "content": ""}]}, False),
        (GENERATE, {"model": "m"}, True),
        (GENERATE, {"model": "m", "prompt": ""}, True),
        (GENERATE, {"model": "m", "prompt": "Hi"}, False),
    ],
)
def test_a_request_without_a_prompt_loads_the_model(dialect: Any, body: dict[str, Any], loads: bool) -> None:
    assert dialect.server.is_load_request(body) is loads
    dialect.server.decode_request(body)
    if loads:
        kind = ChatResponse if dialect is DIALECT else GenerateResponse
        answer = kind.model_validate(json.loads(dialect.server.encode_load(body, REPLY)), strict=True)
        assert (answer.done, answer.done_reason) == (True, "load")
        unloaded = json.loads(dialect.server.encode_load({**body, "keep_alive": 0}, REPLY))
        assert unloaded["done_reason"] == "unload"


def test_streaming_is_the_default() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert decode({"messages": messages}).stream
    assert not decode({"messages": messages, "stream": False}).stream


def test_a_history_is_read_whole() -> None:
    request = decode(
        {
            "messages": [
                {"role": "System", "content": "Be brief."},
                {"role": "user", "content": "Look", "images": [PNG, "data:image/jpeg;base64,/9j/AAAA"]},
                {"role": "assistant", "content": "I see.", "thinking": "Hm."},
                {"role": "user", "content": "", "images": ["AAAA"]},
            ],
            "tools": [
                {"type": "function", "function": {"name": "f", "description": "F", "parameters": {"type": "object"}}}
            ],
        }
    )
    assert request.messages == (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("Look"), Media("image", "image/png", PNG), Media("image", "image/jpeg", "/9j/AAAA"))),
        Message("assistant", (Reasoning("Hm.", THINKING), Text("I see."))),
        Message("user", (Media("image", None, "AAAA"),)),
    )
    assert [(tool.name, tool.description, tool.input_schema) for tool in request.tools] == [
        ("f", "F", {"type": "object"})
    ]
    assert request.tool_choice is None


def test_results_without_names_answer_the_calls_in_order() -> None:
    """spec: X7; langchain-ollama and autogen send nothing but the content"""
    messages = [
        assistant_calls(("f", 1), ("g", 2)),
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
    ]
    assert results(messages) == [('{"n":1}', "one"), ('{"n":2}', "two")]


def test_results_with_names_answer_the_calls_of_that_name_in_order() -> None:
    messages = [
        assistant_calls(("f", 1), ("g", 2), ("f", 3)),
        {"role": "tool", "tool_name": "g", "content": "two"},
        {"role": "tool", "name": "f", "content": "one"},
        {"role": "tool", "tool_name": "f", "content": "three"},
    ]
    assert results(messages) == [('{"n":1}', "one"), ('{"n":2}', "two"), ('{"n":3}', "three")]


def test_results_with_ids_answer_those_calls_whatever_the_order() -> None:
    """field: B4"""
    messages = [
        assistant_calls(("f", 1), ("f", 2), ids=True),
        {"role": "tool", "tool_call_id": "id-2", "content": "two"},
        {"role": "tool", "tool_call_id": "id-1", "content": "one"},
    ]
    assert results(messages) == [('{"n":1}', "one"), ('{"n":2}', "two")]


def test_ids_that_no_call_could_know_do_not_count() -> None:
    messages = [assistant_calls(("f", 1)), {"role": "tool", "tool_call_id": "made-up", "content": "one"}]
    assert results(messages) == [('{"n":1}', "one")]


def test_each_turn_has_its_own_calls() -> None:
    """field: B6; a call of an earlier turn that was interrupted does not take the result of a later one"""
    messages = [
        assistant_calls(("f", 1)),
        {"role": "user", "content": "Never mind."},
        assistant_calls(("f", 2)),
        {"role": "tool", "content": "two"},
        assistant_calls(("f", 3)),
        {"role": "tool", "content": "three"},
    ]
    answered = results(messages)
    assert answered[1:] == [('{"n":2}', "two"), ('{"n":3}', "three")]
    assert "No result was recorded" in answered[0][1]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi"}, {"role": "tool", "content": "lost"}],
        [assistant_calls(("f", 1)), {"role": "tool", "content": "one"}, {"role": "tool", "content": "and another"}],
        [assistant_calls(("f", 1), ids=True), {"role": "tool", "tool_call_id": "id-9", "content": "nine"}],
    ],
)
def test_a_result_without_a_call_is_the_clients_mistake(messages: list[Any]) -> None:
    """spec: C7"""
    with pytest.raises(InvalidRequest) as refused:
        results(messages)
    assert refused.value.param == f"messages[{len(messages) - 1}].tool_call_id"


def test_the_same_history_has_the_same_ids_every_time() -> None:
    messages = [assistant_calls(("f", 1), ("g", 2)), {"role": "tool", "content": "one"}]
    assert decode({"messages": messages}) == decode({"messages": messages})
    made = [part.id for part in all_of(ToolCall, decode({"messages": messages}).messages[0].parts)]
    assert len(set(made)) == 2
    assert all(len(id) >= 16 for id in made)


def test_settings_are_read() -> None:
    options = {"num_predict": 9, "temperature": 0, "top_p": 0.5, "top_k": 3, "seed": 1, "stop": ["a"], "num_ctx": 8192}
    more = {"frequency_penalty": 0.1, "presence_penalty": 0.2, "mirostat": 1}
    request = decode({"messages": [], "options": {**options, **more}, "format": "json", "think": "low"})
    assert request.settings == RequestSettings(
        9, 0, 0.5, 3, ("a",), 1, 0.1, 0.2, StructuredOutputFormat(), ReasoningSettings(True, "low"), choices=1
    )
    assert request.extra == {"ollama": {"options": {"num_ctx": 8192, "mirostat": 1}}}


def test_an_endless_answer_stays_endless() -> None:
    request = decode({"messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": -1}})
    assert request.settings.max_tokens is None
    assert DIALECT.upstream.encode_request(request, Quirks())[0]["options"] == {"num_predict": -1}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": ""}, "model"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "Hi", "images": [1]}]}, "messages[0].images[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"description": "x"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"stop": [1]}}, "options.stop"),
        ({"options": {"stop": ["x"] * 65}}, "options.stop"),
        ({"options": []}, "options"),
        ({"format": "xml"}, "format"),
        ({"think": 3}, "think"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], param: str) -> None:
    """spec: C7"""
    with pytest.raises(InvalidRequest) as refused:
        decode(body)
    assert refused.value.param == param


def test_unknown_fields_come_back_to_ollama() -> None:
    """law 7"""
    body: dict[str, Any] = {
        "model": "m",
        "messages": [
            {"role": "control", "content": "thinking"},
            {"role": "user", "content": "Hi", "mood": "good"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c", "tint": 1, "function": {"name": "f", "arguments": {}, "hue": 2, "index": 0}}
                ],
            },
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "flavour": 1}, "items": []}],
        "keep_alive": "5m",
        "truncate": False,
        "logprobs": True,
        "options": {"num_ctx": 8192},
        "stream": True,
    }
    request = DIALECT.server.decode_request(body)
    assert request.messages[0].parts == (Opaque("ollama", body["messages"][0]),)
    written, dropped = DIALECT.upstream.encode_request(request, Quirks())
    entry = written["messages"][2]["tool_calls"][0]["function"]
    entry["arguments"] = json.loads(bytes(entry["arguments"]))
    assert (written, dropped) == (body, ())


def test_generate_is_a_conversation_of_one_prompt() -> None:
    request = GENERATE.server.decode_request(
        {"model": "m", "prompt": "Hi", "system": "Be brief.", "images": [PNG], "format": "json", "keep_alive": 5}
    )
    assert request.messages == (
        Message("system", (Text("Be brief."),)),
        Message("user", (Text("Hi"), Media("image", "image/png", PNG))),
    )
    assert request.settings.output == StructuredOutputFormat()
    assert request.warnings == ()


def test_generate_reaches_an_ollama_upstream_as_generate() -> None:
    body = {
        "model": "m",
        "prompt": "def f(",
        "suffix": "return 1",
        "raw": True,
        "context": [1, 2],
        "template": "{{ .Prompt }}",
        "system": "Be brief.",
        "images": [PNG],
        "options": {"num_ctx": 10, "seed": 4},
        "keep_alive": 0,
        "stream": False,
    }
    request = GENERATE.server.decode_request(body)
    assert GENERATE.upstream.path(request) == "/api/generate"
    assert GENERATE.upstream.encode_request(request, Quirks()) == (body, ())
    assert request.warnings == ()
    dropped = " ".join(adapt(request, "openai_chat", Quirks()).dropped)
    assert [name for name in ("suffix", "template", "raw", "context") if name not in dropped] == []


def test_a_prompt_that_became_a_conversation_is_sent_as_one() -> None:
    request = GENERATE.server.decode_request({"model": "m", "prompt": "Hi", "suffix": "x"})
    grown = replace(request, messages=(*request.messages, Message("assistant", (Text("Hello"),))))
    written, dropped = GENERATE.upstream.encode_request(grown, Quirks())
    assert GENERATE.upstream.path(grown) == "/api/chat"
    assert [message["role"] for message in written["messages"]] == ["user", "assistant"]
    assert len(dropped) == 1


def test_a_chat_request_cannot_pass_for_a_prompt() -> None:
    request = decode({"messages": [{"role": "user", "content": "Hi"}], "/api/generate": {"raw": True}})
    assert DIALECT.upstream.path(request) == "/api/chat"
