"""Law: a part of the history arrives at the upstream, or a warning names it once, whatever stands between.

Reasoning of every dialect, and parts and fields that not every upstream can take, are sent over upstreams of all dialects,
over models that only write text or take no system messages, and over a peer. Calls of tools that are offered no more, and
a choice among tools, arrive in a form that the upstream takes.
"""

import http.client
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.api.http_client import PATHS
from tests.laws.fields import RecordingUpstream
from tests.laws.sdk_fields import PIXEL
from tests.stage import UPSTREAMS, gateway_config, in_a_thread
from tests.upstreams.local.scripted import user
from tests.upstreams.stateful_chat.peer_server import reference
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.conversation.message import REASONING_DROPPED, Message, Opaque, Reasoning
from toolgate.conversation.request import ModelRequest
from toolgate.http.listener import listening
from toolgate.upstreams.local import tool_choice_plan

MARKER = "MARKER1"
HI = {"role": "user", "content": "Hi."}
WELL = {"type": "text", "text": "Well."}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": MARKER}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
SUMMARY = [{"type": "summary_text", "text": MARKER}]
TOOL = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}


def answered(**fields: Any) -> dict[str, Any]:
    return {"messages": [HI, {"role": "assistant", "content": "Well.", **fields}, HI]}


def thought(*blocks: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "messages": [HI, {"role": "assistant", "content": [*blocks, WELL]}, HI]}


