"""A model that only writes text, made one that calls tools: tools go into its prompt, calls come out of its text.

The model inside is asked without tools. What it writes is read while it comes, so a call reaches the client while the model
still writes it. An answer that cannot be used is asked for again, a bounded number of times and only if the client has not
heard what is wrong with it; in the end it is plain text, and somebody is told.

An answer that is not streamed is complete when `ask` returns, so whatever can fail fails there.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import EmptyAnswer
from toolgate.conversation.events import FinishReason, StepEnd, StepEvent, StepStart, Usage
from toolgate.conversation.message import Text
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.size import is_larger
from toolgate.engine.offload import LARGE
from toolgate.engine.ports import Answer, Model
from toolgate.text.inject import inject, system_texts
from toolgate.text.prompts.conversation import Scribe
from toolgate.text.prompts.wording import Prompts
from toolgate.text.syntaxes import syntax as syntax_named
from toolgate.upstreams import tokens
from toolgate.upstreams.adapt import Restorer
from toolgate.upstreams.emulation.hearing import EMPTY, Ear, Hearing
from toolgate.upstreams.emulation.notes import Note, Noted, unnoticed
from toolgate.upstreams.emulation.plan import Plan, corrected, plan
from toolgate.upstreams.emulation.slices import sliced

_BLANK_LINE = "\n\n"


class Gear(Struct, frozen=True):
    """What asking takes: the model inside, how it is written to, how it is heard, and who is told what happens."""

    model: Model
    scribe: Scribe
    ear: Ear
    reasks: int
    noted: Noted


class Emulated:
    """A model whose tools are emulated.

    `syntax` names the form of its calls; `inject` says that it takes no system messages, `images` that it sees pictures,
    `parallel` that it may write several calls at once. At most `reasks` times is an answer asked for again. `stops` has
    the upstream stop a model that makes up results. `thinking` and `calls_end_thinking` are the parser's own.
    """

    def __init__(
        self,
        model: Model,
        *,
        syntax: str = "invoke",
        prompts: Prompts | None = None,
        inject: bool = True,
        images: bool = False,
        parallel: bool = True,
        reasks: int = 1,
        stops: bool = True,
        thinking: bool = False,
        calls_end_thinking: bool = False,
        noted: Noted = unnoticed,
    ) -> None:
        named = syntax_named(syntax)
        scribe = Scribe(prompts or Prompts(), named, inject, images, parallel)
        ear = Ear(named, thinking=thinking, calls_end_thinking=calls_end_thinking)
        self._gear = Gear(model, scribe, ear, reasks, noted)
        self._stops = stops

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece has arrived, or all of it if it is not to be streamed."""
        if is_larger(request, LARGE):
            planned = await asyncio.to_thread(plan, request, self._gear.scribe, self._stops)  # may take seconds
        else:
            planned = plan(request, self._gear.scribe, self._stops)
        if planned is None:
            return await self._gear.model.ask(request)
        answer = EmulatedAnswer(self._gear, planned, await self._gear.model.ask(planned.asked))
        return answer if request.stream else await read_whole(answer)


