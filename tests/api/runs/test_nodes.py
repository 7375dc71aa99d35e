"""Any node shows, follows and cancels a run that another one makes (spec: E8, D4)."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.runs.test_runs import KEYS, Runs, forever
from tests.stage import QUIET, Player
from tests.tools.execution.toolwork import AUTO, TRUSTING, Oracle, Source, Work, call, soon
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import ServerSettings
from toolgate.http.listener import listening
from toolgate.runs import timeline_recorder
from toolgate.testing import ScriptedModel


@pytest.mark.parametrize("background", [False, True])
async def test_a_run_is_followed_and_cancelled_through_another_node(
    tmp_path: Path, storage_url: str, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    monkeypatch.setattr(timeline_recorder, "_BEAT_SECONDS", 0.2)
    write, idle = Oracle(tmp_path / "runs"), Oracle(tmp_path / "idle")
    write.give = forever
    player = Player()
    player.scripted = ScriptedModel([[call()], "Done."])
    config = Config(
        server=ServerSettings(port=0),
        models=(ModelConfig(name="m", targets=(TargetConfig(upstream=BUILTIN, model="echo"),)),),
        keys=KEYS,
        storage=Secret(storage_url),
        tools=TRUSTING,
        log=QUIET,
    )
    here, there = [Toolgate(config, {"echo": player}, sources=[Source(tool)]) for tool in (write, idle)]
    async with listening(here) as near_url, listening(there) as far_url:
        near, far = [Runs(Work(url, player, gate), write) for url, gate in ((near_url, here), (far_url, there))]
        body = {"model": "m", "input": "Go.", "background": background, **AUTO}
        asked = asyncio.ensure_future(near.post("/v1/responses", body))
        await asyncio.wait_for(write.began.wait(), 60)
        listed = await soon(lambda: running(far))
        id, seen = listed[0]["id"], list[Any]()
        cancelling: asyncio.Future[Any] | None = None
        headers = {"authorization": "Bearer ann-key"}
        async with far.client.stream("GET", f"/v1/runs/{id}?stream=true", headers=headers) as stream:
            async for line in stream.aiter_lines():
                if line.startswith('data: {"object"'):
                    seen.append(json.loads(line[6:]))
                    if cancelling is None and len(seen[-1]["timeline"]) == 2:
                        cancelling = asyncio.ensure_future(far.post(f"/v1/runs/{id}/cancel", {}))
        assert seen[-1]["state"] == "cancelled"
        assert cancelling is not None
        assert (await cancelling).json()["state"] == "cancelled"
        assert write.cancelled == 1
        assert (await asked).status_code == (200 if background else 400)
        for node in (near, far):
            await node.client.aclose()


async def running(node: Runs) -> list[Any]:
    return list((await node.get("/v1/runs?state=running"))["data"])
