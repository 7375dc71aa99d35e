"""Law: a wire quirk of an upstream ends the same for every client, relayed or translated, streamed or whole.

Every quirk of every upstream dialect is sent by a raw server to a gateway on real sockets, and is asked for by clients of
all four dialects: streamed, whole where the same oddity exists in a whole answer, and each the way round that was not asked
for (a stream for a whole request, a whole answer for a stream). What a client makes of its answer must be what the quirk
means. The few deliberate differences stand in `expected`.
"""

import functools
import json
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, body
from tests.dialects import anthropic_quirks, chat_quirks, ollama_quirks, openai_responses_cases, responses_call_quirks
from tests.dialects.chat_quirks import ExpectedAnswer, ExpectedCall, Quirk
from tests.laws.client_readers import Outcome, outcome
from tests.laws.whole_answers import WHOLE
from tests.stage import UPSTREAMS, gateway_config, in_a_thread
from tests.upstreams.transport.faulty import Faulty, Peer, chunked, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.arguments import is_object
from toolgate.conversation.message import Reasoning, RefusalPart, Text, ToolCall
from toolgate.http.listener import listening

NAMES = ("get_weather", "get_time")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
LARGE = 100_000
UNDECLARED = ("custom tool", "a namespaced call")
"""Kinds of calls that an upstream makes only if such a tool was declared, which not every dialect can do."""


def _of_responses() -> list[Quirk]:
    """The table of the Responses dialect in the terms of the others."""
    found = []
    for quirk in openai_responses_cases.QUIRKS:
        parts = quirk.parts
        emitted = ExpectedAnswer(
            "".join([part.text for part in parts if isinstance(part, Text)]),
            tuple([ExpectedCall(p.name, p.arguments, p.id, p.complete) for p in parts if isinstance(p, ToolCall)]),
            quirk.reason,
            quirk.usage,
            "".join([part.text for part in parts if isinstance(part, Reasoning)]),
            "".join([part.text for part in parts if isinstance(part, RefusalPart)]),
        )
        if quirk.name not in UNDECLARED:
            found.append(Quirk(quirk.name, quirk.stream, None if quirk.fails else emitted, quirk.fails))
    return found


QUIRKS = {
    "openai_chat": chat_quirks.QUIRKS,
    "openai_responses": _of_responses() + responses_call_quirks.QUIRKS,
    "anthropic": anthropic_quirks.QUIRKS,
    "ollama": ollama_quirks.QUIRKS,
}
CASES = [
    pytest.param(upstream, quirk, id=f"{upstream}: {quirk.name}")
    for upstream in UPSTREAMS
    for quirk in QUIRKS[upstream]
    if len(quirk.stream) < LARGE
]


class Place(Struct):
    """The gateway, and what the server behind it sends next."""

    url: str
    answer: bytes = b""


@asynccontextmanager
async def _opened() -> AsyncIterator[Place]:
    place = Place("")

    async def play(peer: Peer) -> None:
        while await peer.request():
            await peer.send(place.answer)

    async with Faulty(play) as upstream:
        config = gateway_config(f"http://127.0.0.1:{upstream.port}")
        async with listening(Toolgate(config)) as place.url:
            yield place


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with in_a_thread(_opened()) as opened:
        yield opened


def asked(client: str, upstream: str, stream: bool) -> dict[str, Any]:
    """A request of this client that offers the tools that quirks call."""
    functions = [{"name": name, "description": "A tool.", "parameters": SCHEMA} for name in NAMES]
    more: dict[str, Any] = {}
    match client:
        case "openai_responses":
            more["tools"] = [{"type": "function", **function} for function in functions]
        case "anthropic":
            more["tools"] = [{"name": name, "description": "A tool.", "input_schema": SCHEMA} for name in NAMES]
        case _:
            more["tools"] = [{"type": "function", "function": function} for function in functions]
    if client == "openai_chat" and stream:
        more["stream_options"] = {"include_usage": True}
    return body(client, upstream, stream, "How is the weather?", **more)


