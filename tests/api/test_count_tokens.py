"""`POST /v1/messages/count_tokens` over real sockets: an Anthropic upstream counts, else a header marks the estimate."""

import json
from typing import Any

from tests.api.http_client import HttpResponse, ask
from tests.stage import MEMORY, QUIET
from tests.upstreams.transport.faulty import Faulty, Script, answering, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.config.settings import ServerSettings
from toolgate.http.listener import listening

TOOL = {"name": "add", "input_schema": {"type": "object"}}
BODY: dict[str, Any] = {
    "model": "m",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "Hello there"}],
    "tools": [TOOL],
    "max_tokens": 50,
    "temperature": 0.5,
}
COUNTED = whole(b'{"input_tokens": 4711}')


async def count(dialect: str, script: Script) -> tuple[HttpResponse, Faulty]:
    async with Faulty(script) as faulty:
        base = f"http://127.0.0.1:{faulty.port}/v1"
        upstream = UpstreamConfig(name="u", dialect=dialect, base_url=base)  # type: ignore[arg-type]
        model = ModelConfig(name="m", targets=(TargetConfig(upstream="u", model="up"),))
        config = Config(
            server=ServerSettings(port=0), upstreams={"u": upstream}, models=(model,), storage=MEMORY, log=QUIET
        )
        async with listening(Toolgate(config)) as url:
            received = await ask(url, "/v1/messages/count_tokens", BODY, "anthropic-beta: some-beta")
    return received, faulty


async def test_an_anthropic_upstream_counts_the_tokens_of_its_own_requests() -> None:
    received, faulty = await count("anthropic", answering(COUNTED))
    assert (received.status, received.json) == (200, {"input_tokens": 4711})
    assert "x-toolgate-usage" not in received.headers
    [request] = faulty.requests
    assert request.target == "/v1/messages/count_tokens"
    assert request.headers["anthropic-beta"] == "some-beta"
    sent = json.loads(request.body)
    assert sent.keys() == {"model", "system", "messages", "tools"}
    assert sent["model"] == "up"


async def test_what_is_counted_here_is_marked_as_an_estimate() -> None:
    received, faulty = await count("openai_chat", answering(COUNTED))
    assert 10 < received.json["input_tokens"] < 100
    assert received.headers["x-toolgate-usage"] == "estimated"
    assert not faulty.requests


async def test_tokens_are_estimated_when_the_upstream_cannot_count() -> None:
    for answer in (whole(b'{"error":{"message":"no"}}', status="404 Not Found"), whole(b"[]"), whole(b"<html>")):
        received, faulty = await count("anthropic", answering(answer))
        assert 10 < received.json["input_tokens"] < 100
        assert received.headers["x-toolgate-usage"] == "estimated"
        assert len(faulty.requests) == 1