def output(*items: Any) -> dict[str, Any]:
    return {"store": False, "input": [HI, *items, HI]}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Chat's reasoning": ("openai_chat", answered(reasoning_content=MARKER)),
    "reasoning details": ("openai_chat", answered(reasoning_details=[{"type": "reasoning.text", "text": MARKER}])),
    "a refusal": ("openai_chat", answered(content=None, refusal=MARKER)),
    "the name of the system": ("openai_chat", {"messages": [{"role": "system", "content": "x", "name": MARKER}, HI]}),
    "two thoughts of Ollama": (
        "ollama",
        {"messages": answered(thinking=MARKER)["messages"] * 2, "stream": False},
    ),
    "a role of a model's own": ("ollama", {"messages": [{"role": "control", "content": MARKER}, HI], "stream": False}),
    "a picture of the system": (
        "ollama",
        {"messages": [{"role": "system", "content": "x", "images": [PIXEL]}, HI], "stream": False},
    ),
    "Anthropic's thinking": ("anthropic", thought({"type": "thinking", "thinking": MARKER, "signature": "s"})),
    "redacted thinking": ("anthropic", thought({"type": "redacted_thinking", "data": MARKER})),
    "a hosted search": ("anthropic", thought(SEARCH, FOUND)),
    "a summary": ("openai_responses", output({"type": "reasoning", "id": "rs_1", "summary": SUMMARY})),
    "encrypted reasoning": (
        "openai_responses",
        output({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": MARKER}),
    ),
    "a field of a tool": (
        "openai_chat",
        {"messages": [HI], "tools": [{"type": "function", "function": {**TOOL, "hint": MARKER}}]},
    ),
}


class Place(NamedTuple):
    """The gateway, the upstream that keeps what it received, and the peer."""

    url: str
    upstream: RecordingUpstream
    peer: Any

    def received(self) -> str:
        """All that reached the upstream or the peer last."""
        peer = list(self.peer.conversations.values())
        self.peer.conversations.clear()
        return json.dumps([self.upstream.body, peer])


def _rows() -> list[ModelConfig]:
    at = {name: (TargetConfig(upstream=name, model="played"),) for name in (*UPSTREAMS, "peer")}
    return [
        ModelConfig(name="text over Chat", targets=at["openai_chat"], tools="emulated"),
        ModelConfig(name="text over Ollama", targets=at["ollama"], tools="emulated", system="inject"),
        ModelConfig(name="no system over Anthropic", targets=at["anthropic"], system="inject"),
        ModelConfig(name="a peer", targets=at["peer"]),
        ModelConfig(name="text over a peer", targets=at["peer"], tools="emulated", system="inject"),
    ]


@asynccontextmanager
async def _opened() -> AsyncIterator[Place]:
    upstream, peer = RecordingUpstream(), reference.EchoPeer("secret")
    server = await peer.listen("127.0.0.1", 0)
    address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with upstream.listening() as base:
            config = gateway_config(base)
            row = UpstreamConfig(name="peer", dialect="peer", base_url=address, api_key=Secret("secret"))
            config = replace(config, upstreams={**config.upstreams, "peer": row}, models=(*config.models, *_rows()))
            async with listening(Toolgate(config)) as url:
                yield Place(url, upstream, peer)
    finally:
        server.close()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with in_a_thread(_opened()) as opened:
        yield opened


def _post(place: Place, client: str, body: dict[str, Any]) -> tuple[int, str, str]:
    """The status, the warnings and the text of the answer to a body."""
    place.upstream.body = None
    connection = http.client.HTTPConnection(urlsplit(place.url).netloc, timeout=60)
    connection.request("POST", PATHS[client], json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer, warned = response.read().decode(), response.headers.get("x-toolgate-warning", "")
    connection.close()
    return response.status, warned, answer


@pytest.mark.parametrize("model", [*UPSTREAMS, *[row.name for row in _rows()]])
@pytest.mark.parametrize(("client", "body"), CASES.values(), ids=CASES)
def test_a_part_of_the_history_arrives_or_is_named_once(
    place: Place, client: str, body: dict[str, Any], model: str
) -> None:
    status, warned, answer = _post(place, client, {**body, "model": model})
    assert status == 200, answer
    received = place.received()
    assert MARKER in received or PIXEL in received or warned
    assert warned.count(REASONING_DROPPED) <= 1


PATCHED: dict[str, Any] = {
    "type": "custom_tool_call",
    "call_id": "call_1",
    "name": "patch",
    "input": MARKER,
}
FOUND_IN: dict[str, Any] = {
    "type": "function_call",
    "call_id": "call_2",
    "name": "find",
    "namespace": "web",
    "arguments": "{}",
}
ODDLY_NAMED: dict[str, Any] = {**FOUND_IN, "call_id": "call_3", "name": "größe.von/" + "x" * 70, "namespace": None}


def _given(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "ok"}


@pytest.mark.parametrize("tools", [[], [{"type": "function", **TOOL}]], ids=["none", "others"])
@pytest.mark.parametrize("model", ["openai_chat", "anthropic", "ollama"])
def test_calls_of_tools_that_are_offered_no_more_are_in_a_form_that_the_upstream_takes(
    place: Place, model: str, tools: list[Any]
) -> None:
    items = [HI, PATCHED, _given("call_1"), FOUND_IN, _given("call_2"), ODDLY_NAMED, _given("call_3"), HI]
    payload = {"model": model, "store": False, "input": items, "tools": tools}
    status, _, answer = _post(place, "openai_responses", payload)
    assert status == 200, answer
    calls = [*_calls(place.upstream.body)]
    names = [name for name, _ in calls]
    assert names[:2] == ["patch", "web__find"]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert calls[0][1] == {"input": MARKER}
    results = [message.get("tool_name") for message in place.upstream.body["messages"] if message["role"] == "tool"]
    assert results == names or model != "ollama"


def _calls(body: Any) -> Iterator[tuple[str, Any]]:
    """The names and arguments of the calls in what an upstream received."""
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            yield call["function"]["name"], json.loads(arguments) if type(arguments) is str else arguments
        for block in message["content"] if type(message["content"]) is list else ():
            if block["type"] == "tool_use":
                yield block["name"], block["input"]


BROKEN = '{"city": "Ro'


@pytest.mark.parametrize("model", UPSTREAMS)
@pytest.mark.parametrize("client", ["openai_chat", "openai_responses"])
def test_arguments_of_a_history_that_are_no_object_are_sent_as_one(place: Place, client: str, model: str) -> None:
    """Some upstreams parse them and refuse the conversation for ever."""
    function = {"name": "find", "arguments": BROKEN}
    called = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    chat = [HI, called, {"role": "tool", "tool_call_id": "call_1", "content": "No."}]
    items = [HI, {"type": "function_call", "call_id": "call_1", **function}]
    items += [{"type": "function_call_output", "call_id": "call_1", "output": "No."}]
    payload = {"messages": chat} if client == "openai_chat" else {"input": items, "store": False}
    status, _, answer = _post(place, client, {**payload, "model": model, "stream": False})
    assert status == 200, answer
    body = place.upstream.body
    sent = [json.loads(item["arguments"]) for item in body.get("input", ()) if item.get("type") == "function_call"]
    assert sent or [value for _, value in _calls(body)] == [{"INVALID_JSON": BROKEN}]
    assert sent in ([], [{"INVALID_JSON": BROKEN}])


DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Rome is old."},
    "title": "Cities",
    "context": "Of a book.",
}


@pytest.mark.parametrize("model", ["openai_chat", "openai_responses", "ollama"])
def test_a_document_arrives_with_its_title_and_its_context(place: Place, model: str) -> None:
    message = {"role": "user", "content": [DOCUMENT, {"type": "text", "text": "Well?"}]}
    status, _, answer = _post(place, "anthropic", {"model": model, "max_tokens": 99, "messages": [message]})
    assert status == 200, answer
    received = json.dumps(place.upstream.body)
    assert [text for text in ("Cities", "Of a book.", "Rome is old.", "Well?") if text not in received] == []


ILLUSTRATED: dict[str, Any] = {
    "type": "document",
    "source": {
        "type": "content",
        "content": [
            {"type": "text", "text": "Rome is old."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "text", "text": "Oslo is not."},
        ],
    },
    "title": "Cities",
}
ONLY_PICTURE = {"type": "document", "source": {"type": "content", "content": ILLUSTRATED["source"]["content"][1:2]}}


@pytest.mark.parametrize("document", [ILLUSTRATED, ONLY_PICTURE], ids=["between texts", "alone"])
@pytest.mark.parametrize("inside", ["a message", "a result"])
@pytest.mark.parametrize("model", [*UPSTREAMS, "text over Chat"])
def test_the_pictures_of_a_document_arrive_or_are_named(
    place: Place, model: str, inside: str, document: dict[str, Any]
) -> None:
    """field: B1"""
    call = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [document]}
    read = [HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    history: list[Any] = read if inside == "a result" else [{"role": "user", "content": [document, WELL]}]
    status, warned, answer = _post(place, "anthropic", {"model": model, "max_tokens": 99, "messages": history})
    assert status == 200, answer
    received = place.received()
    if model == "anthropic":
        assert place.upstream.body["messages"][-1]["content"] == history[-1]["content"]
    else:
        assert (received.count(PIXEL), warned) == (1, "")
        if document is ILLUSTRATED:
            assert -1 < received.find("Cities") < received.find("Rome is old.") < received.find("Oslo is not.")


@pytest.mark.parametrize(
    ("model", "source", "warning"),
    [
        ("ollama", {"type": "url", "url": "https://example.org/a.png"}, "image"),
        ("openai_chat", {"type": "file", "file_id": "file_1"}, "file id"),
        ("openai_chat", {"type": "volume", "name": "one"}, "'image' in a document"),
        ("openai_chat", {"type": "base64"}, "'image' in a document"),
        ("openai_chat", {"type": "url", "url": "https://example.org/a.png"}, "messages.shape"),
    ],
)
def test_what_an_upstream_cannot_get_of_a_picture_of_a_document_is_named(
    place: Place, model: str, source: dict[str, Any], warning: str
) -> None:
    content = [{"type": "image", "source": source, "shape": "round"}, WELL]
    document = {"type": "document", "source": {"type": "content", "content": content}}
    payload = {"model": model, "max_tokens": 99, "messages": [{"role": "user", "content": [document]}]}
    status, warned, answer = _post(place, "anthropic", payload)
    assert status == 200, answer
    assert warning in warned
    assert WELL["text"] in place.received()


@pytest.mark.parametrize("model", ["openai_chat", "ollama"])
def test_several_texts_of_a_result_stay_apart(place: Place, model: str) -> None:
    texts = [{"type": "text", "text": text} for text in ("one", "two")]
    call = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": texts}
    history = [HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    status, _, answer = _post(place, "anthropic", {"model": model, "max_tokens": 99, "messages": history})
    assert status == 200, answer
    assert place.upstream.body["messages"][-1]["content"] == "one\ntwo"


def test_a_picture_that_the_assistant_made_follows_as_the_users(place: Place) -> None:
    made = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL}
    stated = {"role": "assistant", "content": "See."}
    payload = {"model": "openai_chat", "store": False, "input": [HI, stated, made, HI]}
    status, warned, answer = _post(place, "openai_responses", payload)
    assert (status, warned) == (200, ""), answer
    messages = place.upstream.body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user"]
    assert messages[1]["content"] == "See."
    assert PIXEL in json.dumps(messages[2])


CUSTOM = {"type": "custom", "custom": {"name": "patch"}}
NAMED = {"type": "function", "function": {"name": "find"}}


@pytest.mark.parametrize(
    "choice",
    [
        CUSTOM,
        NAMED,
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CUSTOM]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CUSTOM, NAMED]}},
    ],
)
def test_a_choice_of_tools_reaches_an_upstream_of_the_same_api_as_it_is(place: Place, choice: dict[str, Any]) -> None:
    tools = [CUSTOM, {"type": "function", "function": TOOL}]
    payload = {"model": "openai_chat", "messages": [HI], "tools": tools, "tool_choice": choice}
    status, warned, answer = _post(place, "openai_chat", payload)
    assert (status, warned) == (200, ""), answer
    assert place.upstream.body["tool_choice"] == choice


