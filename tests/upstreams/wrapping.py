"""What the tests of the wrappers share: a request, a clock that stands still, and ways to read."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, cast

from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import ClosableIterator, ModelStream, RelayableStream
from toolgate.testing import scripted_answer

REQUEST = ModelRequest("m", (Message("user", (Text("hello"),)),))


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def down(retry_after: float | None = None, **fields: Any) -> UpstreamUnavailable:
    return UpstreamUnavailable("It is down.", status=503, retry_after=retry_after, **fields)


async def read(answer: ModelStream) -> list[StepEvent]:
    return [event async for batch in answer.events() for event in batch]


class FakeRelayStats:
    usage = Usage(1, 2)
    reason = "stop"
    calls = 0


class RelayableAnswer:
    """An answer that can be passed on as it is: its frames are those given, an exception among them is raised."""

    whole: bool = False
    dialect: str | None = "some_dialect"
    warnings: tuple[str, ...] = ("said elsewhere",)
    upstream: str = "relayed"

    def __init__(self, frames: Sequence[bytes | Exception] = (b"one", b"two"), body: Exception | None = None) -> None:
        self.frames = frames
        self.body = body
        self.closed = False

    def events(self) -> ClosableIterator[list[StepEvent]]:
        return scripted_answer([]).events()

    def relay_stream(self, reply: Any) -> "RetoldFrames":
        return RetoldFrames(self.frames)

    async def relay_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        if isinstance(self.body, Exception):
            raise self.body
        return b"for " + reply.encode(), ModelResponse((), "stop")

    async def aclose(self) -> None:
        self.closed = True


class RetoldFrames:
    def __init__(self, frames: Sequence[bytes | Exception]) -> None:
        self.frames = frames
        self.relay = FakeRelayStats()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for frame in self.frames:
            if isinstance(frame, Exception):
                raise frame
            yield frame


class Always:
    """A model that gives the same answer, or raises the same fault, for ever."""

    def __init__(self, outcome: ModelStream | Exception) -> None:
        self.outcome = outcome
        self.asked = 0

    async def ask(self, request: ModelRequest) -> ModelStream:
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class PendingModel:
    """A model whose every question waits, in `pending`, until the test settles it."""

    def __init__(self) -> None:
        self.pending: list[asyncio.Future[ModelStream]] = []

    async def ask(self, request: ModelRequest) -> ModelStream:
        outcome: asyncio.Future[ModelStream] = asyncio.get_running_loop().create_future()
        self.pending.append(outcome)
        try:
            return await outcome
        finally:
            self.pending.remove(outcome)


def relayable(answer: ModelStream) -> RelayableStream:
    """The answer, which can be passed on as it is."""
    assert answer.dialect is not None
    return cast(RelayableStream, answer)


async def leave(reading: AsyncIterator[object]) -> None:
    """Stop reading before the end."""
    await cast(AsyncGenerator[object, None], reading).aclose()


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(6):
        await asyncio.sleep(0)