def expected(emitted: ExpectedAnswer, client: str) -> ExpectedAnswer:
    """What a client of this dialect can see of an answer."""
    if client in ("anthropic", "ollama"):  # these have no refusals, so they are text
        emitted = replace(emitted, text=emitted.text + emitted.refusal, refusal="")
    if client == "ollama":  # half a call cannot be told apart from a whole one there, so it is not shown
        emitted = replace(emitted, calls=tuple([call for call in emitted.calls if call.complete]))
    if client != "anthropic" and emitted.reason == "pause":
        emitted = replace(emitted, reason="stop")
    return emitted


def complaint(emitted: ExpectedAnswer, found: Outcome, client: str, stream: bool) -> str | None:
    """What is wrong with an outcome, if anything is."""
    unusable = [call.name for call in emitted.calls if call.complete and not is_object(call.arguments)]
    if client == "anthropic" and stream and unusable:  # it has been sent when its end shows that it is no object
        return None if "not a JSON object" in found.error else f"no error: {found}"
    wanted = expected(emitted, client)
    if found.error:
        return f"an error: {found.error}"
    reason = "content_filter" if client == "anthropic" and emitted.refusal else wanted.reason
    pairs: dict[str, tuple[object, object]] = {
        "text": (found.text, wanted.text),
        "reasoning": (found.reasoning, wanted.reasoning),
        "refusal": (found.refusal, wanted.refusal),
        "reason": (found.reason, reason),
        "calls": (
            [(call.name, _value(call.arguments), call.complete) for call in found.calls],
            [(call.name, _value(call.arguments), call.complete) for call in wanted.calls],
        ),
    }
    if emitted.usage and not emitted.usage.missing:
        pairs["usage"] = (found.usage, (emitted.usage.input, emitted.usage.output))
    elif not found.usage[0]:
        return "the input is not counted"
    wrong = [f"{name} is {a!r}, not {b!r}" for name, (a, b) in pairs.items() if a != b]
    ids = [call.id for call in found.calls]
    if len(set(ids)) < len(ids):
        wrong.append(f"ids are not unique: {ids}")
    given = [call.id for call in wanted.calls]
    if not wrong and ids != ["legacy"] and any(want not in (None, id) for want, id in zip(given, ids, strict=True)):
        wrong.append(f"ids are {ids}, not {given}")
    return "; ".join(wrong) or None


def _value(arguments: str) -> Any:
    """Arguments as they are compared: an object by its value, no number rounded; other text as it is."""
    return json.loads(arguments, parse_float=str) if is_object(arguments) else arguments


def answers(upstream: str, stream: bytes) -> Iterator[tuple[str, bool, bytes]]:
    """The ways in which a quirk is sent: what it is, whether a stream is asked for, and the bytes."""
    yield "streamed", True, chunked(stream)
    yield "whole, sent as a stream", False, chunked(stream)
    made = WHOLE[upstream](stream)
    if made is not None:
        sent = whole(json.dumps(made).encode(), "content-type: application/json")
        yield "whole", False, sent
        yield "streamed, sent whole", True, sent


@pytest.mark.parametrize(("upstream", "quirk"), CASES)
async def test_a_quirk_ends_the_same_for_every_client(place: Place, upstream: str, quirk: Quirk) -> None:
    findings: list[str] = []
    failures: dict[str, set[str]] = {}
    for way, stream, sent in answers(upstream, quirk.stream):
        for client in CLIENTS:
            place.answer = sent
            async with HttpConnection(place.url) as caller:
                await caller.post(PATHS[client], asked(client, upstream, stream))
                received = await caller.response()
            try:
                found = outcome(client, stream, received)
                if quirk.expected is None:
                    failures.setdefault(way, set()).add(found.error)
                    wrong = None if found.error else f"no error: {found}"
                else:
                    wrong = complaint(quirk.expected, found, client, stream)
            except (AssertionError, KeyError, TypeError, ValueError, IndexError) as error:
                line = traceback.extract_tb(error.__traceback__)[-1].line
                wrong = f"{type(error).__name__}: {str(error)[:200]} at {line}"
            if wrong:
                findings.append(f"{client}, {way}: {wrong}\n    {received.status} {received.body[-400:]!r}")
    findings += [f"{way}: failures differ: {stated}" for way, stated in failures.items() if len(stated) > 1]
    assert not findings, f"{len(findings)} findings\n" + "\n".join(findings)


