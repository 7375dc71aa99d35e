"""Usage for answers whose upstream gives none, counted offline and marked as an estimate."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from msgspec.structs import replace

from toolgate.conversation.events import PartEnd, StepEnd, StepEvent
from toolgate.conversation.message import Part
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer, Model
from toolgate.upstreams import tokens
from toolgate.upstreams.wrappers.answers import Wrapped


class Counted:
    """A model whose every step ends with its usage; an answer that is relayed is not touched."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer, which will not end without usage."""
        answer = await self._model.ask(request)
        if request.relay and answer.dialect == request.dialect:
            return answer
        return _CountedAnswer(answer, request)


class _CountedAnswer(Wrapped):
    """An answer that keeps its parts until it is known whether they must be counted."""

    def __init__(self, answer: Answer, request: ModelRequest) -> None:
        super().__init__(answer)
        self._request = request

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events, the last one with usage."""
        parts: list[Part] = []
        async with aclosing(self._answer.events()) as batches:  # type: ignore[type-var]  # each of ours can be closed
            async for batch in batches:
                for event in batch:
                    if type(event) is PartEnd:
                        parts.append(event.part)
                last = batch[-1] if batch else None
                if type(last) is StepEnd and last.usage is None:
                    usage = await tokens.estimate(self._request, parts)
                    yield [*batch[:-1], replace(last, usage=usage)]
                else:
                    yield batch
