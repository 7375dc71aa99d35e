"""When an upstream is left alone, over real sockets: a request counts once, 429 never, and the only upstream stays open."""

import json

import pytest

from tests.api.http_client import PATHS, HttpResponse, ask, body
from tests.app.test_faults import GOOD_WHOLE, gateway
from tests.ports import refusing_port
from tests.stage import MEMORY
from tests.upstreams.transport.faulty import Script, answering, whole
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import Config, ModelConfig, TargetConfig, UpstreamConfig
from toolgate.config.settings import BreakerSettings, ServerSettings
from toolgate.http.listener import listening

CHAT = PATHS["openai_chat"]


def refusing(status: str) -> Script:
    """An upstream that answers every request with this status."""
    return answering(whole(json.dumps({"error": {"message": "no"}}).encode(), status=status))


async def asked(url: str) -> HttpResponse:
    return await ask(url, CHAT, body("openai_chat", "m", False))


async def test_the_only_upstream_is_asked_again_however_often_it_answers_500() -> None:
    async with gateway(refusing("500 Oops"), retries=1, failures=2) as (url, [upstream]):
        assert [(await asked(url)).status for _ in range(5)] == [502] * 5
        assert len(upstream.requests) > 5


async def test_429_stays_429_and_does_not_count() -> None:
    async with gateway(refusing("429 Slow down"), failures=2) as (url, [upstream]):
        assert [(await asked(url)).status for _ in range(5)] == [429] * 5
        assert len(upstream.requests) == 5
    async with gateway(refusing("429 Slow down"), answering(GOOD_WHOLE), failures=2) as (url, [upstream, _]):
        assert [(await asked(url)).status for _ in range(5)] == [200] * 5
        assert len(upstream.requests) == 5


async def test_a_request_that_is_retried_counts_once() -> None:
    async with gateway(refusing("500 Oops"), answering(GOOD_WHOLE), retries=2, failures=2) as (url, [upstream, _]):
        assert (await asked(url)).status == 200
        first = len(upstream.requests)
        assert first > 1
        assert (await asked(url)).status == 200
        second = len(upstream.requests)
        assert second > first
        assert (await asked(url)).status == 200
        assert len(upstream.requests) == second


async def test_the_only_upstream_is_left_alone_when_it_cannot_be_reached(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with refusing_port() as port:
        url = f"http://127.0.0.1:{port}/v1"
        upstream = UpstreamConfig(name="u", dialect="openai_chat", base_url=url, breaker=BreakerSettings(failures=2))
        model = ModelConfig(name="m", targets=(TargetConfig(upstream="u", model="up"),), retries=0)
        config = Config(server=ServerSettings(port=0), upstreams={"u": upstream}, models=(model,), storage=MEMORY)
        async with listening(Toolgate(config)) as gate:
            response = [await asked(gate) for _ in range(3)]
        assert [one.json["error"]["code"] for one in response] == ["upstream_unavailable"] * 2 + ["circuit_open"]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    [line] = [line for line in lines if line["event"] == "circuit"]
    fields = {"upstream": "u", "model": "m", "state": "open", "code": "upstream_unavailable", "level": "warning"}
    assert fields.items() <= line.items()
