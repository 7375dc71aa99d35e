"""The gateway as a whole: what it stores, counts, writes into headers and admits."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.api.http_client import CLIENTS, PATHS, HttpConnection, ask, body
from tests.clients.scenes import HELLO, LOOK_UP, LOOK_UP_TWICE
from tests.stage import MEMORY, UPSTREAMS, Player, Stage, gateway_config, upstream_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import (
    BUILTIN,
    Config,
    ConfigError,
    KeySettings,
    LogSettings,
    ModelConfig,
    Secret,
    ServerSettings,
    TargetConfig,
    load,
)
from toolgate.config.settings import EmbeddedModelSettings
from toolgate.conversation.message import Reasoning, Text
from toolgate.http.exchange import HttpExchange
from toolgate.http.listener import listening
from toolgate.http.request_cycle import RequestResponseCycle
from toolgate.testing import Entry, ScriptedModel
from toolgate.upstreams.catalog import ModelCapabilities

every_client = pytest.mark.parametrize("client", CLIENTS)
every_upstream = pytest.mark.parametrize("upstream", UPSTREAMS)
OWNER = KeySettings(name="ann", key=Secret("tg-ann-0123456789"), scopes=("chat", "admin"))
GUEST = KeySettings(name="bob", key=Secret("tg-bob-0123456789"), models=("openai_chat",))
ANN, BOB = "authorization: Bearer tg-ann-0123456789", "x-api-key: tg-bob-0123456789"


@asynccontextmanager
async def open_stage(*script: Entry, pace: Any = None, **changes: Any) -> AsyncGenerator[tuple[str, ScriptedModel]]:
    """A gateway in this test's own loop, so that its configuration can differ."""
    player = Player()
    player.scripted = ScriptedModel(script, pace=pace)
    async with (
        listening(Toolgate(upstream_config(), {"played": player})) as upstream_url,
        listening(Toolgate(replace(gateway_config(upstream_url), **changes))) as url,
    ):
        yield url, player.scripted


async def get(url: str, path: str, *headers: str, method: str = "GET") -> Any:
    async with HttpConnection(url) as caller:
        host = url.removeprefix("http://")
        lines = [f"{method} {path} HTTP/1.1", *(headers or ()), "", ""]
        if not any(line.lower().startswith("host:") for line in headers):
            lines.insert(1, f"host: {host}")
        caller.writer.write("\r\n".join(lines).encode())
        return await caller.response()


@every_client
async def test_stream_headers_disable_buffering_in_proxies(stage: Stage, client: str) -> None:
    """field: G5"""
    stage.play(HELLO)
    received = await ask(stage.url, PATHS[client], body(client, "openai_chat", stream=True))
    assert received.headers["x-accel-buffering"] == "no"
    assert received.headers["cache-control"] == "no-cache"
    kind = "application/x-ndjson" if client == "ollama" else "text/event-stream"
    assert received.headers["content-type"].startswith(kind)


@every_client
@every_upstream
async def test_every_write_holds_whole_events(stage: Stage, client: str, upstream: str) -> None:
    """field: A32"""
    stage.play(LOOK_UP)
    end = b"\n" if client == "ollama" else b"\n\n"
    async with HttpConnection(stage.url) as caller:
        await caller.post(PATHS[client], body(client, upstream, stream=True))
        await caller.head()
        while piece := await caller.chunk():
            assert piece.endswith(end)
            assert b"\r" not in piece
            assert client != "openai_responses" or piece.count(end) == 1


@every_client
@every_upstream
async def test_a_streamed_answer_holds_its_text_once(stage: Stage, client: str, upstream: str) -> None:
    """field: D4, D6"""
    stage.play([Text("Unrepeatable")])
    received = await ask(stage.url, PATHS[client], body(client, upstream, stream=True))
    pieces = []
    for line in received.body.decode().split("\n"):
        line = line.removeprefix("data: ")
        if line.startswith("{"):
            pieces.append(delta_text(client, json.loads(line)))
    assert "".join(pieces) == "Unrepeatable"


def delta_text(client: str, event: dict[str, Any]) -> str:
    match client:
        case "openai_chat":
            return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        case "openai_responses":
            return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
        case "anthropic":
            return str(event.get("delta", {}).get("text", "")) if event["type"] == "content_block_delta" else ""
        case _:
            return str(event["message"]["content"])


async def test_any_upstream_serves_the_responses_api() -> None:
    """field: B39, D2"""
    async with open_stage(*[HELLO] * 8) as (url, _):
        for upstream in UPSTREAMS:
            made = await ask(url, "/v1/responses", {"model": upstream, "input": "Hi"})
            again = await get(url, f"/v1/responses/{made.json['id']}")
            assert again.json == made.json


