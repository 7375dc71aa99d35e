"""Every reader of `Answer.events` takes empty batches: a wrapper may keep back all events of a batch."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import toolgate
from tests.engine.test_rounds import Box, Notes
from toolgate.conversation.events import Finish, PartEnd, RunEvent, StepEvent
from toolgate.conversation.message import Message, Text, ToolCall
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.engine.loop import run
from toolgate.engine.ports import Answer, Model
from toolgate.engine.rounds import WithTools
from toolgate.testing import ScriptedAnswer, ScriptedModel
from toolgate.upstreams.emulated import Emulated
from toolgate.upstreams.promoted import Promoted
from toolgate.upstreams.wrappers.answers import watched
from toolgate.upstreams.wrappers.counted import Counted
from toolgate.upstreams.wrappers.named import Named

CLOCK = '<invoke name="clock"></invoke>'
REQUEST = ModelRequest("m", (Message("user", (Text("What time is it?"),)),), (ToolDef("clock"),), stream=True)


class Sparse(ScriptedAnswer):
    """A scripted answer with an empty batch before and behind each event."""

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        async for batch in super().events():
            yield []
            yield batch
            yield []


class SparseModel(ScriptedModel):
    """A scripted model whose answers hold empty batches."""

    async def ask(self, request: ModelRequest) -> ScriptedAnswer:
        answer = await super().ask(request)
        return Sparse(answer._events)


class Watching:
    """A model whose answers are watched."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, request: ModelRequest) -> Answer:
        return watched(await self._model.ask(request), lambda ending: None)


READERS: dict[str, Callable[[Model], Model]] = {
    "engine/loop.py": lambda model: model,
    "engine/rounds.py": lambda model: WithTools(model, Box(), Notes()),
    "upstreams/emulated.py": Emulated,
    "upstreams/promoted.py": Promoted,
    "upstreams/wrappers/answers.py": Watching,
    "upstreams/wrappers/counted.py": Counted,
    "upstreams/wrappers/named.py": Named,
}
WRITES_ITS_OWN = {"upstreams/embedded/model.py"}  # reads the engine's batches, never another answer's


async def told(model: Model, stream: bool) -> list[RunEvent]:
    request = REQUEST if stream else ModelRequest("m", REQUEST.messages, REQUEST.tools)
    return [event async for batch in run(await model.ask(request)) for event in batch]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("reader", READERS)
async def test_empty_batches_change_nothing_for_a_reader(reader: str, stream: bool) -> None:
    script = [[ToolCall("call_1", "clock", "{}")], "It is noon."] if "rounds" in reader else [f"See: {CLOCK}"]
    plain = await told(READERS[reader](ScriptedModel(script)), stream)
    sparse = await told(READERS[reader](SparseModel(script)), stream)
    assert shapes(sparse) == shapes(plain)
    assert isinstance(sparse[-1], Finish)


def shapes(events: list[RunEvent]) -> list[object]:
    """The events without the ids of calls, which are random."""
    return [
        (event.part.name, event.part.arguments)
        if isinstance(event, PartEnd) and isinstance(event.part, ToolCall)
        else event.part
        if isinstance(event, PartEnd)
        else type(event)
        for event in events
    ]


def test_every_reader_of_an_answer_is_tested_here() -> None:
    root = Path(toolgate.__file__).parent
    found = {
        path.relative_to(root).as_posix() for path in root.rglob("*.py") if re.search(r"\.events\(\)", path.read_text())
    }
    assert found - WRITES_ITS_OWN == READERS.keys()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("second", [CLOCK, "nothing of use"], ids=["then right", "wrong again"])
async def test_a_corrected_answer_reaches_the_end_of_its_run(second: str, stream: bool) -> None:
    wrong = '<invoke name="sundial"></invoke>'
    events = await told(Emulated(ScriptedModel([wrong, second, second])), stream)
    assert isinstance(events[-1], Finish)
