"""A real engine with the smallest weights: loaded, streamed, cancelled, killed, closed. What it says is of no account."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.upstreams.local.scripted import user
from toolgate.conversation.errors import GatewayOverloaded, InvalidRequest, InvalidUpstreamAnswer, UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, PartDelta, StepEvent
from toolgate.conversation.fold import fold
from toolgate.conversation.message import Text, ToolCall
from toolgate.conversation.request import ModelRequest, RequestSettings, StructuredOutputFormat, ToolChoice, ToolDef
from toolgate.engine.ports import ModelStream
from toolgate.upstreams.local.engine_supervisor import EngineOptions
from toolgate.upstreams.local.fetch import DownloadProgress, WeightsUnavailable
from toolgate.upstreams.local.model import LocalModel
from toolgate.upstreams.local.state import LocalModelState
from toolgate.upstreams.local.weights_cache import WeightsCache
from toolgate.upstreams.local.weights_catalog import Weights

BOOK = ToolDef(
    "book",
    "Books seats.",
    {
        "type": "object",
        "properties": {
            "class": {"enum": ["first", "second"]},
            "seats": {"type": "integer", "minimum": 1, "maximum": 4},
        },
        "required": ["class", "seats"],
    },
)


def options(path: Path | str, **changes: Any) -> EngineOptions:
    return EngineOptions(**{"model": str(path), "context": 1024, "cache": 16, "wait": 60.0, **changes})


def request(text: str, **stated: Any) -> ModelRequest:
    settings = RequestSettings(**{"max_tokens": 8, "temperature": 0.0, **stated.pop("settings", {})})
    return ModelRequest("local", (user(text),), settings=settings, stream=True, **stated)


@asynccontextmanager
async def opened(path: Path, **changes: Any) -> AsyncIterator[LocalModel]:
    model = LocalModel(options(path, **changes))
    try:
        yield model
    finally:
        await model.aclose()


async def whole(answer: ModelStream) -> ModelResponse:
    events: list[StepEvent] = []
    async for batch in answer.events():
        events += batch
    return fold(events)


async def first_words(answer: ModelStream) -> None:
    async for batch in answer.events():
        if any(isinstance(event, PartDelta) for event in batch):
            return


async def settled() -> None:
    """Let every task go on until it waits for something that takes time."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_it_loads_streams_and_counts_every_token(smallest: Path) -> None:
    """spec: U6, U9"""
    async with opened(smallest) as model:
        answer = await model.ask(request("Say hello."))
        assert model.state.ready
        batches = [batch async for batch in answer.events()]
        response = fold([event for batch in batches for event in batch])
        assert len(batches) > 3
        assert response.usage is not None
        assert response.usage.output == 8
        assert (response.reason, response.usage.estimated) == ("length", False)
        again = await whole(await model.ask(request("Say hello.")))
        assert again.usage is not None
        assert again.usage.input == response.usage.input
        assert again.usage.cache_read > 0


async def test_calls_and_json_keep_to_their_schema_whatever_the_model_thinks(smallest: Path) -> None:
    """spec: R6"""
    async with opened(smallest) as model:
        choice = ToolChoice("required", ("book",))
        asked = request("Two, please.", tools=(BOOK,), tool_choice=choice, settings={"max_tokens": 40})
        [call] = (await whole(await model.ask(asked))).parts
        assert isinstance(call, ToolCall)
        booked = json.loads(call.arguments)
        assert set(booked) == {"class", "seats"}
        assert booked["class"] in ("first", "second")
        assert 1 <= booked["seats"] <= 4
        form = StructuredOutputFormat({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]})
        stated = (await whole(await model.ask(request("Ok?", settings={"output": form, "max_tokens": 40})))).parts[0]
        assert isinstance(stated, Text)
        assert isinstance(json.loads(stated.text)["ok"], bool)


async def test_a_prompt_beyond_the_context_is_refused_and_affects_no_other_request(smallest: Path) -> None:
    async with opened(smallest) as model:
        with pytest.raises(InvalidRequest, match="context is 1024 tokens") as refused:
            await model.ask(request("word " * 2000))
        assert refused.value.code == "context_length_exceeded"
        assert (await whole(await model.ask(request("Hi")))).parts


async def test_a_client_that_leaves_while_the_prompt_is_read_or_the_answer_written_frees_the_engine(
    smallest: Path,
) -> None:
    """spec: U8"""
    async with opened(smallest) as model:
        await whole(await model.ask(request("Hi")))
        pid = model.state.pid
        reading = asyncio.create_task(model.ask(request("word " * 900)))
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled()
        writing = await model.ask(request("Tell me a long story.", settings={"max_tokens": 900}))
        await first_words(writing)
        await writing.aclose()
        async with asyncio.timeout(30):  # 900 tokens would take longer than that on a busy machine
            assert (await whole(await model.ask(request("Hi")))).parts
        assert model.state.pid == pid


async def test_one_is_answered_while_the_others_wait_and_too_many_are_sent_away(smallest: Path) -> None:
    async with opened(smallest, queue=1) as model:
        busy = await model.ask(request("Count.", settings={"max_tokens": 900}))
        waiting = asyncio.create_task(model.ask(request("Hi")))
        await settled()
        assert model.state.waiting == 1
        with pytest.raises(GatewayOverloaded, match="the queue is full"):
            await model.ask(request("Hi"))
        await busy.aclose()
        assert (await whole(await waiting)).parts


