"""Usage where the upstream reports none, over real sockets: estimated in every API, streamed or whole."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, ask, body
from tests.laws.metered_upstream import TOOL, Case, MeteredUpstream
from tests.laws.test_ledger import config_of
from tests.upstreams.transport.faulty import Faulty
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.http.listener import listening
from toolgate.testing import FakeSource, FakeTool

COUNTS = re.compile(rb'"(?:completion_tokens|output_tokens|eval_count)":\s*(\d+)')
WANTED: dict[str, dict[str, Any]] = {"openai_chat": {"stream_options": {"include_usage": True}}}


def silent(name: str, client: str, stream: bool, **changes: Any) -> Case:
    """A case whose upstream speaks the client's dialect and never reports usage."""
    fields: dict[str, Any] = {"tools": False, "usage": "never", "ending": "complete", "stands_still": None}
    return Case(name, client, client, stream, **{**fields, **changes})


@asynccontextmanager
async def serving(case: Case, *sources: FakeSource) -> AsyncGenerator[str]:
    """A gateway over the upstream of this case."""
    async with Faulty(MeteredUpstream([case]).play) as upstream:
        gate = Toolgate(config_of([case], upstream.port, "sqlite://"), sources=sources)
        async with listening(gate) as url:
            yield url


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_relayed_answer_without_usage_ends_with_an_estimate(client: str, stream: bool) -> None:
    case = silent("case-0", client, stream)
    async with serving(case) as url:
        more = WANTED.get(client, {}) if stream else {}
        key = "authorization: Bearer case-0-key"
        received = await ask(url, PATHS[client], body(client, client, stream, "case-0: Hi", **more), key)
        assert received.status == 200
        counts = [int(count) for count in COUNTS.findall(received.body)]
        assert counts[-1] == 9
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer case-0-key"}) as caller:
            [row] = (await caller.get("/v1/usage")).json()["data"]
        assert (row["requests"], row["output_tokens"], row["estimated"]) == (1, 9, 1)
        assert row["input_tokens"] > 5


async def test_a_chat_client_that_wants_no_usage_gets_no_chunk_of_it() -> None:
    case = silent("case-0", "openai_chat", True)
    async with serving(case) as url:
        payload = body("openai_chat", "openai_chat", True, "case-0: Hi")
        received = await ask(url, PATHS["openai_chat"], payload, "authorization: Bearer case-0-key")
    assert b"usage" not in received.body
    assert received.body.endswith(b"data: [DONE]\n\n")


async def test_a_cancelled_background_response_pays_for_the_steps_it_made() -> None:
    case = silent("case-0", "openai_responses", True, tools=True, usage="late", stands_still=2)
    add = FakeTool(TOOL, lambda arguments: "5")
    async with serving(case, FakeSource(add)) as url, httpx.AsyncClient(base_url=url, timeout=30) as caller:
        caller.headers["authorization"] = "Bearer case-0-key"
        more = {"background": True, "store": True, "tool_execution": "auto", "use_server_tools": [TOOL]}
        payload = body("openai_responses", "openai_responses", False, "case-0: Hi", **more)
        made = (await caller.post("/v1/responses", json=payload)).json()
        await asyncio.wait_for(case.paused.wait(), 30)
        cancelled = (await caller.post(f"/v1/responses/{made['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled", json.dumps(cancelled)
        [row] = (await caller.get("/v1/usage")).json()["data"]
    assert row["input_tokens"] + row["output_tokens"] >= case.total > 0
    assert row["cost"] >= case.total