FLAT = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("model", UPSTREAMS)
@pytest.mark.parametrize("client", ["openai_chat", "openai_responses"])
def test_both_shapes_of_tools_and_choices_are_read_and_sent_in_the_upstreams_own(
    place: Place, client: str, model: str
) -> None:
    """field: B21"""
    nested = {"type": "function", "function": TOOL}
    shapes = [(FLAT, {"type": "function", "name": "find"}), (nested, NAMED)]
    received = []
    for tool, choice in shapes:
        asked = {"messages": [HI]} if client == "openai_chat" else {"input": [HI], "store": False}
        status, _, answer = _post(place, client, {**asked, "model": model, "tools": [tool], "tool_choice": choice})
        assert status == 200, answer
        received.append([place.upstream.body.get(name) for name in ("tool_choice", "format")])
    assert received[0][0] == received[1][0]
    own = {"openai_chat": NAMED, "openai_responses": {"type": "function", "name": "find"}}
    assert received[0][0] == own.get(model, received[0][0])
    assert any(received[0])


@pytest.mark.parametrize("model", UPSTREAMS)
def test_a_call_that_is_demanded_without_tools_is_named(place: Place, model: str) -> None:
    """field: B15"""
    payload = {"model": model, "messages": [HI], "tool_choice": "required"}
    status, warned, answer = _post(place, "openai_chat", payload)
    assert (status, warned) == (200, "the model cannot be made to call a tool"), answer
    assert "tool_choice" not in place.upstream.body
    assert _post(place, "openai_chat", {**payload, "tool_choice": "auto"})[:2] == (200, "")


