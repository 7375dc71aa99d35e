"""Names of tools that a model spells in its own way, corrected to those that were declared.

An answer that is relayed as a stream is corrected by its dialect's relay.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import PartEnd, PartStart, StepEvent
from toolgate.conversation.message import ToolCall
from toolgate.conversation.names import CallNames
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.stock import names_of
from toolgate.engine.ports import Answer, Model
from toolgate.upstreams.wrappers.answers import Wrapped


class Named:
    """A model that calls tools by the names under which they were offered to it, if there is no doubt which it means."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer."""
        answer = await self._model.ask(request)
        if not request.tools or (request.relay and answer.dialect == request.dialect):
            return answer
        return _NamedAnswer(answer, CallNames(names_of(request.tools)))


class _NamedAnswer(Wrapped):
    """An answer whose calls bear declared names."""

    def __init__(self, answer: Answer, names: CallNames) -> None:
        super().__init__(answer)
        self._names = names

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the answer, and which names were corrected."""
        return (*super().warnings, *self._names.warnings)

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches."""
        async with aclosing(self._answer.events()) as batches:  # type: ignore[type-var]  # each of ours can be closed
            async for batch in batches:
                yield [self._named(event) if isinstance(event, (PartStart, PartEnd)) else event for event in batch]

    def _named(self, event: PartStart | PartEnd) -> StepEvent:
        call = event.part
        if not isinstance(call, ToolCall) or call.executor == "provider":
            return event
        name = self._names.correct(call.name)
        return event if name == call.name else replace(event, part=replace(call, name=name))
