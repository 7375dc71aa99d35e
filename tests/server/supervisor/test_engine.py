"""One engine on a machine, however many workers ask it (D4, U6)."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.crews import Service, is_alive, service, until
from tests.upstreams.embedded.conftest import smallest  # noqa: F401  # a fixture
from toolgate.conversation.errors import Overloaded, Unavailable
from toolgate.server.supervisor import words
from toolgate.server.supervisor.borrower import LentRoom
from toolgate.server.supervisor.foreman import Foreman
from toolgate.server.supervisor.lender import Lender
from toolgate.upstreams.embedded import frames
from toolgate.upstreams.embedded.line import Line
from toolgate.upstreams.embedded.process import EngineFault
from toolgate.upstreams.embedded.room import Turn
from toolgate.upstreams.embedded.state import State


class Scribe:
    """Writes what it is asked in two pieces; asked to `wait` it goes on until cancelled, asked to `die` it ends."""

    def __init__(self) -> None:
        self.cancelled = 0

    def generate(self, order: frames.Generate, over: Callable[[], None]) -> "Piece":
        return Piece(self, str(order.messages[-1]["content"]))


class Piece:
    def __init__(self, scribe: Scribe, text: str) -> None:
        self._scribe = scribe
        self._text = text
        self._over = False

    async def __aiter__(self) -> AsyncIterator[frames.Told]:
        yield frames.Said(99, "You said ")
        if self._text == "die":
            raise EngineFault("The engine has died.")
        if self._text == "wait":
            await asyncio.Event().wait()
        yield frames.Said(99, self._text)
        self._over = True
        yield frames.Over(99, "stop", written=2)

    def cancel(self) -> None:
        self._scribe.cancelled += not self._over


class Studio:
    """A room with a scribe in it."""

    def __init__(self, places: int = 4) -> None:
        self.scribe = Scribe()
        self.line = Line(places, 5.0)
        self.failure: Exception | None = None
        self.state = State("ready", "scribe", "")

    def start(self) -> None:
        pass

    async def enter(self) -> Turn:
        if self.failure is not None:
            raise self.failure
        return Turn(self.scribe, (await self.line.enter()).leave)

    async def aclose(self) -> None:
        pass


class Wire:
    """A foreman and a hand at the two ends of nothing: what one says the other hears at once."""

    def __init__(self, lender: Lender) -> None:
        self.foreman = Foreman()
        self.foreman.say = lambda message: lender.heard(self, message)  # type: ignore[method-assign,arg-type]
        self.room = LentRoom(self.foreman, "scribe")

    def say(self, message: words.Lent) -> None:
        decoded = words.decode_to_worker(words.encode(message)[4:])
        self.foreman._take_in(decoded)


def asked(text: str) -> frames.Generate:
    return frames.Generate(0, ({"role": "user", "content": text},), 10)


async def written(turn: Turn, text: str) -> str:
    said = ""
    async for told in turn.engine.generate(asked(text), turn.leave):
        said += told.text if isinstance(told, frames.Said) else ""
    return said


async def test_workers_take_turns_with_one_engine() -> None:
    studio = Studio()
    lender = Lender(studio)
    one, two = Wire(lender), Wire(lender)
    first = await one.room.enter()
    waiting = asyncio.create_task(two.room.enter())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert await written(first, "hello") == "You said hello"
    second = await waiting
    assert await written(second, "goodbye") == "You said goodbye"


async def test_an_answer_that_nobody_wants_is_stopped_and_the_next_one_comes() -> None:
    studio = Studio()
    lender = Lender(studio)
    one, two = Wire(lender), Wire(lender)
    turn = await one.room.enter()
    generation = turn.engine.generate(asked("wait"), turn.leave)
    async for _ in generation:
        break
    generation.cancel()
    assert studio.scribe.cancelled == 1
    assert await written(await two.room.enter(), "x") == "You said x"


async def test_a_worker_that_dies_leaves_the_engine_to_others() -> None:
    studio = Studio()
    lender = Lender(studio)
    one, two = Wire(lender), Wire(lender)
    turn = await one.room.enter()
    turn.engine.generate(asked("wait"), turn.leave)
    also = asyncio.create_task(one.room.enter())
    await asyncio.sleep(0)
    lender.left(one)  # type: ignore[arg-type]
    assert await written(await two.room.enter(), "x") == "You said x"
    assert studio.scribe.cancelled == 1
    also.cancel()


async def test_what_the_engine_suffers_is_told_to_whoever_has_it() -> None:
    studio = Studio(places=0)
    lender = Lender(studio)
    one, two = Wire(lender), Wire(lender)
    turn = await one.room.enter()
    with pytest.raises(Overloaded, match="line is full") as full:
        await two.room.enter()
    assert full.value.retry_after
    with pytest.raises(EngineFault, match="has died"):
        await written(turn, "die")
    turn.leave()
    studio.failure = Unavailable("There are no weights.", status=503)
    with pytest.raises(Unavailable, match="no weights"):
        await two.room.enter()


async def test_when_the_supervisor_is_gone_nobody_waits() -> None:
    one = Wire(Lender(Studio(places=1)))
    turn = await one.room.enter()
    waiting = asyncio.create_task(one.room.enter())
    await asyncio.sleep(0)
    generation = turn.engine.generate(asked("wait"), turn.leave)
    one.foreman.lent(None)
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(EngineFault):
        async for _ in generation:
            pass


def engines(crew: Service) -> list[int]:
    return [pid for pid in crew.workers() if b"embedded.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes through /proc")
def test_two_workers_share_one_engine_that_is_replaced_when_it_dies(smallest: Path, tmp_path: Path) -> None:  # noqa: F811
    config = f"embedded: {{model: {json.dumps(str(smallest))}, context: 1024}}\nlog: {{level: warning}}\n"
    body = {"model": "local", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with service(tmp_path, config, "--workers", "2", embedded=True) as crew:
        crew.announced()
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda _: crew.ask(body), range(6))) == [200] * 6
        [engine] = engines(crew)
        os.kill(engine, signal.SIGKILL)
        until(lambda: not is_alive(engine))
        until(lambda: crew.ask(body) == 200)
        [another] = engines(crew)
        assert another != engine
    until(lambda: not is_alive(another))
