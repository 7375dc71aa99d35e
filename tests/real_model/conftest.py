"""The real embedded model behind a real server. It takes minutes and a gigabyte, so it runs only when it is asked for:

TOOLGATE_REAL_MODEL=qwen2.5-coder-1.5b pytest tests/real_model
"""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import BUILTIN, Config, ModelConfig, Secret, TargetConfig
from toolgate.config.settings import LogSettings, ServerSettings
from toolgate.http.listener import listening
from toolgate.upstreams.local.engine_supervisor import EngineOptions
from toolgate.upstreams.local.model import LocalModel

CHOSEN = os.environ.get("TOOLGATE_REAL_MODEL")
collect_ignore_glob = [] if CHOSEN else ["test_*"]
FETCHED_AND_LOADED = 600.0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def url() -> AsyncIterator[str]:
    """A server with the model as `local` and the built-in tools; the model is ready."""
    ready = asyncio.Event()
    failed: list[object] = []

    def response(state: object) -> None:
        if model.state.phase == "failed":
            failed.append(model.state.message)
        if model.state.ready or failed:
            ready.set()

    model = LocalModel(EngineOptions(model=CHOSEN or ""), response)
    local = ModelConfig(name="local", targets=(TargetConfig(upstream=BUILTIN, model="local"),))
    config = Config(
        server=ServerSettings(port=0), models=(local,), storage=Secret("sqlite://"), log=LogSettings(level="error")
    )
    try:
        model.start()
        async with asyncio.timeout(FETCHED_AND_LOADED):
            await ready.wait()
        if failed:
            pytest.fail(f"the model is not there: {failed[0]}")
        async with listening(Toolgate(config, {"local": model})) as served:
            yield served
    finally:
        await model.aclose()
