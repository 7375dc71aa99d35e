"""An engine that writes by script and keeps its orders, and requests in few words."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from toolgate.conversation.events import StepEvent
from toolgate.conversation.message import Message, Text, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, ToolDef
from toolgate.upstreams.local import frames, tool_choice_plan
from toolgate.upstreams.local.staged_generation import StagedGeneration

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolDef("get_weather", "Tells the weather in a city.", CITY)
TIME = ToolDef("get_time", "Tells the time.", {"type": "object", "properties": {}})


class Scripted:
    """Writes the texts of a script, one for each order; an exception among them is raised in its place."""

    def __init__(self, *script: str | frames.GenerationFrame | Exception) -> None:
        self.orders: list[frames.EngineGenerateFrame] = []
        self.cancelled = 0
        self._script = iter(script)

    def generate(self, order: frames.EngineGenerateFrame, over: Callable[[], None]) -> "ScriptedGeneration":
        self.orders.append(order)
        return ScriptedGeneration(self, next(self._script), over)


class ScriptedGeneration:
    """One text, told in words."""

    def __init__(
        self, engine: Scripted, output: str | frames.GenerationFrame | Exception, over: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._output = output
        self._over = over
        self._open = True

    async def __aiter__(self) -> AsyncIterator[frames.GenerationFrame]:
        yield frames.EnginePromptProgressFrame(1, 5, 5)
        match self._output:
            case str(text):
                words = text.split(" ")
                for number, word in enumerate(words):
                    yield frames.EngineTextFrame(1, word if number == 0 else f" {word}")
                self._open = False
                self._over()
                yield frames.EngineGenerationEndFrame(1, "stop", 10, 4, len(words))
            case Exception() as error:
                self._open = False
                raise error
            case emitted:
                self._open = False
                self._over()
                yield emitted

    def cancel(self) -> None:
        if self._open:
            self._open = False
            self._engine.cancelled += 1
            self._over()


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def called(name: str, arguments: str, result: str, **more: Any) -> tuple[Message, Message]:
    """A call and its result."""
    call = ToolCall(f"call_{name}_{len(arguments)}", name, arguments)
    return Message("assistant", (call,)), Message("tool", (ToolResult(call.id, (Text(result),), **more),))


async def emitted(
    engine: Scripted, messages: Iterable[Message], done: Callable[[], None] = lambda: None, **request: Any
) -> list[StepEvent]:
    """All that is told of the answer to these messages; `done` is called when the engine is free again."""
    planned = tool_choice_plan.make(ModelRequest("local", tuple(messages), **request), max_tokens=100)
    events: list[StepEvent] = []
    async for batch in StagedGeneration(engine, planned, "local", done).events():
        events += batch
    return events
