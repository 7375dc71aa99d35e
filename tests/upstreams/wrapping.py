"""What the tests of the wrappers share: a request, a clock that stands still, and ways to read."""

import asyncio

from toolgate.conversation.errors import Unavailable
from toolgate.conversation.events import ModelResponse, Usage
from toolgate.conversation.message import Message, Text
from toolgate.conversation.request import ModelRequest
from toolgate.testing import scripted_answer

REQUEST = ModelRequest("m", (Message("user", (Text("hello"),)),))


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def down(retry_after=None, **fields):
    return Unavailable("It is down.", status=503, retry_after=retry_after, **fields)


async def read(answer):
    return [event async for batch in answer.events() for event in batch]


class Heard:
    usage = Usage(1, 2)
    reason = "stop"
    calls = 0


class RelayableAnswer:
    """An answer that can be passed on as it is: its frames are those given, an exception among them is raised."""

    whole = False
    dialect = "some_dialect"
    warnings = ("said elsewhere",)
    upstream = "relayed"

    def __init__(self, frames=(b"one", b"two"), body=None):
        self.frames = frames
        self.body = body
        self.closed = False

    def events(self):
        return scripted_answer([]).events()

    def retell(self, reply):
        return RetoldFrames(self.frames)

    def retell_whole(self, reply, usage=None):
        if isinstance(self.body, Exception):
            raise self.body
        return b"for " + reply.encode(), ModelResponse((), "stop")

    async def aclose(self):
        self.closed = True


class RetoldFrames:
    def __init__(self, frames):
        self.frames = frames
        self.relay = Heard()

    async def __aiter__(self):
        for frame in self.frames:
            if isinstance(frame, Exception):
                raise frame
            yield frame


class Always:
    """A model that gives the same answer, or raises the same fault, for ever."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.asked = 0

    async def ask(self, request):
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Desk:
    """A model whose every question waits, in `pending`, until the test settles it."""

    def __init__(self):
        self.pending = []

    async def ask(self, request):
        outcome = asyncio.get_running_loop().create_future()
        self.pending.append(outcome)
        try:
            return await outcome
        finally:
            self.pending.remove(outcome)


async def settle():
    """Let everything that can go on go on."""
    for _ in range(6):
        await asyncio.sleep(0)
