"""What each answer used: as its upstream reports, else counted offline and marked as an estimate.

It stands directly around the model that is asked, inside retries, fallbacks and corrections: each of them is a step of the
request's tally (`toolgate.conversation.tally`), whatever becomes of it.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import UpstreamFault
from toolgate.conversation.events import Delta, ModelResponse, PartEnd, StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.message import Part, Text
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.tally import UsageTally
from toolgate.engine.ports import Answer, Heard, Model, Retold
from toolgate.upstreams import tokens
from toolgate.upstreams.wrappers.answers import Wrapped


class Counted:
    """A model whose every step ends with its usage, which the request's tally adds up."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer, which will not end without usage; a reader that leaves owes for what it has received."""
        step = _Step(request)
        try:
            answer = await self._model.ask(request)
        except UpstreamFault as fault:
            step.close(fault.usage)
            raise
        except Exception:
            step.close(None)
            raise
        return _CountedAnswer(answer, step)


class _Step:
    """One question, and what has been received of its answer."""

    __slots__ = ("answer", "open_part", "parts", "relay", "request", "started", "tally")

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.answer: Answer | None = None
        self.relay: Heard | None = None
        self.started: Usage | None = None
        self.parts: list[Part] = []
        self.open_part: list[str] = []
        self.tally = request.tally or UsageTally()
        self.tally.open(self)

    def close(self, usage: Usage | None) -> None:
        """Its usage is certain."""
        self.tally.close(self, usage)

    async def count(self) -> Usage:
        """The usage of a question that was left or broke off, unless its relay has received all of it."""
        relay = self.relay
        if relay is not None and relay.done and relay.usage is not None:
            return relay.usage
        return _at_least(await tokens.estimate(self.request, self._received()), self._reported())

    def count_roughly(self) -> Usage:
        """The same by the length of the texts."""
        return _at_least(tokens.estimate_roughly(self.request, self._received()), self._reported())

    def _received(self) -> list[Part]:
        if self.relay is not None:
            return self.relay.received()
        return [*self.parts, Text("".join(self.open_part))]

    def _reported(self) -> Usage:
        if self.relay is not None:
            return self.relay.usage or Usage()
        # An answer over HTTP may know more than its events have told yet.
        return getattr(self.answer, "reported", None) or self.started or Usage()


class _CountedAnswer(Wrapped):
    """An answer that keeps its parts until it is known whether they must be counted."""

    def __init__(self, answer: Answer, step: _Step) -> None:
        super().__init__(answer)
        step.answer = answer
        self._step = step

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events, the last one with usage."""
        step = self._step
        parts, open_part = step.parts, step.open_part
        async with aclosing(self._answer.events()) as batches:  # type: ignore[type-var]  # each of ours can be closed
            async for batch in batches:
                for event in batch:
                    kind = type(event)
                    if kind is Delta:
                        open_part.append(event.text)  # type: ignore[union-attr]  # a Delta
                    elif kind is PartEnd:
                        parts.append(event.part)  # type: ignore[union-attr]  # a PartEnd
                        open_part.clear()
                    elif kind is StepStart:
                        step.started = event.usage  # type: ignore[union-attr]  # a StepStart
                last = batch[-1] if batch else None
                if type(last) is StepEnd:
                    usage = last.usage or await tokens.estimate(step.request, parts)
                    step.close(usage)
                    batch = batch if last.usage else [*batch[:-1], replace(last, usage=usage)]
                yield batch

    def retell(self, reply: Any) -> Retold:
        """The streamed answer as frames of its dialect, which end with usage, too."""
        told = self._answer.retell(reply)
        self._step.relay = told.relay
        return told

    def retell_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """The whole answer as a body of its dialect, and what it says."""
        body, response = self._answer.retell_whole(reply, usage)
        if response.usage is not None:
            self._step.close(response.usage)
        return body, response


def _at_least(counted: Usage, reported: Usage) -> Usage:
    """What was counted, or what was reported where that is more; a reported input needs no counting."""
    return Usage(
        reported.input or counted.input,
        max(reported.output, counted.output),
        reported.cache_read,
        reported.cache_write,
        max(reported.reasoning, counted.reasoning),
        estimated=True,
    )
