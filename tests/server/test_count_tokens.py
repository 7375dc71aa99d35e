"""`POST /v1/messages/count_tokens` over real sockets: an Anthropic upstream counts, else a header says that we did."""

import json
from typing import Any

from tests.server.talk import Heard, ask
from tests.stage import MEMORY, QUIET
from tests.upstreams.faulty import Faulty, Script, answering, whole
from toolgate.config import Config, Model, Target, Upstream
from toolgate.config.settings import Server
from toolgate.server.build import Toolgate
from toolgate.server.edge.listen import listening

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


async def count(dialect: str, script: Script) -> tuple[Heard, Faulty]:
    async with Faulty(script) as faulty:
        base = f"http://127.0.0.1:{faulty.port}/v1"
        upstream = Upstream(name="u", dialect=dialect, base_url=base)  # type: ignore[arg-type]
        model = Model(name="m", targets=(Target(upstream="u", model="up"),))
        config = Config(server=Server(port=0), upstreams={"u": upstream}, models=(model,), storage=MEMORY, log=QUIET)
        async with listening(Toolgate(config)) as url:
            heard = await ask(url, "/v1/messages/count_tokens", BODY, "anthropic-beta: some-beta")
    return heard, faulty


async def test_an_anthropic_upstream_counts_the_tokens_of_its_own_requests() -> None:
    heard, faulty = await count("anthropic", answering(COUNTED))
    assert (heard.status, heard.json) == (200, {"input_tokens": 4711})
    assert "x-toolgate-usage" not in heard.headers
    [request] = faulty.requests
    assert request.target == "/v1/messages/count_tokens"
    assert request.headers["anthropic-beta"] == "some-beta"
    sent = json.loads(request.body)
    assert sent.keys() == {"model", "system", "messages", "tools"}
    assert sent["model"] == "up"


async def test_what_is_counted_here_is_marked_as_an_estimate() -> None:
    heard, faulty = await count("openai_chat", answering(COUNTED))
    assert 10 < heard.json["input_tokens"] < 100
    assert heard.headers["x-toolgate-usage"] == "estimated"
    assert not faulty.requests


async def test_an_upstream_that_cannot_count_is_stood_in_for() -> None:
    for answer in (whole(b'{"error":{"message":"no"}}', status="404 Not Found"), whole(b"[]"), whole(b"<html>")):
        heard, faulty = await count("anthropic", answering(answer))
        assert 10 < heard.json["input_tokens"] < 100
        assert heard.headers["x-toolgate-usage"] == "estimated"
        assert len(faulty.requests) == 1
