"""Every reader of `ModelStream.events` takes empty batches: a wrapper may keep back all events of a batch."""

import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import toolgate
from tests.engine.test_tool_loop import Box, Notes
from toolgate.conversation.events import PartEnd, RunEnd, RunEvent, StepEvent
from toolgate.conversation.message import Message, Text, ToolCall
from toolgate.conversation.request import ModelRequest, ToolChoice, ToolDef
from toolgate.engine.model_to_run_events import run_events
from toolgate.engine.ports import Model, ModelStream
from toolgate.engine.tool_loop import ToolLoop
from toolgate.testing import Entry, ScriptedModel, ScriptedModelStream
from toolgate.text_tools.emulation.model import EmulatedModel
from toolgate.text_tools.emulation.promoted_calls import PromotedCallsModel
from toolgate.upstreams.vscode.demanded_calls import DemandedCallModel
from toolgate.upstreams.wrapped_streams import with_end_listener
from toolgate.upstreams.wrappers.tool_name_correction import ToolNameCorrectingModel
from toolgate.upstreams.wrappers.usage_counting import UsageCountingModel

CLOCK = '<invoke name="clock"></invoke>'
REQUEST = ModelRequest("m", (Message("user", (Text("What time is it?"),)),), (ToolDef("clock"),), stream=True)


class Sparse(ScriptedModelStream):
    """A scripted answer with an empty batch before and behind each event."""

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        async for batch in super().events():
            yield []
            yield batch
            yield []


class SparseModel(ScriptedModel):
    """A scripted model whose answers hold empty batches."""

    async def ask(self, request: ModelRequest) -> ScriptedModelStream:
        answer = await super().ask(request)
        return Sparse(answer._events)


class Watching:
    """A model whose answers are watched."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, request: ModelRequest) -> ModelStream:
        return with_end_listener(await self._model.ask(request), lambda ending: None)


class WithoutTools:
    """An emulated model that is asked without tools, so that only its reasoning is read from the text."""

    def __init__(self, model: Model) -> None:
        self._model = EmulatedModel(model)

    async def ask(self, request: ModelRequest) -> ModelStream:
        return await self._model.ask(ModelRequest(request.model, request.messages, stream=request.stream))


class Demanding:
    """A lent model that must call a tool."""

    def __init__(self, model: Model) -> None:
        self._model = DemandedCallModel(model)

    async def ask(self, request: ModelRequest) -> ModelStream:
        return await self._model.ask(replace(request, tool_choice=ToolChoice("required")))


READERS: dict[str, Callable[[Model], Model]] = {
    "engine/model_to_run_events.py": lambda model: model,
    "engine/tool_loop.py": lambda model: ToolLoop(model, Box(), Notes()),
    "text_tools/emulation/model.py": EmulatedModel,
    "text_tools/emulation/promoted_calls.py": PromotedCallsModel,
    "text_tools/emulation/reasoning_stream.py": WithoutTools,
    "upstreams/vscode/demanded_calls.py": Demanding,
    "upstreams/wrapped_streams.py": Watching,
    "upstreams/wrappers/usage_counting.py": UsageCountingModel,
    "upstreams/wrappers/tool_name_correction.py": ToolNameCorrectingModel,
}
WRITES_ITS_OWN = {"upstreams/local/model.py"}  # reads the engine's batches, never another answer's


async def collect(model: Model, stream: bool) -> list[RunEvent]:
    request = REQUEST if stream else ModelRequest("m", REQUEST.messages, REQUEST.tools)
    return [event async for batch in run_events(await model.ask(request)) for event in batch]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("reader", READERS)
async def test_empty_batches_change_nothing_for_a_reader(reader: str, stream: bool) -> None:
    script: list[Entry] = [f"See: {CLOCK}"]
    if "tool_loop" in reader:
        script = [[ToolCall("call_1", "clock", "{}")], "It is noon."]
    if "demanded" in reader:
        script = ["No.", [ToolCall("call_1", "clock", "{}")]]
    plain = await collect(READERS[reader](ScriptedModel(script)), stream)
    sparse = await collect(READERS[reader](SparseModel(script)), stream)
    assert shapes(sparse) == shapes(plain)
    assert isinstance(sparse[-1], RunEnd)


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
    events = await collect(EmulatedModel(ScriptedModel([wrong, second, second])), stream)
    assert isinstance(events[-1], RunEnd)