async def test_an_engine_killed_in_the_middle_fails_that_answer_and_is_there_for_the_next(smallest: Path) -> None:
    async with opened(smallest) as model:
        answer = await model.ask(request("Tell me a long story.", settings={"max_tokens": 900}))
        pid = model.state.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(InvalidUpstreamAnswer, match=r"SIGKILL.*this answer is lost"):
            await whole(answer)
        assert (await whole(await model.ask(request("Hi")))).parts
        assert model.state.pid != pid


async def test_closing_ends_the_process_and_fails_open_answers(smallest: Path) -> None:
    async with opened(smallest) as model:
        answer = await model.ask(request("Tell me a long story.", settings={"max_tokens": 900}))
        pid = model.state.pid
        await model.aclose()
        assert pid is not None
        assert not psutil.pid_exists(pid)
        with pytest.raises(InvalidUpstreamAnswer, match="engine ended"):
            await whole(answer)
        with pytest.raises(UpstreamUnavailable, match="shutting down"):
            await model.ask(request("Hi"))


async def test_the_engine_admits_no_other_program_and_sees_no_secrets(
    smallest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    async with opened(smallest) as model:
        await whole(await model.ask(request("Hi")))
        assert model.state.pid is not None
        engine = psutil.Process(model.state.pid)
        assert "SOME_API_KEY" not in engine.environ()
        [port] = [one.laddr.port for one in engine.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /completion HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        assert b" 401 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_the_engine_ends_when_the_gateway_is_gone(smallest: Path) -> None:
    gateway = (
        "import asyncio, sys\n"
        "from toolgate.upstreams.local import frames\n"
        "from toolgate.upstreams.local.engine_process import EngineProcess\n"
        "async def run():\n"
        "    engine = await EngineProcess.start(frames.EngineLoadFrame(sys.argv[1], 512, 1, 16))\n"
        "    print(engine.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(run())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", gateway, str(smallest), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    engine = psutil.Process(int(await process.stdout.readline()))
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await asyncio.to_thread(psutil.wait_procs, [engine], 10)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


async def test_a_file_that_is_no_model_is_reported_to_be_none(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(1000))
    async with opened(broken) as model:
        with pytest.raises(UpstreamUnavailable, match=r"broken.gguf cannot be loaded") as failure:
            await model.ask(request("Hi"))
        assert failure.value.status == 503
        assert model.state.phase == "failed"


class Watched:
    """Hears of every change of a model's state."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.fetching, self.ready = asyncio.Event(), asyncio.Event()

    def __call__(self, state: LocalModelState) -> None:
        self.phases.append(state.phase)
        if state.phase == "fetching":
            self.fetching.set()
        if state.ready:
            self.ready.set()


class Slow:
    """A way to get weights that reports half and then waits until it is let go."""

    def __init__(self, then: Callable[[], Path]) -> None:
        self.go = threading.Event()
        self._then = then

    def __call__(
        self,
        weights: Weights,
        cache: WeightsCache,
        report: Callable[[DownloadProgress], None],
        abandoned: threading.Event,
    ) -> Path:
        report(DownloadProgress(weights.name, "hub", weights.size // 2, weights.size))
        while not (self.go.wait(0.01) or abandoned.is_set()):
            pass
        return self._then()


async def test_while_weights_are_fetched_a_request_waits_and_then_gets_the_progress(
    smallest: Path, tmp_path: Path
) -> None:
    """spec: E1"""
    watched, slow = Watched(), Slow(lambda: smallest)
    model = LocalModel(options("smollm2-135m", folder=tmp_path, wait=0.3), watched, slow)
    try:
        with pytest.raises(GatewayOverloaded, match="50 % of the weights of smollm2-135m") as refused:
            await model.ask(request("Hi"))
        assert (refused.value.status, refused.value.code) == (503, "model_loading")
        assert refused.value.retry_after
        assert (model.state.phase, round(model.state.percent or 0)) == ("fetching", 50)
        slow.go.set()
        await watched.ready.wait()
        assert (await whole(await model.ask(request("Hi")))).parts
        assert watched.phases == ["fetching", "fetching", "loading", "ready"]
    finally:
        await model.aclose()


async def test_closing_while_weights_are_fetched_does_not_wait_for_them(tmp_path: Path) -> None:
    watched = Watched()
    model = LocalModel(options("smollm2-135m", folder=tmp_path), watched, Slow(lambda: tmp_path))
    model.start()
    await watched.fetching.wait()
    async with asyncio.timeout(30):
        await model.aclose()
    assert model.state.phase == "closed"


async def test_weights_that_could_not_be_fetched_are_tried_again_by_the_next_request(
    smallest: Path, tmp_path: Path
) -> None:
    found: list[Path] = []

    def fetch(weights: Weights, cache: WeightsCache, report: Any, abandoned: threading.Event) -> Path:
        if not found:
            raise WeightsUnavailable("there is no network")
        return found[0]

    watched = Watched()
    model = LocalModel(options("smollm2-135m", folder=tmp_path), watched, fetch)
    try:
        with pytest.raises(UpstreamUnavailable, match="there is no network"):
            await model.ask(request("Hi"))
        found.append(smallest)
        with pytest.raises(UpstreamUnavailable, match="there is no network"):
            await model.ask(request("Hi"))
        await watched.ready.wait()
        assert (await whole(await model.ask(request("Hi")))).parts
    finally:
        await model.aclose()
