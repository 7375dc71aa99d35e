"""An upstream's answer may be nested 512 levels deep, as a client's body may; a deeper one is the upstream's fault."""

import copy
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpResponse, ask, body
from tests.dialects.test_laws import DIALECTS, REPLY, question, streamed
from tests.laws.test_wrong_types import ANSWER, CASE, FRAME, config_of
from tests.upstreams.transport.faulty import Faulty, Peer, head, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Text, ToolCall
from toolgate.dialects.dialect import Dialect
from toolgate.http.listener import listening

PLAIN = ModelResponse((Text("Hello there."),), "stop", Usage(100, 100))
NO_OBJECT = (b"not a JSON object", b"nested deeper than 512 levels", b"INVALID_JSON")
MARK = "the place of a deep value"
# At the last one the JSON could just be decoded before there was a limit, and not be encoded again.
LEVELS = (512, 513, 971)


def deepened(value: Any, levels: int) -> Iterator[bytes]:
    """The value with a deep list in an unknown field, once for each object in it."""
    for number in range(len(objects(value))):
        changed = copy.deepcopy(value)
        inner, level = objects(changed)[number]
        inner["x"] = MARK
        deep = "[" * (levels - level) + "]" * (levels - level)
        yield json.dumps(changed).replace(json.dumps(MARK), deep).encode()


def objects(value: Any, level: int = 1) -> list[tuple[dict[str, Any], int]]:
    """Every object in a value, with its level."""
    values = value.values() if type(value) is dict else value if type(value) is list else ()
    inside = [found for inner in values for found in objects(inner, level + 1)]
    return [(value, level), *inside] if type(value) is dict else inside


def answers(dialect: Dialect, stream: bool, answer: ModelResponse) -> Iterator[tuple[int, bytes]]:
    """This answer in the dialect, with deep fields, each time with the levels of its JSON."""
    request = question(dialect)
    if not stream:
        right = json.loads(dialect.server.encode_response(answer, request, REPLY))
        for levels in LEVELS:
            for deep in deepened(right, levels):
                yield levels, whole(deep, "content-type: application/json")
        return
    right_stream = streamed(dialect, answer, request, size=4)
    for frame in FRAME.finditer(right_stream):
        start, text, end = [group for group in frame.groups() if group is not None]
        for levels in LEVELS:
            for deep in deepened(json.loads(text), levels):
                sent = right_stream[: frame.start()] + start + deep + end + right_stream[frame.end() :]
                yield levels, head(f"content-type: {dialect.stream_type}", "connection: close") + sent


async def received(
    upstream: str, stream: bool, sent: Sequence[bytes], clients: Sequence[str] = CLIENTS
) -> AsyncGenerator[tuple[str, HttpResponse]]:
    """What clients receive of each answer; they take turns."""

    async def play(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            found = CASE.search(request.body)
            assert found is not None
            await peer.send(sent[int(found.group()[5:-1])])
            if stream:
                return

    async with Faulty(play) as server, listening(Toolgate(config_of(server.port))) as url:
        for number in range(len(sent)):
            client = clients[number % len(clients)]
            payload = body(client, upstream, stream, f"case-{number}- Hi", store=client == "openai_responses")
            yield client, await ask(url, PATHS[client], payload, "authorization: Bearer a-key")


@pytest.mark.parametrize("answer", [ANSWER, PLAIN], ids=["with a call", "plain"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("upstream", CLIENTS)
async def test_an_answer_may_be_nested_512_levels_deep(upstream: str, stream: bool, answer: ModelResponse) -> None:
    cases = list(answers(DIALECTS[upstream], stream, answer))
    depths = iter(cases)
    async with aclosing(received(upstream, stream, [sent for _, sent in cases])) as responses:
        async for client, response in responses:
            levels, sent = next(depths)
            case = (levels, client, sent[:300], response.body[-300:])
            if levels <= 512:
                assert response.status == 200, case
                assert b"error" not in response.body.replace(b'"error":null', b""), case
            else:
                assert response.status == 502 or (stream and response.status == 200), case
                assert b"The upstream's JSON is nested deeper than 512 levels." in response.body, case


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("upstream", CLIENTS)
async def test_arguments_that_are_nested_too_deeply_are_no_object(upstream: str, stream: bool) -> None:
    """Clients that get arguments as an object get an error or the text; the others the text as the model wrote it."""
    dialect, sent = DIALECTS[upstream], list[bytes]()
    request = question(dialect)
    for levels in (600, 971, 5_000):
        text = json.dumps({"a": MARK})
        deep = text.replace(json.dumps(MARK), "[" * (levels - 1) + "]" * (levels - 1))
        answer = ModelResponse((ToolCall("call_1", "add", text),), "tool_calls", Usage(100, 100))
        right = streamed(dialect, answer, request) if stream else dialect.server.encode_response(answer, request, REPLY)
        wrong = right.replace(json.dumps(text)[1:-1].encode(), json.dumps(deep)[1:-1].encode())
        wrong = wrong.replace(json.dumps(MARK).encode(), deep[5:-1].encode())
        assert wrong != right
        if stream:
            sent += [head(f"content-type: {dialect.stream_type}", "connection: close") + wrong] * len(CLIENTS)
        else:
            sent += [whole(wrong, "content-type: application/json")] * len(CLIENTS)
    async with aclosing(received(upstream, stream, sent)) as responses:
        async for client, response in responses:
            case = (client, response.status, response.body[:300], response.body[-300:])
            assert response.status in (200, 502), case
            assert b"internal error" not in response.body, case
            if client in ("anthropic", "ollama"):
                assert any(text in response.body for text in NO_OBJECT), case
