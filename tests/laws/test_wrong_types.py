"""Whatever types an upstream puts into the fields of its answer, a client gets an answer or `upstream_garbled`, never 500.

Well-formed answers come from the dialects' own server halves; values in them are replaced by others. What was received is
charged for, and never with a negative count.
"""

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, ask, body
from tests.dialects.test_laws import DIALECTS, REPLY, question, streamed
from tests.upstreams.transport.faulty import Faulty, Peer, head, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, KeySettings, ModelConfig, Secret, TargetConfig, UpstreamConfig
from toolgate.config.settings import BreakerSettings, KeyBudgetSettings, PriceSettings, ServerSettings
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Reasoning, Text, ToolCall
from toolgate.dialects.dialect import Dialect
from toolgate.http.listener import listening
from toolgate.upstreams.catalog import DialectName

CASES = 120  # of each dialect, whole and streamed
OTHER_VALUES: list[Any] = [
    None, True, -1, 10**30, 1.5, "", "x", "\ud800x", [], {}, [None], ["x"], [{}], {"a": 1}, {"type": "text"},
]  # fmt: skip
ANSWER = ModelResponse(
    (Reasoning("Let me see."), Text("Hello."), ToolCall("call_1", "add", '{"a":"x"}')), "tool_calls", Usage(100, 100)
)
FRAME = re.compile(rb"((?:event: [^\n]*\n)?data: )(\{.*\})(\n\n)|()(\{.*\})(\n)")
COUNT = re.compile(rb'("\w+_tokens": ?|"(?:prompt_)?eval_count": ?)\d+')
CASE = re.compile(rb"case-\d+-")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a value with each of its keys."""
    inner = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, one in list(inner):
        yield value, key
        yield from places(one)


def changed(value: Any, rng: random.Random) -> bytes:
    """The value with up to three others inside."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        container, key = rng.choice(list(places(value)) or [({}, "a")])
        if type(container) is dict and rng.random() < 0.15:
            container.pop(key, None)
        else:
            container[key] = copy.deepcopy(rng.choice(OTHER_VALUES))
    return json.dumps(value).encode()


def answers(dialect: Dialect, stream: bool, rng: random.Random) -> Iterator[bytes]:
    """Answers of this dialect with values of wrong types."""
    request = question(dialect)
    if not stream:
        right = json.loads(dialect.server.encode_response(ANSWER, request, REPLY))
        for _ in range(CASES):
            yield whole(changed(right, rng), "content-type: application/json")
        return
    right_stream = streamed(dialect, ANSWER, request, size=4)
    frames = [match.span() for match in FRAME.finditer(right_stream)]
    for _ in range(CASES):
        start, end = rng.choice(frames)
        match = FRAME.fullmatch(right_stream[start:end])
        assert match is not None
        before, frame, after = [group for group in match.groups() if group is not None]
        wrong = before + changed(json.loads(frame), rng) + after
        yield head(f"content-type: {dialect.stream_type}", "connection: close") + (
            right_stream[:start] + wrong + right_stream[end:]
        )


