"""Ask once more when a lent model calls no tool though a call is demanded.

An editor passes the demand on, but not every provider behind it enforces it. The answer is read whole before any of it is
passed on; a second answer without a call is passed on with a warning. Both are counted, since both may cost the person.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import PartEnd, PartStart, StepEvent
from toolgate.conversation.message import Message, Text, ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Model, ModelStream

WARNING = "the model called no tool, though a call was demanded twice"
_DEMAND = "Answer with a call of one of the tools, and with nothing else."


class DemandedCallModel:
    """A model that is asked once more if it ignores a demand for a call."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Return the answer; one to a demand for a call is complete then."""
        choice = request.tool_choice
        if choice is None or choice.mode != "required" or not request.tools:
            return await self._model.ask(request)
        first = await _read(await self._model.ask(request))
        if first.has_call:
            return first
        # An empty message of the assistant is refused by some providers.
        answered = [Message("assistant", (Text(first.text),))] if first.text.strip() else []
        demand = Message("user", (Text(_DEMAND),))
        second = await _read(await self._model.ask(replace(request, messages=(*request.messages, *answered, demand))))
        return second if second.has_call else await _read(second, WARNING)


class BufferedModelStream:
    """An answer that was read to its end."""

    whole = True
    dialect: str | None = None

    def __init__(self, upstream: str, batches: list[list[StepEvent]], warnings: tuple[str, ...]) -> None:
        self.upstream = upstream
        self.warnings = warnings
        self._batches = batches

    @property
    def has_call(self) -> bool:
        """Whether it calls a tool."""
        return any(
            isinstance(one, PartStart) and isinstance(one.part, ToolCall) for all in self._batches for one in all
        )

    @property
    def text(self) -> str:
        """The text of the answer."""
        ends = [one.part for all in self._batches for one in all if isinstance(one, PartEnd)]
        return "".join([part.text for part in ends if isinstance(part, Text)])

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the batches as they came."""
        for batch in self._batches:
            yield batch

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


async def _read(answer: ModelStream, *more: str) -> BufferedModelStream:
    batches: list[list[StepEvent]] = []
    try:
        async with aclosing(answer.events()) as events:
            async for batch in events:
                batches.append(batch)
    finally:
        await answer.aclose()
    return BufferedModelStream(answer.upstream, batches, (*answer.warnings, *more))