@pytest.mark.parametrize("model", UPSTREAMS)
def test_a_chat_result_without_an_id_answers_the_only_call_that_waits(place: Place, model: str) -> None:
    """field: B5"""
    calls = [
        {"id": id, "type": "function", "function": {"name": "find", "arguments": "{}"}} for id in ("call_1", "call_2")
    ]
    first = [HI, {"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "call_2", "content": "B"}]
    unnamed = {"role": "tool", "content": MARKER}
    status, warned, answer = _post(place, "openai_chat", {"model": model, "messages": [*first, unnamed]})
    assert (status, warned) == (200, ""), answer
    received = place.received()
    assert received.find(MARKER) < received.find('"B"')  # the result of the first call comes first
    for history in ([*first[:2], unnamed], [*first, unnamed, unnamed], [HI, unnamed]):
        status, _, answer = _post(place, "openai_chat", {"model": model, "messages": history})
        assert status == 400
        assert "tool_call_id is required" in answer


def test_the_embedded_model_warns_of_reasoning_and_of_parts_that_it_does_not_know() -> None:
    parts = (Reasoning("Hm."), Opaque("anthropic", {"type": "server_tool_use"}))
    history = (user("Hi."), Message("assistant", parts), Message("assistant", parts), user("Hi."))
    assert tool_choice_plan.make(ModelRequest("local", history), 8).warnings == (
        REASONING_DROPPED,
        "a part of type 'server_tool_use' is known to anthropic only",
    )