async def test_what_the_client_did_wrong_is_never_a_500() -> None:
    """field: D15"""
    async with open_stage(HELLO) as (url, _):
        assert (await get(url, "/v1/responses/resp_nonesuch")).status == 404
        assert (await get(url, "/v1/responses/resp_nonesuch/cancel", method="POST")).status == 404
        assert (await get(url, "/v1/responses/resp_nonesuch", method="DELETE")).status == 404
        assert (await get(url, "/v1/messages")).status == 405
        assert (await get(url, "/v1/models/nonesuch")).status == 404


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_calls_and_tokens_are_counted_once_whatever_the_dialects(upstream: str) -> None:
    """field: G11, G15"""
    async with open_stage(*[LOOK_UP_TWICE] * 8) as (url, _):
        for client in CLIENTS:
            for stream in (True, False):
                await ask(url, PATHS[client], body(client, upstream, stream))
        text = (await get(url, "/metrics")).body.decode()
        counted = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        tokens = [
            float(v) for k, v in counted.items() if "tokens_total" in k and 'kind="output"' in k and upstream in k
        ]
        assert sum(tokens) == 8 * 16
        calls = [float(v) for k, v in counted.items() if "tool_calls_total" in k]
        assert sum(calls) == 8 * 2


async def test_what_a_client_that_left_had_used_is_recorded() -> None:
    """field: G2"""
    wait = asyncio.Event()
    async with open_stage([Text("a b c d e f")], pace=wait.wait) as (url, _), HttpConnection(url) as caller:
        await caller.post(PATHS["anthropic"], body("anthropic", "openai_chat", stream=True))
        await caller.head()
        await caller.chunk()
        caller.abort()
        for _ in range(100):
            text = (await get(url, "/metrics")).body.decode()
            if 'status="499"' in text:
                break
            await asyncio.sleep(0.01)
        assert 'status="499"' in text


@every_client
async def test_a_key_is_needed_and_may_come_in_any_form(client: str) -> None:
    """fault: Z3"""
    config = {"keys": (OWNER, GUEST)}
    async with open_stage(*[HELLO] * 3, **config) as (url, _):
        question = body(client, "openai_chat", stream=False)
        assert (await ask(url, PATHS[client], question)).status == 401
        refused = await ask(url, PATHS[client], question, "authorization: Bearer nonsense")
        assert (refused.status, refused.headers["x-should-retry"]) == (401, "false")
        for form in (ANN, BOB, "api-key: tg-ann-0123456789"):
            assert (await ask(url, PATHS[client], question, form)).status == 200
        assert (await ask(url, PATHS[client], question, ANN, BOB)).status == 400


async def test_a_key_sees_only_its_own_models_and_responses() -> None:
    async with open_stage(HELLO, keys=(OWNER, GUEST)) as (url, _):
        assert [one["id"] for one in (await get(url, "/v1/models", BOB)).json["data"]] == ["openai_chat"]
        refused = await ask(url, PATHS["openai_chat"], body("openai_chat", "anthropic", stream=False), BOB)
        unknown = await ask(url, PATHS["openai_chat"], body("openai_chat", "nonesuch", stream=False), BOB)
        assert refused.status == unknown.status == 404
        assert refused.body.replace(b"anthropic", b"nonesuch") == unknown.body
        made = await ask(url, "/v1/responses", {"model": "openai_chat", "input": "Hi"}, ANN)
        path = f"/v1/responses/{made.json['id']}"
        assert (await get(url, path, BOB)).status == 404
        assert (await get(url, path, ANN)).status == 200
        assert (await get(url, "/metrics", BOB)).status == 403


async def test_a_foreign_page_or_name_is_turned_away_on_loopback() -> None:
    """fault: V1"""
    async with open_stage() as (url, _):
        assert (await get(url, "/v1/models", "host: evil.example")).status == 421
        assert (await get(url, "/v1/models", "origin: https://evil.example")).status == 403
        assert (await get(url, "/v1/models", "host: a/b")).status == 400
        assert (await get(url, "/v1/models", "origin: http://localhost:3000")).status == 200
        preflight = ("origin: http://localhost:3000", "access-control-request-method: POST")
        assert (await get(url, "/v1/models", *preflight, method="OPTIONS")).status == 204


