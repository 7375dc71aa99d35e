"""An unknown field is refused in the body of every endpoint that is not a dialect's (fault: Z8).

The routes come from the server's own table: one that takes a body and is in neither list below fails here.
"""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api.test_keys import make
from tests.auth.tenants import Tenants, tenants

PASSED_ON = {
    *("/v1/chat/completions", "/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/api/generate"),
    *("/v1/messages/count_tokens", "/v1/responses/compact"),  # clients send these what they send for an answer
    "/api/show",  # as Ollama has it: what it does not know does no harm
    "/mcp",
}
"""Routes whose unknown fields are an upstream's business, or belong to a protocol that has them ignored."""

ITEM = {"role": "user", "content": "me"}
OURS: dict[str, tuple[str, str, Any]] = {
    "/v1/responses/{}/cancel": ("ann", "running", {}),
    "/v1/conversations": ("ann", "", {"items": [ITEM], "metadata": {"a": "1"}}),
    "/v1/conversations/{}": ("ann", "conversation", {"metadata": {"a": "2"}}),
    "/v1/conversations/{}/items": ("ann", "conversation", {"items": [ITEM]}),
    "/v1/chat/completions/{}": ("ann", "completion", {"metadata": {"a": "2"}}),
    "/v1/runs/{}/cancel": ("ann", "running", {}),
    "/v1/runs/{}/fork": ("ann", "running", {"step": 0}),
    "/v1/tools": ("root", "", {"type": "mcp", "name": "docs", "url": "http://127.0.0.1:1/"}),
    "/v1/tools/{}/accept": ("root", "tool", {"digest": "d0"}),
    "/v1/approvals/{}": ("ann", "approval", {"decision": "deny"}),
    "/v1/approvals/deny_all": ("ann", "", {}),
    "/v1/approvals/reset": ("ann", "", {}),
    "/v1/keys": ("root", "", {"name": "dora"}),
    "/v1/keys/{}": ("root", "key", {"concurrency": 1}),
    "/v1/keys/{}/rotate": ("root", "key", {"grace_seconds": 1}),
}
"""Who may send what to which route, about which thing."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Tenants]:
    async with tenants(tmp_path) as served:
        await served.own()
        made = await make(served)
        served.owned |= {"key": made["id"], "tool": "read"}
        yield served


async def test_every_route_that_takes_a_body_is_known_here(served: Tenants) -> None:
    assert {one.path for one in served.endpoints if one.method == "POST"} == PASSED_ON | set(OURS)


async def test_an_unknown_field_is_named_and_nothing_is_done(served: Tenants) -> None:
    before = await served.seen(), (await served.ask("GET", "/v1/keys", who="root")).json()
    for route, (who, thing, good) in OURS.items():
        path = route.replace("{}", served.owned[thing] if thing else "")
        received = await served.ask("POST", path, {**good, "colour": "red"}, who)
        error = received.json()["error"]
        assert (received.status_code, error["param"], error["code"]) == (400, "colour", "unknown_parameter"), route
        assert "colour" in error["message"]
    assert (await served.seen(), (await served.ask("GET", "/v1/keys", who="root")).json()) == before


async def test_without_the_field_the_same_body_is_taken(served: Tenants) -> None:
    """Otherwise the test above would prove nothing."""
    refused = {}
    for route, (who, thing, good) in OURS.items():
        received = await served.ask("POST", route.replace("{}", served.owned[thing] if thing else ""), good, who)
        if received.status_code >= 300:
            refused[route] = received.status_code
    known = {"/v1/tools/{}/accept": 404, "/v1/runs/{}/cancel": 409}
    assert refused == known, "its definition has not changed, and its response was cancelled before"


async def test_an_update_without_metadata_does_not_delete_it(served: Tenants) -> None:
    for path in (
        f"/v1/conversations/{served.owned['conversation']}",
        f"/v1/chat/completions/{served.owned['completion']}",
    ):
        received = await served.ask("POST", path, {}, "ann")
        assert (received.status_code, received.json()["error"]["param"]) == (400, "metadata")
        assert (await served.ask("POST", path, {"metadata": None}, "ann")).json()["metadata"] == {}


async def test_the_official_client_reports_unknown_fields_and_its_own_fields_work(served: Tenants) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="ann-key", max_retries=0) as client:
        made = await client.conversations.create(items=[{"role": "user", "content": "Hi"}], metadata={"a": "1"})
        await client.conversations.create()
        await client.conversations.update(made.id, metadata=None)
        await client.conversations.items.create(
            made.id, items=[{"role": "user", "content": "me"}], include=["reasoning.encrypted_content"]
        )
        await client.chat.completions.update(served.owned["completion"], metadata={"b": "2"})
        await client.responses.cancel(served.owned["running"])
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'title'") as refused:
            await client.conversations.create(extra_body={"title": "Tea"})
        assert (refused.value.param, refused.value.code) == ("title", "unknown_parameter")
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'why'"):
            await client.responses.cancel(served.owned["running"], extra_body={"why": "late"})