class Injected:
    """A model that calls tools by itself but takes no system messages: the user says them first."""

    def __init__(self, model: Model, prompts: Prompts | None = None) -> None:
        self._model = model
        self._prompts = prompts or Prompts()

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer; it is passed on as it came if there was nothing to inject."""
        if system_texts(request.messages):
            request = replace(request, messages=inject(request.messages, self._prompts.system_context))
        return await self._model.ask(request)


class EmulatedAnswer:
    """The answer of a model that only writes text, as one with calls in it; it may take more than one to make."""

    dialect: str | None = None
    whole = False

    def __init__(self, gear: Gear, planned: Plan, answer: Answer) -> None:
        self.upstream = answer.upstream
        self.warnings = (*planned.warnings, *_client_warnings(answer.warnings, planned))
        self._gear = gear
        self._plan = planned
        self._asked = planned.asked
        self._answer = answer
        self._restore = Restorer(planned.originals).restore if planned.originals else _as_they_are
        self._usage = Usage()

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """The step's events in batches, calls as soon as they are known for such."""
        left, lead, begun = self._gear.reasks, "", False
        while True:
            hearing = Hearing(self._plan, self._gear.ear, self._gear.noted, lead)
            async with aclosing(self._heard(hearing)) as batches:
                async for batch in batches:
                    yield batch if not begun else [event for event in batch if not isinstance(event, StepStart)]
                    begun = True
            self.warnings = (*self.warnings, *hearing.warnings)
            await self._count(hearing)
            problems = hearing.problems()
            if not problems or not left:
                break
            left = min(left - 1, 0 if not hearing.calls and self._plan.choice.mode == "required" else left)
            lead = _BLANK_LINE if lead or hearing.spoke else ""
            await self._ask_again(hearing, problems)
        yield self._ending(hearing, problems, spoke_before=bool(lead))

    async def aclose(self) -> None:
        """Stop listening; an unfinished answer is cancelled at the upstream."""
        await self._answer.aclose()

    async def _heard(self, hearing: Hearing) -> AsyncGenerator[list[StepEvent], None]:
        """One answer of the model, as far as it may be told yet."""
        answer = self._answer
        async with aclosing(answer.events()) as batches:  # type: ignore[type-var]  # each of ours can be closed
            async for batch in sliced(batches):
                first = hearing.start is None
                told = hearing.hear(batch) if not hearing.over else hearing.only_end(batch)
                if first and hearing.start is not None:
                    told = [hearing.start, *told]
                if told := self._restore(told):
                    yield told
                if hearing.over and not answer.whole:
                    break
        await answer.aclose()
        if told := self._restore(hearing.end()):
            yield told

    async def _ask_again(self, hearing: Hearing, problems: list[str]) -> None:
        self._gear.noted(Note("asked_again", " ".join(problems)))
        self._asked = corrected(self._plan, self._gear.scribe, hearing.said, problems)
        self._answer = await self._gear.model.ask(self._asked)
        self.upstream = self._answer.upstream

    async def _count(self, hearing: Hearing) -> None:
        """Add what this answer cost, counted if nobody said."""
        usage = hearing.stop.usage if hearing.stop else None
        if usage is None:
            usage = await tokens.estimate(self._asked, [*hearing.thought, Text(hearing.said)])
        self._usage += usage

    def _ending(self, hearing: Hearing, problems: list[str], spoke_before: bool) -> list[StepEvent]:
        if problems:
            self._gear.noted(Note("given_up", " ".join(problems)))
            self.warnings = (*self.warnings, *[f"the model's answer was not as asked: {one}" for one in problems])
        if EMPTY in problems and not spoke_before:
            raise EmptyAnswer("The model gave an empty answer, however often it was asked.")
        rest = self._restore(hearing.rest(problems))
        stop = hearing.stop or StepEnd("stop")
        if not rest and problems and not hearing.has_content and not spoke_before:
            raise EmptyAnswer("The model gave an empty answer where a call was required.")
        sequence = None if stop.stop_sequence in self._plan.own_stops else stop.stop_sequence
        return [*rest, StepEnd(_reason(stop.reason, hearing), self._usage, sequence, stop.extra)]


def _as_they_are(events: list[StepEvent]) -> list[StepEvent]:
    return events


def _reason(said: FinishReason, hearing: Hearing) -> FinishReason:
    """Whether the step ended in calls is told by what it did."""
    if said not in ("stop", "tool_calls"):
        return said
    return "tool_calls" if hearing.calls else "stop"


def _client_warnings(warnings: tuple[str, ...], planned: Plan) -> list[str]:
    """What the upstream could not be told, without what only we wanted to say."""
    only_ours = bool(planned.own_stops) and len(planned.own_stops) == len(planned.asked.settings.stop)
    return [warning for warning in warnings if not (only_ours and warning.startswith("stop "))]


class ReadyAnswer:
    """An answer that is here to its end."""

    dialect: str | None = None
    whole = True

    def __init__(self, upstream: str, warnings: tuple[str, ...], batches: list[list[StepEvent]]) -> None:
        self.upstream = upstream
        self.warnings = warnings
        self._batches = batches

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events."""
        for batch in self._batches:
            yield batch

    async def aclose(self) -> None:
        """Nothing is left open."""


async def read_whole(answer: Answer) -> Answer:
    """The answer, read to its end."""
    try:
        batches = [batch async for batch in answer.events()]
    finally:
        await answer.aclose()
    return ReadyAnswer(answer.upstream, answer.warnings, batches)