async def test_operators_get_health_metrics_and_the_document() -> None:
    async with open_stage() as (url, _):
        for path in ("/", "/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert (await get(url, path)).status == 200
        document = (await get(url, "/openapi.json")).json
        assert "/v1/chat/completions" in document["paths"]
        assert "/v1/responses/{id}" in document["paths"]
        async with HttpConnection(url) as caller:
            caller.writer.write(f"HEAD / HTTP/1.1\r\nhost: {url.removeprefix('http://')}\r\n\r\n".encode())
            assert (await caller.head())[0] == 200


async def test_a_request_keeps_its_id_in_answer_and_error() -> None:
    async with open_stage(HELLO) as (url, _):
        fine = await ask(url, PATHS["openai_chat"], body("openai_chat", "openai_chat", stream=True))
        wrong = await ask(url, PATHS["openai_chat"], b"{")
        assert len({fine.headers["x-request-id"], wrong.headers["x-request-id"]}) == 2
        assert fine.headers["request-id"] == fine.headers["x-request-id"]
        wrong = await ask(url, PATHS["anthropic"], b"{")
        assert wrong.json["request_id"] == wrong.headers["request-id"] == wrong.headers["x-request-id"]


async def test_a_mistyped_path_is_answered_with_the_path_that_was_meant(stage: Stage) -> None:
    meant = {
        "/v1/chat/completion": "/v1/chat/completions",
        "/v1/v1/messages": "/v1/messages",
        "/api/chats": "/api/chat",
    }
    for path, known in meant.items():
        received = await ask(stage.url, path, {})
        assert received.status == 404
        assert f"There is no '{path}' here. Did you mean {known}?" in received.body.decode()
    for path in ("/nothing/like/this", "/" + "v1/chat/" * 20):
        assert b"Did you mean" not in (await ask(stage.url, path, {})).body


async def test_unknown_fields_reach_an_upstream_of_the_same_dialect_and_no_other() -> None:
    """spec: U2"""
    async with open_stage(HELLO, HELLO) as (url, scripted):
        odd = body("openai_chat", "openai_chat", stream=False, vendor_option={"x": 1})
        await ask(url, PATHS["openai_chat"], odd)
        assert scripted.requests[0].extra["openai_chat"]["vendor_option"] == {"x": 1}
        await ask(url, PATHS["openai_chat"], {**odd, "model": "anthropic"})
        assert "vendor_option" not in msgspec.json.encode(scripted.requests[1].extra).decode()


def test_an_open_address_without_keys_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="key"):
        load(None, {}, host="0.0.0.0")


def test_the_default_configuration_serves_echo_on_loopback() -> None:
    config = Config(storage=MEMORY)
    assert (config.server.host, config.server.port) == (ServerSettings().host, 8080)
    assert [model.name for model in config.models] == ["echo"]


@every_client
async def test_a_stream_that_outlives_the_drain_is_ended_with_an_error(client: str) -> None:
    """fault: K-G"""
    output = 0

    async def four_events_then_silence() -> None:
        nonlocal output
        output += 1
        if output > 3:
            await asyncio.Event().wait()

    player = Player()
    player.scripted = ScriptedModel([[Text("a b c d e f")]], pace=four_events_then_silence)
    async with listening(Toolgate(upstream_config(), {"played": player})) as upstream_url:
        gateway = listening(Toolgate(gateway_config(upstream_url)), drain_seconds=0.05)
        url = await gateway.__aenter__()
        async with HttpConnection(url) as caller:
            await caller.post(PATHS[client], body(client, "openai_chat", stream=True))
            status, _ = await caller.head()
            text = await caller.chunk()
            await gateway.__aexit__(None, None, None)
            while piece := await caller.chunk():
                text += piece
    assert status == 200
    assert b"shutting down" in text
    assert b"response.completed" not in text
    assert b"message_stop" not in text
    assert b'"finish_reason":"stop"' not in text