REASON = "The tray is empty."
REFUSALS: dict[str, bytes] = {
    "an object": b'{"error": {"message": "%b", "type": "x"}}',
    "a text": b'{"error": "%b"}',
    "FastAPI's": b'{"detail": [{"loc": ["body"], "msg": "%b"}]}',
    "Gemini's list": b'[{"error": {"code": 400, "message": "%b"}}]',
    "an unknown form": b'{"errors": [{"reason": "%b"}]}',
    "an event of a stream": b'event: error\ndata: {"error": {"message": "%b"}}\n\n',
    "a page": b"<html>%b</html>",
}


@pytest.mark.parametrize("form", REFUSALS)
async def test_the_reason_of_a_refusal_reaches_every_client(place: Place, form: str) -> None:
    """field: A30"""
    place.answer = whole(REFUSALS[form] % REASON.encode(), status="422 Unprocessable")
    stated = set()
    for client in CLIENTS:
        for stream in (False, True):
            async with HttpConnection(place.url) as caller:
                await caller.post(PATHS[client], asked(client, "openai_chat", stream))
                received = await caller.response()
            assert received.status == 400
            stated.add(outcome(client, stream, received).error)
    [message] = stated
    assert REASON in message
    assert "data:" not in message


def quirk_of(upstream: str, name: str) -> Quirk:
    """A quirk by its name."""
    return next(quirk for quirk in QUIRKS[upstream] if quirk.name == name)


THOUGHTS = {
    "openai_chat": "reasoning_content",
    "openai_responses": "reasoning_summaries",
    "anthropic": "a_thinking",
    "ollama": "o_thinking",
}


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_a_client_that_wants_no_thinking_gets_none(place: Place, upstream: str) -> None:
    quirk = quirk_of(upstream, THOUGHTS[upstream])
    for way, stream, place.answer in answers(upstream, quirk.stream):
        async with HttpConnection(place.url) as caller:
            await caller.post(PATHS["ollama"], {**asked("ollama", upstream, stream), "think": False})
            found = outcome("ollama", stream, await caller.response())
        assert (found.text, found.reasoning) == (quirk.expected and quirk.expected.text, ""), way


@pytest.mark.parametrize("upstream", ["openai_chat", "openai_responses", "ollama"])
async def test_a_message_starts_with_a_count_of_its_input(place: Place, upstream: str) -> None:
    plain = {"openai_chat": "one_write"}.get(upstream, "plain")
    place.answer = chunked(quirk_of(upstream, plain).stream)
    async with HttpConnection(place.url) as caller:
        await caller.post(PATHS["anthropic"], asked("anthropic", upstream, True))
        first = (await caller.response()).body.split(b"\n")[1]
    assert json.loads(first.removeprefix(b"data: "))["message"]["usage"]["input_tokens"] > 0


COUNTED: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 6},
            "completion_tokens_details": {"reasoning_tokens": 5},
        },
    },
    "openai_responses": {
        "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}],
        "usage": {
            "input_tokens": 20,
            "output_tokens": 9,
            "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 6},
            "output_tokens_details": {"reasoning_tokens": 5},
        },
    },
    "anthropic": {
        "type": "message",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 4,
            "output_tokens": 9,
            "cache_read_input_tokens": 10,
            "cache_creation_input_tokens": 6,
            "output_tokens_details": {"thinking_tokens": 5},
        },
    },
}
DETAILS: dict[str, list[str]] = {
    "openai_chat": ["prompt_tokens_details.cached_tokens", "prompt_tokens_details.cache_write_tokens"],
    "openai_responses": ["input_tokens_details.cached_tokens", "input_tokens_details.cache_write_tokens"],
    "anthropic": ["cache_read_input_tokens", "cache_creation_input_tokens"],
}
THOUGHT: dict[str, str] = {
    "openai_chat": "completion_tokens_details.reasoning_tokens",
    "openai_responses": "output_tokens_details.reasoning_tokens",
    "anthropic": "output_tokens_details.thinking_tokens",
}