def config_of(port: int) -> Config:
    bases = dict.fromkeys(CLIENTS, f"http://127.0.0.1:{port}/v1") | {"ollama": f"http://127.0.0.1:{port}"}
    return Config(
        server=ServerSettings(port=0),
        upstreams={
            name: UpstreamConfig(
                name=name, dialect=cast(DialectName, name), base_url=base, breaker=BreakerSettings(failures=0)
            )
            for name, base in bases.items()
        },
        models=tuple(
            ModelConfig(
                name=name,
                targets=(TargetConfig(upstream=name, model="up"),),
                retries=0,
                price=PriceSettings(input=1, output=1),
            )
            for name in CLIENTS
        ),
        keys=(KeySettings(name="k", key=Secret("a-key"), budget=KeyBudgetSettings(amount=1e12, period="total")),),
        storage=Secret("sqlite://"),
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("upstream", CLIENTS)
async def test_values_of_wrong_types_are_the_upstreams_fault(upstream: str, stream: bool) -> None:
    rng = random.Random(f"{upstream} {stream}")  # the same cases every time
    sent = list(answers(DIALECTS[upstream], stream, rng))

    async def play(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            found = CASE.search(request.body)
            assert found is not None
            await peer.send(sent[int(found.group()[5:-1])])
            if stream:
                return

    async with Faulty(play) as server, listening(Toolgate(config_of(server.port))) as url:
        for number, answer in enumerate(sent):
            client = CLIENTS[number % len(CLIENTS)]
            payload = body(client, upstream, stream, f"case-{number}- Hi", store=client == "openai_responses")
            response = await ask(url, PATHS[client], payload, "authorization: Bearer a-key")
            assert response.status != 500, (client, answer)
            assert b"internal error" not in response.body, (client, answer)
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer a-key"}) as caller:
            [row] = (await caller.get("/v1/usage")).json()["data"]
        assert row["input_tokens"] > 50 * CASES
        assert 0 < row["output_tokens"] <= 100 * CASES


async def test_a_summary_with_values_of_wrong_types_is_the_upstreams_fault() -> None:
    sent = list(answers(DIALECTS["openai_responses"], False, random.Random("compaction")))

    async def play(peer: Peer) -> None:
        while (request := await peer.request()) is not None:
            found = CASE.search(request.body)
            assert found is not None
            await peer.send(sent[int(found.group()[5:-1])])

    async with Faulty(play) as server, listening(Toolgate(config_of(server.port))) as url:
        for number, answer in enumerate(sent):
            payload = json.dumps({"model": "openai_responses", "input": f"case-{number}- Hi"}).encode()
            response = await ask(url, "/v1/responses/compact", payload, "authorization: Bearer a-key")
            assert response.status in (200, 502), answer


HALVES = {
    "openai_chat": (b"prompt_tokens", b"completion_tokens"),
    "openai_responses": (b"input_tokens", b"output_tokens"),
    "anthropic": (b"input_tokens", b"output_tokens"),
    "ollama": (b"prompt_eval_count", b"eval_count"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("missing", [0, 1], ids=["input", "output"])
@pytest.mark.parametrize("upstream", CLIENTS)
async def test_one_count_of_two_is_estimated_and_the_other_kept(upstream: str, missing: int, stream: bool) -> None:
    dialect, names = DIALECTS[upstream], HALVES[upstream]
    request = question(dialect)
    right = streamed(dialect, ANSWER, request) if stream else dialect.server.encode_response(ANSWER, request, REPLY)
    if upstream == "openai_chat" and stream:  # which reports usage where it is wanted
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":100}}\n\n'
        right = right.replace(b"data: [DONE]", usage + b"data: [DONE]")
    wrong = re.sub(rb'"%b": ?\d+' % names[missing], b'"unknown":1', right)
    if upstream == "anthropic":  # cached input is input, too
        wrong = re.sub(rb'"cache_\w+": ?\d+', b'"unknown":1', wrong)
    assert wrong != right
    start = head(f"content-type: {dialect.stream_type}", "connection: close") if stream else b""
    sent = start + wrong if stream else whole(wrong, "content-type: application/json")

    async def play(peer: Peer) -> None:
        while await peer.request() is not None:
            await peer.send(sent)
            if stream:
                return

    async with Faulty(play) as server, listening(Toolgate(config_of(server.port))) as url:
        for number, client in enumerate(CLIENTS, 1):
            wanted = {"stream_options": {"include_usage": True}} if client == "openai_chat" and stream else {}
            payload = body(client, upstream, stream, "Hi there", **wanted)
            response = await ask(url, PATHS[client], payload, "authorization: Bearer a-key")
            assert response.status == 200, response.body
            counts = [
                [int(one) for one in re.findall(rb'"%b": ?(\d+)' % name, response.body)] for name in HALVES[client]
            ]
            assert 0 < counts[missing][-1] < 50, (client, response.body)
            assert counts[1 - missing][-1] == 100, (client, response.body)
            async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer a-key"}) as caller:
                [row] = (await caller.get("/v1/usage")).json()["data"]
            assert row["requests"] == row["estimated"] == number
            reported = row["output_tokens" if missing == 0 else "input_tokens"]
            estimated = row["input_tokens" if missing == 0 else "output_tokens"]
            assert reported == 100 * number
            assert 0 < estimated < 50 * number


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("count", [-1_000_000, 10**30, 1e300, None, "12", [1]])
@pytest.mark.parametrize("upstream", CLIENTS)
async def test_counts_that_can_be_none_are_estimated(upstream: str, count: Any, stream: bool) -> None:
    dialect, written = DIALECTS[upstream], json.dumps(count).encode()
    request = question(dialect)
    right = streamed(dialect, ANSWER, request) if stream else dialect.server.encode_response(ANSWER, request, REPLY)
    wrong = COUNT.sub(lambda match: match[1] + written, right)
    if upstream == "openai_chat" and stream:  # which reports usage where it is wanted
        usage = b'data: {"choices":[],"usage":{"prompt_tokens":%b}}\n\n' % written
        wrong = wrong.replace(b"data: [DONE]", usage + b"data: [DONE]")
    assert written in wrong

    async def play(peer: Peer) -> None:
        while await peer.request() is not None:
            if stream:
                await peer.send(head(f"content-type: {dialect.stream_type}", "connection: close") + wrong)
                return
            await peer.send(whole(wrong, "content-type: application/json"))

    async with Faulty(play) as server, listening(Toolgate(config_of(server.port))) as url:
        payload = body(upstream, upstream, stream, "Hi there")
        assert (await ask(url, PATHS[upstream], payload, "authorization: Bearer a-key")).status == 200
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer a-key"}) as caller:
            [row] = (await caller.get("/v1/usage")).json()["data"]
        assert row["requests"] == row["estimated"] == 1
        assert 0 < row["input_tokens"] < 1000
        assert 0 < row["output_tokens"] < 1000