def test_a_reload_takes_effect_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    """fault: R2"""
    path = tmp_path / "toolgate.yaml"
    path.write_text("models: [{name: one, upstream: builtin, model: echo}]\nstorage: 'sqlite://'\n")
    gate = Toolgate(load(path, {}))
    path.write_text("models: [{name: two, upstream: builtin, model: echo}]\nstorage: 'sqlite://'\n")
    gate.reload(path)
    assert [model.name for model in gate.config.models] == ["two"]
    path.write_text("models: [{nme: three}]\n")
    gate.reload(path)
    assert [model.name for model in gate.config.models] == ["two"]


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_arguments_come_whole_on_request(stage: Stage, upstream: str) -> None:
    stage.play(LOOK_UP)
    received = await ask(
        stage.url, PATHS["openai_chat"], body("openai_chat", upstream, stream=True), "x-toolgate-arguments: whole"
    )
    chunks = [json.loads(line[6:]) for line in received.body.decode().split("\n\n") if line.startswith("data: {")]
    deltas = [call for c in chunks for choice in c["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert [delta["function"]["arguments"] for delta in deltas] == ["", '{"city":"Paris"}']


@every_client
async def test_an_internal_error_in_the_middle_of_a_stream_is_sent_in_the_stream(client: str) -> None:
    player = Player()
    player.scripted = ScriptedModel([[Text("a b c"), RuntimeError("a defect")]])
    played = replace(upstream_config(), log=LogSettings(level="error"))
    async with listening(Toolgate(played, {"played": player})) as url:
        received = await ask(url, PATHS[client], body(client, "played", stream=True))
    assert received.status == 200
    assert not received.cut
    assert b"internal error" in received.body
    assert b"a defect" not in received.body


async def test_an_answered_request_leaves_nothing_to_the_garbage_collector(stage: Stage) -> None:
    asked = 12
    gc.collect()
    gc.disable()
    try:
        async with HttpConnection(stage.url) as caller:
            for _ in range(asked):
                stage.play(HELLO)
                await caller.post(PATHS["openai_chat"], body("openai_chat", "openai_chat", stream=False))
                assert (await caller.response()).status == 200
        alive = sum(type(one) in (RequestResponseCycle, HttpExchange) for one in gc.get_objects())
    finally:
        gc.enable()
    assert alive < asked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", [name for name in UPSTREAMS if name != "ollama"])
@pytest.mark.parametrize("think", [False, True, None])
async def test_an_ollama_client_that_turns_thinking_off_gets_none(
    stage: Stage, upstream: str, think: bool | None, stream: bool
) -> None:
    stage.play([Reasoning("Let me see."), Text("Hello.")])
    wanted: dict[str, Any] = {} if think is None else {"think": think}
    received = await ask(stage.url, PATHS["ollama"], body("ollama", upstream, stream, **wanted))
    messages = [json.loads(line)["message"] for line in received.body.splitlines()]
    assert "".join([message["content"] for message in messages]) == "Hello."
    thoughts = "".join([message.get("thinking", "") for message in messages])
    assert thoughts == ("" if think is False else "Let me see.")


@pytest.mark.parametrize("upstream", [name for name in UPSTREAMS if name != "anthropic"])
async def test_a_messages_stream_begins_with_about_the_size_of_its_input(stage: Stage, upstream: str) -> None:
    stage.play(HELLO)
    received = await ask(stage.url, PATHS["anthropic"], body("anthropic", upstream, True, text="word " * 400))
    start = next(json.loads(line[6:]) for line in received.body.decode().splitlines() if line.startswith("data: "))
    assert 300 < start["message"]["usage"]["input_tokens"] < 700


async def test_results_among_the_input_items_have_a_status(stage: Stage) -> None:
    """The official SDKs require it."""
    stage.play("Done.")
    call = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
    asked = {"model": "openai_chat", "input": [{"role": "user", "content": "Go."}, call, result]}
    response = (await ask(stage.url, "/v1/responses", asked)).json
    listed = await get(stage.url, f"/v1/responses/{response['id']}/input_items")
    assert [item["status"] for item in listed.json["data"]] == ["completed"] * 3


async def test_every_list_of_models_has_the_context_window_only_if_it_is_known(stage: Stage) -> None:
    local = ModelConfig(name="here", targets=(TargetConfig(upstream=BUILTIN, model="local"),))
    small = ModelConfig(
        name="small",
        targets=(TargetConfig(upstream=BUILTIN, model="echo"),),
        capabilities=ModelCapabilities(context=4096),
    )
    unknown = ModelConfig(name="unknown", targets=(TargetConfig(upstream=BUILTIN, model="echo"),))
    config = Config(
        server=ServerSettings(port=0), models=(local, small, unknown), storage=MEMORY, log=LogSettings(level="error")
    )
    models = {"local": ScriptedModel([]), "echo": ScriptedModel([])}
    async with listening(Toolgate(replace(config, embedded=EmbeddedModelSettings(context=8192)), models)) as url:
        openai = (await get(url, "/v1/models")).json["data"]
        anthropic = (await get(url, "/v1/models", "anthropic-version: 2023-06-01")).json["data"]
        shown = [(await ask(url, "/api/show", {"model": name})).json["model_info"] for name in ("here", "small")]
    for field in ("context_length", "max_model_len", "context_window"):
        assert [model.get(field) for model in openai] == [8192, 4096, None]
    assert [model.get("max_input_tokens") for model in anthropic] == [8192, 4096, None]
    lengths = [value for info in shown for name, value in info.items() if name.endswith(".context_length")]
    assert lengths == [8192, 4096]
