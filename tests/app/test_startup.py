"""A whole server over either database: it starts without it, finds it again, and refuses tables of a newer version."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.api.http_client import HttpResponse, ask
from tests.databases import running_postgres
from toolgate.app.asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import LogSettings, ServerSettings
from toolgate.conversation.errors import GatewayFault
from toolgate.http.listener import listening
from toolgate.storage.database import Database
from toolgate.testing import ScriptedModel

KEY = "tg-ann-0123456789"
AUTHORIZED = f"authorization: Bearer {KEY}"


def gate(url: str, *answers: str) -> Toolgate:
    model = ModelConfig(name="m", targets=(TargetConfig(upstream=BUILTIN, model="m"),))
    ann = KeySettings(name="ann", key=Secret(KEY))
    config = Config(
        server=ServerSettings(port=0), keys=(ann,), models=(model,), storage=Secret(url), log=LogSettings(level="error")
    )
    return Toolgate(config, {"m": ScriptedModel(answers)})


async def respond(url: str, text: str, **more: Any) -> HttpResponse:
    return await ask(url, "/v1/responses", {"model": "m", "input": text, **more}, AUTHORIZED)


async def chat(url: str) -> HttpResponse:
    messages = [{"role": "user", "content": "Hi"}]
    return await ask(url, "/v1/chat/completions", {"model": "m", "messages": messages}, AUTHORIZED)


async def test_a_conversation_goes_on_at_another_node(storage_url: str) -> None:
    """spec: D4"""
    async with listening(gate(storage_url, "one")) as first, listening(gate(storage_url, "two")) as second:
        begun = (await respond(first, "Hi")).json
        continued = await respond(second, "And?", previous_response_id=begun["id"])
        assert continued.status == 200, continued
        unknown = await respond(second, "And?", previous_response_id="resp_none")
        assert unknown.status in (400, 404)


async def test_a_server_starts_and_serves_without_its_database_and_finds_it_again() -> None:
    """fault: K-K"""
    with running_postgres() as postgres, postgres.database() as url:
        await asyncio.to_thread(postgres.kill)
        async with listening(gate(url, *["word"] * 200)) as server:
            assert (await chat(server)).status == 200
            refused = await respond(server, "Hi", store=True)
            assert refused.status == 503, refused
            assert refused.json["error"]["code"] == "storage_unavailable"
            assert "retry-after" in refused.headers
            await asyncio.to_thread(postgres.start)
            async with asyncio.timeout(30):
                while (await respond(server, "Hi", store=True)).status != 200:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.1)


async def test_a_server_does_not_start_over_tables_of_a_newer_version(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    await database.change(lambda db: db.execute("INSERT INTO schema_versions VALUES (9999, 'future', 1.0)"))
    await database.aclose()
    with pytest.raises(GatewayFault, match="did not start"):
        async with listening(gate(f"sqlite:///{tmp_path}/a.db")):
            pass
