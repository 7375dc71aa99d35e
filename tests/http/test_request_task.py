"""The task in which a connection's requests run."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.api.http_client import PATHS, HttpConnection, body
from tests.http.websocket_server import websocket_server
from toolgate.auth.authenticator import Authenticator
from toolgate.config import Config
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.http.application import AdmittedHttpRequest, Application, HttpRoute
from toolgate.http.listener import listening
from toolgate.http.origins import OriginPolicy
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry


class Noting:
    """Answers at once, notes the task that did, and after `/linger` goes on until it is let go."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any] | None] = []
        self.let_go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.tasks.append(asyncio.current_task())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        if scope["path"] == "/linger":
            await self.let_go.wait()


async def _ask(caller: HttpConnection, path: str = "/") -> None:
    await caller.post(path, b"")
    assert (await caller.response()).body == b"ok"


async def test_the_requests_of_a_connection_run_in_one_task_that_ends_with_it() -> None:
    app = Noting()
    async with listening(app) as url:
        async with HttpConnection(url) as caller:
            for _ in range(3):
                await _ask(caller)
        first = app.tasks[0]
        assert first is not None
        await asyncio.wait_for(asyncio.wait({first}), 30)
    assert app.tasks == [first] * 3


async def test_a_request_does_not_wait_for_what_the_one_before_still_does() -> None:
    app = Noting()
    async with listening(app) as url, HttpConnection(url) as caller:
        await _ask(caller, "/linger")
        await asyncio.wait_for(_ask(caller), 30)
        assert app.tasks[0] is not app.tasks[1]
        app.let_go.set()
        await _ask(caller)
        assert app.tasks[2] is app.tasks[1]


async def test_a_task_that_was_cancelled_runs_nothing_more() -> None:
    app = Noting()
    async with listening(app) as url, HttpConnection(url) as caller:
        await _ask(caller, "/linger")
        cancelled = app.tasks[0]
        assert cancelled is not None
        cancelled.cancel()
        await asyncio.wait({cancelled})
        await _ask(caller)
        assert app.tasks[1] is not cancelled


async def test_a_client_that_leaves_after_a_large_body_is_noticed() -> None:
    """The last piece of the body paused reading: the model went on answering a client that had left."""
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def never(_: Any) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    payload = msgspec.json.encode(body("openai_chat", "played", stream=False, text="x" * 1_200_000))
    async with websocket_server() as server:
        for _ in range(4):  # how a body is cut into pieces differs from time to time
            server.play(never)
            async with HttpConnection(server.url) as caller:
                await caller.post(PATHS["openai_chat"], payload)
                await asyncio.wait_for(asked.wait(), 30)
            await asyncio.wait_for(cancelled.wait(), 30)
            asked.clear()
            cancelled.clear()


async def test_a_response_that_is_cut_off_closes_its_connection_and_is_no_failure_of_the_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a last chunk: a client must not take it for whole. The log would name a fault that there is not."""
    tasks: list[asyncio.Task[Any]] = []

    async def begin(call: AdmittedHttpRequest) -> None:
        await call.exchange.start(b"text/plain")
        await call.exchange.write(b"half")
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await asyncio.Event().wait()

    config, errors = Config(), OPENAI_CHAT.server
    telemetry = Telemetry(Logger("error"), Metrics())
    endpoints = [HttpRoute("GET", "/begin", begin, errors, scope=None)]
    app = Application(endpoints, {"/": errors}, Authenticator(()), OriginPolicy(config), telemetry)
    started = Noting()

    async def served(scope: Any, receive: Any, send: Any) -> None:
        await (started if scope["type"] == "lifespan" else app)(scope, receive, send)

    async with listening(served) as url, HttpConnection(url) as caller:
        caller.writer.write(f"GET /begin HTTP/1.1\r\nhost: {url[7:]}\r\n\r\n".encode())
        await caller.head()
        assert await caller.chunk() == b"half"
        tasks[0].cancel()
        await asyncio.wait({tasks[0]})
        assert tasks[0].cancelled()
        assert await asyncio.wait_for(caller.reader.read(), 30) == b""
    assert caplog.records == []