@pytest.mark.parametrize("client", DETAILS)
@pytest.mark.parametrize("upstream", COUNTED)
async def test_cached_written_and_reasoning_tokens_reach_every_client(place: Place, upstream: str, client: str) -> None:
    place.answer = whole(json.dumps(COUNTED[upstream]).encode(), "content-type: application/json")
    async with HttpConnection(place.url) as caller:
        await caller.post(PATHS[client], asked(client, upstream, False))
        usage = (await caller.response()).json["usage"]

    def read(path: str) -> Any:
        return functools.reduce(lambda held, name: held[name], path.split("."), usage)

    assert [read(path) for path in (*DETAILS[client], THOUGHT[client])] == [10, 6, 5]


def _chat(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"object": "chat.completion", "choices": [choice], **more}


LINK = "https://example.org/page"
PAGE = {"url": LINK, "title": "A page", "start_index": 0, "end_index": 5}
CITED = {"type": "url_citation", **PAGE}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
CONTENT: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "citations of web pages": (
        "openai_chat",
        _chat({"content": "Hello", "annotations": [{"type": "url_citation", "url_citation": PAGE}]}),
        LINK,
        "annotations of the answer's text",
    ),
    "a list of sources": (
        "openai_chat",
        _chat({"content": "Hello"}, citations=[LINK]),
        LINK,
        "citations of the answer",
    ),
    "a picture": (
        "openai_chat",
        _chat(
            {"content": "Hello", "images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]}
        ),
        "aGk=",
        "this API cannot carry it",
    ),
    "sound": (
        "openai_chat",
        _chat({"content": None, "audio": {"id": "audio_1", "data": "aGk=", "transcript": "Hello"}}),
        "aGk=",
        "audio of the answer",
    ),
    "a search and its citations": (
        "openai_responses",
        {
            "status": "completed",
            "output": [
                SEARCH,
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Hello", "annotations": [CITED]}],
                },
            ],
        },
        LINK,
        "annotations of the answer's text",
    ),
    "a hosted search": (
        "openai_responses",
        {
            "status": "completed",
            "output": [SEARCH, {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}],
        },
        '"ws_1"',
        "'web_search_call'",
    ),
    "blocks of a tool that the upstream ran": (
        "anthropic",
        {
            "type": "message",
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "text", "text": "Hello"},
            ],
            "stop_reason": "end_turn",
        },
        "srvtoolu_1",
        "'server_tool_use'",
    ),
    "citations of a document": (
        "anthropic",
        {
            "type": "message",
            "content": [
                {"type": "text", "text": "Hello", "citations": [{"type": "char_location", "cited_text": LINK}]}
            ],
            "stop_reason": "end_turn",
        },
        LINK,
        "citations of the answer's text",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("upstream", "answer", "content", "warning"), CONTENT.values(), ids=CONTENT)
async def test_content_of_an_answer_arrives_or_is_named_in_a_warning(
    place: Place, client: str, stream: bool, upstream: str, answer: dict[str, Any], content: str, warning: str
) -> None:
    place.answer = whole(json.dumps(answer).encode(), "content-type: application/json")
    async with HttpConnection(place.url) as caller:
        await caller.post(PATHS[client], asked(client, upstream, stream))
        received = await caller.response()
    found = received.body.decode()
    warned = received.headers.get("x-toolgate-warning", "") + found
    assert received.status == 200, found
    assert "Hello" in found
    assert content in found or warning in warned
    if client == upstream:
        assert content in found
    if "url_citation" in json.dumps(answer) and client in ("openai_chat", "openai_responses"):
        assert content in found
        assert "annotations of" not in warned


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_calls_that_the_old_form_of_functions_has_no_place_for_are_named(place: Place, stream: bool) -> None:
    place.answer = chunked(quirk_of("openai_chat", "no_index_two").stream)
    functions = [{"name": name, "parameters": SCHEMA} for name in NAMES]
    async with HttpConnection(place.url) as caller:
        await caller.post(PATHS["openai_chat"], body("openai_chat", "openai_chat", stream, functions=functions))
        received = await caller.response()
    found = received.body.decode()
    assert '"function_call":{"name":"get_weather"' in found
    assert "several calls at once" in received.headers.get("x-toolgate-warning", "") + found
