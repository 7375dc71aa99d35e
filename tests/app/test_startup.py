"""A whole server over either database: it starts without it, finds it again, and refuses tables of a newer version."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.http_client import CLIENTS, PATHS, HttpResponse, ask, body
from tests.databases import running_postgres
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, KeySettings, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import LogSettings, ServerSettings
from toolgate.conversation.errors import InternalGatewayError
from toolgate.http.listener import listening
from toolgate.storage import job_threads
from toolgate.storage.database import Database, SqlConnection
from toolgate.telemetry.log_writer import Level
from toolgate.testing import ScriptedModel

KEY = "tg-ann-0123456789"
AUTHORIZED = f"authorization: Bearer {KEY}"


def gate(url: str, *answers: str, level: Level = "error") -> Toolgate:
    model = ModelConfig(name="m", targets=(TargetConfig(upstream=BUILTIN, model="m"),))
    ann = KeySettings(name="ann", key=Secret(KEY))
    config = Config(
        server=ServerSettings(port=0), keys=(ann,), models=(model,), storage=Secret(url), log=LogSettings(level=level)
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


async def test_while_the_disk_hangs_only_requests_that_need_the_storage_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault: K-I, a sync that does not return: health, models and plain answers need no storage, and no record is lost"""
    app, hang, goes_on = gate(f"sqlite:///{tmp_path}/a.db", *["word"] * 12), threading.Event(), threading.Event()
    async with listening(app) as server, asyncio.TaskGroup() as tasks:
        database = app.services.database

        def commit(_: SqlConnection) -> None:
            hang.set()
            goes_on.wait(60)

        tasks.create_task(database.change(commit))
        await asyncio.to_thread(hang.wait, 60)
        monkeypatch.setattr(database._engine, "queue_seconds", 0.05)
        try:
            for client in CLIENTS:
                for stream in (False, True):
                    answered = await ask(server, PATHS[client], body(client, "m", stream), AUTHORIZED)
                    assert answered.status == 200, (client, answered)
                    assert b"word" in answered.body
            async with httpx.AsyncClient(base_url=server, headers={"authorization": f"Bearer {KEY}"}) as caller:
                for path in ("/healthz", "/readyz", "/v1/models"):
                    assert (await caller.get(path)).status_code == 200, path
            refused = await respond(server, "Hi", store=True)
            assert (refused.status, refused.json["error"]["code"]) == (503, "storage_unavailable")
            assert "retry-after" in refused.headers
            app.services.records.ended.pass_on()
            await app.services.records.writer.flush(0.5)  # is tried in vain
        finally:
            goes_on.set()
        monkeypatch.undo()
        assert (await respond(server, "Hi", store=True)).status == 200
        app.services.records.ended.pass_on()
        await app.services.records.writer.flush(60)
        count = await database.read(lambda db: db.execute("SELECT count(*) FROM request_records").fetchone())
        assert count[0] >= 8, "the records of the answers were written later"


async def test_slow_storage_is_logged_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    app = gate(f"sqlite:///{tmp_path}/a.db", "word", level="warning")
    async with listening(app) as server:
        monkeypatch.setattr(job_threads, "SLOW_SECONDS", 0.0)
        assert (await respond(server, "Hi", store=True)).status == 200
        metrics = app.services.telemetry.metrics.render().decode()
    [line, *_] = [line for line in capfd.readouterr().err.splitlines() if "ResponseStore.save" in line]
    logged = json.loads(line)
    assert (logged["event"], logged["level"]) == ("storage is slow", "warning")
    assert {"jobs", "seconds", "commit_seconds", "waiting"} <= logged.keys()
    counted = dict([line.split() for line in metrics.splitlines() if line.startswith("toolgate_storage_slow")])
    assert float(counted["toolgate_storage_slow_total"]) >= 1
    assert float(counted["toolgate_storage_slow_seconds_total"]) > 0


async def test_a_server_does_not_start_over_tables_of_a_newer_version(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    await database.change(lambda db: db.execute("INSERT INTO schema_versions VALUES (9999, 'future', 1.0)"))
    await database.aclose()
    with pytest.raises(InternalGatewayError, match="did not start"):
        async with listening(gate(f"sqlite:///{tmp_path}/a.db")):
            pass
