"""Correct tool names that a model misspells to the declared ones.

In a relayed stream the relay of the dialect corrects them.
"""

from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.events import PartEnd, PartStart, StepEvent
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.conversation.tool_name_matching import CallNameCorrector
from toolgate.engine.ports import Model, ModelStream
from toolgate.upstreams.wrapped_streams import WrappedStream


class ToolNameCorrectingModel:
    """A model whose calls have declared names, wherever it is clear which tool a name means."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def ask(self, request: ModelRequest) -> Coroutine[Any, Any, ModelStream]:
        """Ask the model."""
        # Not a coroutine itself: without tools it returns the model's own, so that such a request costs nothing more.
        return self._corrected(request) if request.tools else self._model.ask(request)

    async def _corrected(self, request: ModelRequest) -> ModelStream:
        answer = await self._model.ask(request)
        if (request.relay and answer.dialect == request.dialect) or getattr(answer, "has_declared_names", False):
            return answer
        return _CorrectedStream(answer, CallNameCorrector(tool_names(request.tools)))


class _CorrectedStream(WrappedStream):
    """A stream whose calls have declared names."""

    def __init__(self, answer: ModelStream, names: CallNameCorrector) -> None:
        super().__init__(answer)
        self._names = names

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the stream, and one for each corrected name."""
        return (*super().warnings, *self._names.warnings)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events in batches."""
        async with aclosing(self._answer.events()) as batches:
            async for batch in batches:
                corrected: list[StepEvent] = []
                for event in batch:
                    if isinstance(event, (PartStart, PartEnd)) and isinstance(call := event.part, ToolCall):
                        # A tool that the provider runs itself, such as web search, is declared nowhere here.
                        name = call.name if call.executor == "provider" else self._names.correct(call.name)
                        if name != call.name:
                            event = replace(event, part=replace(call, name=name))
                    corrected.append(event)
                yield corrected
