"""Memory law: what a client sent is freed when it has been answered, without waiting for the garbage collector.

The server collects garbage seldom (`app/startup_helpers.py`). A reference cycle around a large body is therefore a leak
for as long as a client likes: sixty refused bodies of 10 MB took 1.6 GB.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec
import pytest

from tests.api.http_client import PATHS, ask, body
from tests.api.responses.stateful import until
from tests.bridge.gateway import gateway
from tests.bridge.scripted_editor import GPT, editor
from tests.http.websocket_server import websocket_server
from tests.stage import Stage, gateway_config
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.config import ModelConfig, TargetConfig
from toolgate.http.listener import listening

LARGE = 1024 * 1024
TIMES = 4
TEXT = "x" * LARGE


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


def kept(before: int) -> int:
    """How many of the large texts are in memory beyond what there was before."""
    return (tracemalloc.get_traced_memory()[0] - before) // (LARGE // 2)


async def freed(before: int) -> None:
    """Wait until nothing large is kept, but not for ever."""
    for _ in range(1000):
        if kept(before) <= 0:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{kept(before)} halves of {TIMES} large messages are still in memory")


def chat(**fields: object) -> bytes:
    return msgspec.json.encode({**body("openai_chat", "openai_chat", False, TEXT), **fields})


REFUSED: dict[str, Callable[[], bytes]] = {
    "half a body": lambda: chat()[:-1],
    "a key twice": lambda: b'{"model":"openai_chat",' + chat()[1:],
    "a field of the wrong type": lambda: chat(temperature="hot"),
    "an unknown model": lambda: chat(model="nonesuch"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_body_is_freed(stage: Stage, case: str) -> None:
    payload = REFUSED[case]()
    await ask(stage.url, PATHS["openai_chat"], payload)  # what is loaded once does not count
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(TIMES):
        assert (await ask(stage.url, PATHS["openai_chat"], payload)).status in (400, 404)
    await freed(before)


async def test_an_idle_websocket_keeps_nothing_of_its_last_message() -> None:
    message = msgspec.json.encode({"type": "response.create", "model": "nonesuch", "input": TEXT}).decode()
    async with websocket_server() as server, server.socket() as client:
        await client.ask(model="nonesuch")
        before = tracemalloc.get_traced_memory()[0]
        await client.connection.send(message)
        assert (await client.receive())["type"] == "error"
        await freed(before)


async def test_an_idle_editor_keeps_nothing_of_its_last_frame() -> None:
    frame = {"type": "models", "rev": 99, "items": [{**GPT, "id": "late", "family": "late"}], "ignored": TEXT}
    text = msgspec.json.encode(frame).decode()
    async with gateway() as client, editor(str(client.base_url)) as window:
        await client.get("/v1/models")
        before = tracemalloc.get_traced_memory()[0]
        await window.send_text(text)

        async def lent() -> bool:
            return "late" in (await client.get("/v1/models")).text

        await until(lent)
        await freed(before)  # before the next frame of the editor, a pong some seconds later, would free it


@pytest.mark.parametrize("model", ["openai_chat", "with a fallback"])
@pytest.mark.parametrize("upstream", ["unreachable", "closing"])
async def test_a_request_whose_upstream_fails_is_freed(upstream: str, model: str) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    closing = await asyncio.start_server(close, "127.0.0.1", 0)
    port = closing.sockets[0].getsockname()[1] if upstream == "closing" else 1
    target = TargetConfig(upstream="openai_chat", model="m")
    second = ModelConfig(name="with a fallback", targets=(target,), retries=0, fallbacks=("openai_chat",))
    payload = chat(model=model)
    async with closing, listening(Toolgate(gateway_config(f"http://127.0.0.1:{port}", models=(second,)))) as url:
        await ask(url, PATHS["openai_chat"], payload)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(TIMES):
            assert (await ask(url, PATHS["openai_chat"], payload)).status in (502, 503)
        await freed(before)
