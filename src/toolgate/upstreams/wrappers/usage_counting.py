"""Count the usage of every model response: as its upstream reports it; a count that is missing is estimated from the texts.

This is the innermost wrapper, inside retries, fallbacks and corrections: each of their requests is a step of the tally
(`toolgate.conversation.usage_tally`), whether it succeeds or not.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import UpstreamError
from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.message import Part, Text
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.usage_tally import UsageTally
from toolgate.engine.ports import Model, ModelStream, RelayedStream, RelayStats
from toolgate.upstreams import token_counting_offline
from toolgate.upstreams.wrapped_streams import WrappedStream


class UsageCountingModel:
    """A model whose every response ends with its usage, which is added to the request's tally."""

    def __init__(self, model: Model, name: str = "") -> None:
        """`name` is the name of the configured model, which has the price."""
        self._model = model
        self._name = name

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Ask the model; a response that its reader leaves is counted as far as it was received."""
        tally = request.tally or UsageTally()
        try:
            answer = await self._model.ask(request)
        except UpstreamError as fault:  # it may have cost tokens, such as a whole answer that cannot be decoded
            tally.add(fault.usage, self._name)
            raise
        except asyncio.CancelledError:  # the upstream may be at work already: what it was sent is counted
            tally.open_steps.append(_Step(request, self._name, tally))
            raise
        if answer.whole and (usage := getattr(answer, "reported", None)) is not None and not usage.missing:
            tally.add(usage, self._name)
            return answer
        step = _Step(request, self._name, tally, answer)
        tally.open_steps.append(step)
        return _CountedStream(answer, step)


class _Step(Struct, eq=False):
    """One request to an upstream, and what was received of its response."""

    request: ModelRequest
    model: str
    tally: UsageTally
    answer: ModelStream | None = None
    relay: RelayStats | None = None
    started: Usage | None = None
    parts: list[Part] = []
    open_part: list[str] = []

    def close(self, usage: Usage | None) -> None:
        """Report the usage, which is certain now."""
        self.tally.close(self, usage)

    async def count(self) -> Usage:
        """Count the usage of a response that was left or broke off, unless its relay has received all of it."""
        relay = self.relay
        if relay is not None and relay.done and relay.usage is not None and not relay.usage.missing:
            return relay.usage
        return _at_least(await token_counting_offline.estimate(self.request, self._received()), self._reported())

    def count_roughly(self) -> Usage:
        """Estimate the same by the length of the texts."""
        return _at_least(token_counting_offline.estimate_roughly(self.request, self._received()), self._reported())

    def _received(self) -> list[Part]:
        if self.relay is not None:
            return self.relay.received()
        return [*self.parts, Text("".join(self.open_part))]

    def _reported(self) -> Usage:
        if self.relay is not None:
            return self.relay.usage or Usage()
        # A stream over HTTP may have received more than its events show yet.
        return getattr(self.answer, "reported", None) or self.started or Usage()


class _CountedStream(WrappedStream):
    """A stream that keeps its parts until it is known whether they must be counted."""

    def __init__(self, answer: ModelStream, step: _Step) -> None:
        super().__init__(answer)
        self._step = step

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events, the last one with usage."""
        step = self._step
        parts, open_part = step.parts, step.open_part
        async with aclosing(self._answer.events()) as batches:
            async for batch in batches:
                for event in batch:
                    kind = type(event)  # cheaper than `match`, and this runs for every delta
                    if kind is PartDelta:
                        open_part.append(event.text)  # type: ignore[union-attr]  # a Delta
                    elif kind is PartEnd:
                        parts.append(event.part)  # type: ignore[union-attr]  # a PartEnd
                        open_part.clear()
                    elif kind is StepStart:
                        step.started = event.usage  # type: ignore[union-attr]  # a StepStart
                # A decoder ends a step with the last event of a batch.
                last = batch[-1] if batch else None
                if type(last) is StepEnd:
                    usage = last.usage
                    if usage is None or usage.missing:
                        usage = await token_counting_offline.estimate(step.request, parts, usage)
                        batch = [*batch[:-1], replace(last, usage=usage)]
                    step.close(usage)
                yield batch

    def relay_stream(self, reply: Any) -> RelayedStream:
        """Return the stream of frames of its dialect, which end with usage, too."""
        relayed = self._answer.relay_stream(reply)
        self._step.relay = relayed.relay
        return relayed

    async def relay_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """Return the body in its dialect, and the response."""
        body, response = await self._answer.relay_whole(reply, usage)
        if response.usage is not None and not response.usage.missing:
            self._step.close(response.usage)
        return body, response


def _at_least(counted: Usage, reported: Usage) -> Usage:
    """Return what was counted, or what was reported where that is more; reported input is taken as it is."""
    # Before its end an upstream reports the output so far, which may be one token, as in Anthropic's `message_start`.
    return Usage(
        reported.input or counted.input,
        max(reported.output, counted.output),
        reported.cache_read,
        reported.cache_write,
        max(reported.reasoning, counted.reasoning),
        estimated=True,
    )
