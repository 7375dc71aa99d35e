"""The real embedded model behind a real server. It takes minutes and a gigabyte, so it runs only when it is asked for:

TOOLGATE_REAL_MODEL=qwen2.5-coder-1.5b pytest tests/embedded_model
"""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from toolgate.config import BUILTIN, Config, Model, Secret, Target
from toolgate.config.settings import Log, Server
from toolgate.server.build import Toolgate
from toolgate.server.edge.listen import listening
from toolgate.upstreams.embedded.keeper import Options
from toolgate.upstreams.embedded.model import EmbeddedModel

CHOSEN = os.environ.get("TOOLGATE_REAL_MODEL")
collect_ignore_glob = [] if CHOSEN else ["test_*"]
FETCHED_AND_LOADED = 600.0


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def url() -> AsyncIterator[str]:
    """A server with the model as `local` and the built-in tools; the model is ready."""
    ready, failed = asyncio.Event(), []

    def heard(state: object) -> None:
        if model.state.phase == "failed":
            failed.append(model.state.message)
        if model.state.ready or failed:
            ready.set()

    model = EmbeddedModel(Options(model=CHOSEN or ""), heard)
    local = Model(name="local", targets=(Target(upstream=BUILTIN, model="local"),))
    config = Config(server=Server(port=0), models=(local,), storage=Secret("sqlite://"), log=Log(level="error"))
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
