"""A model together with the server's tools: asking it is a run of as many rounds as it takes, told as one step.

The conversation is the only state: if it ends in calls that are ours to run, they are run; otherwise the model is asked.
Going on after an approval, a cut connection or the client's own tools is therefore just running again.

Whose a call is, is known by its name before anything happens. The client's calls are passed on as they come, all others are
marked as the gateway's: dialects that can speak of them show them, the rest leave them out.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import EmptyAnswer
from toolgate.conversation.events import StepEnd, StepEvent, ToolProgress, Usage
from toolgate.conversation.history import unanswered
from toolgate.conversation.message import ApprovalRequest, Message, Part, Text, ToolCall, ToolResult, is_blank
from toolgate.conversation.request import ModelRequest, ToolChoice
from toolgate.engine.limits import Budget, Price, Spent
from toolgate.engine.ports import Answer, Journal, Model, Toolbox
from toolgate.engine.teller import Heard, Manner, Step, Teller

INTERRUPTED = (
    "This call was interrupted and its outcome is unknown: it may or may not have taken effect. "
    "Do not repeat it; find out what happened, or ask the user."
)
STRANGE = (
    "This call was not made here, or so long ago that nobody remembers it. It was not run; make it anew if needed."
)
BROKEN_OFF = "This call broke off and was not run, because its arguments are not complete: write the whole call again."
SAY_SOMETHING = "Your last answer was empty. Answer the user now."
CIRCLING = "This very call was made several times already and was not run again: use its result, or do something else."
_MOST_NEWS = 100


class Past(Struct, frozen=True):
    """What an earlier attempt at the same run did before it broke off, and which calls had begun by then.

    `strange` calls stand in the client's conversation as ours, but nobody here made them for this client.
    `heard` is what the client knows of it already; without it the client is told everything again.
    """

    messages: tuple[Message, ...] = ()
    started: frozenset[str] = frozenset()
    strange: frozenset[str] = frozenset()
    usage: Usage | None = None
    heard: Heard | None = None


class WithTools(Struct, frozen=True):
    """Asks a model, runs the server's tools that it calls, and asks again until it has answered."""

    model: Model
    toolbox: Toolbox
    journal: Journal
    manner: Manner = Manner()
    budget: Budget = Budget()
    price: Price = Price()
    parallel: int = 8
    past: Past = Past()

    async def ask(self, request: ModelRequest) -> "Run":
        """The run, once the model's first piece has arrived or there are calls to run before it is asked."""
        run = Run(self, request)
        await run.begin()
        return run


class Run:
    """One run, which is an answer like any other."""

    dialect: str | None = None
    whole = False

    def __init__(self, gear: WithTools, request: ModelRequest) -> None:
        self.upstream = ""
        self.warnings: tuple[str, ...] = ()
        self._request = request
        self._own = list(gear.past.messages)  # what was said since the client's last word
        self._past = gear.past
        self._model = gear.model
        self._toolbox = gear.toolbox
        self._journal = gear.journal
        self._manner = gear.manner
        self._spent = Spent(gear.budget, gear.price)
        self._spent.step(gear.past.usage)
        self._spent.rounds = sum(message.role == "assistant" for message in self._own) - bool(unanswered(self._own))
        self._teller = Teller(gear.manner, gear.toolbox, request)
        choice = request.tool_choice
        self._gate = asyncio.Semaphore(1 if choice and choice.parallel is False else gear.parallel)
        self._answer: Answer | None = None
        self._last_round = False
        self._limit = ""  # the one that is reached, in words
        self._broken_off: set[str] = set()  # ids of our calls that are not complete
        self._was_empty = False  # the model has been asked again for an empty answer
        self._began = time.monotonic()
        self._closed: Callable[[], None] = _not_at_all

    async def begin(self) -> None:
        """Ask the first question, unless there are calls to run before, or all was said and only the client missed it."""
        if not self._calls() and not self._was_over():
            await self._ask(self._next_choice() if self._own else self._request.tool_choice)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """The run's events, in batches as they became known."""
        if self._own or self._answer is None:
            yield self._teller.recount(self._own, self._past.heard)
        if self._answer is None and self._was_over():
            yield [StepEnd("tool_calls" if _returned(self._own) else "stop", self._spent.usage)]
            return
        while True:
            if self._answer is not None:
                step = Step()
                async with aclosing(self._told(self._answer, step)) as told:
                    async for batch in told:
                        yield batch
                self._answer = None
                if self._is_empty(step):
                    if self._last_round and self._was_empty:
                        yield await self._without_an_answer(step)
                        return
                    await self._ask_again(step)
                    continue
                if (end := await self._ended(step)) is not None:
                    yield [end]
                    return
            outcomes: list[ToolResult | ApprovalRequest] = []
            async with aclosing(self._round(self._calls(), outcomes)) as told:
                async for batch in told:
                    yield batch
            if (last := await self._settled(outcomes)) is not None:
                yield last
                return
            await self._ask(self._next_choice())

    def on_close(self, closed: Callable[[], None]) -> None:
        """Have this called when the run is closed."""
        self._closed = closed

    async def aclose(self) -> None:
        """Stop listening; whatever runs is cancelled with the reading of `events`."""
        self._closed()
        if self._answer is not None:
            await self._answer.aclose()

    def _calls(self) -> list[ToolCall]:
        """The calls at the end of the conversation that are ours and have no result."""
        return unanswered((*self._request.messages, *self._own))

    def _was_over(self) -> bool:
        """Whether an earlier attempt came to its end: its last word is the model's, and calls nothing of ours."""
        past = self._past.messages
        return bool(past) and past[-1].role == "assistant" and not self._calls()

    def _is_empty(self, step: Step) -> bool:
        """Whether the run would end here without a word to the client or a call for it."""
        if step.end.reason not in ("stop", "tool_calls") or (step.ours and not self._last_round):
            return False
        said = [part for message in self._own if message.role == "assistant" for part in message.parts]
        return not any(_is_answer(part) for part in (*said, *step.parts))

    async def _ask_again(self, step: Step) -> None:
        """Ask once more for an answer that was empty; one that is empty again is a failure."""
        self._spent.step(step.end.usage)
        if self._was_empty:
            raise EmptyAnswer("The model gave an empty answer, and another when it was asked again.")
        self._was_empty = True
        choice = ToolChoice("none") if self._last_round else self._next_choice()
        await self._ask(choice, Message("user", (Text(SAY_SOMETHING),)))

    async def _without_an_answer(self, step: Step) -> list[StepEvent]:
        """End a run whose limit is reached and whose model still does not answer: with a sentence of ours, not an error."""
        self._spent.step(step.end.usage)
        text = (
            f"No answer: {self._limit}, and the model went on calling tools when it was asked to answer without them."
        )
        self.warnings = (*self.warnings, text)
        self._own.append(Message("assistant", (Text(text),)))
        await self._journal.finished(self._own, [])
        return [*self._teller.notice(text), StepEnd("stop", self._spent.usage)]

    async def _ask(self, choice: ToolChoice | None, *more: Message) -> None:
        messages = (*self._request.messages, *self._own, *more)
        own, ours = self._request.tools, self._toolbox.offered()
        tools = (*own, *ours) if own else ours
        request = replace(self._request, messages=messages, tools=tools, tool_choice=choice, relay=False)
        self._answer = await self._model.ask(request)
        self.upstream = self._answer.upstream
        self._add_warnings(self._answer)

    def _add_warnings(self, answer: Answer) -> None:
        if answer.warnings:
            self.warnings = tuple(dict.fromkeys((*self.warnings, *answer.warnings)))

    def _next_choice(self) -> ToolChoice | None:
        """A call that was forced has been made; asked again, the model is free, or must answer if this is the end."""
        choice = self._request.tool_choice
        if self._last_round:
            return ToolChoice("none")
        if choice is None or choice.mode != "required":
            return choice
        return ToolChoice(parallel=choice.parallel)

    async def _told(self, answer: Answer, step: Step) -> AsyncGenerator[list[StepEvent], None]:
        """One answer of the model as the client hears it, kept in `step`."""
        try:
            async with aclosing(_batches(answer)) as batches:
                async for batch in batches:
                    if told := self._teller.tell(batch, step, self._last_round):
                        yield told
        finally:
            self._add_warnings(answer)
            await answer.aclose()

    async def _ended(self, step: Step) -> StepEnd | None:
        """The end of the run, if the model has called nothing that can be run here."""
        end = step.end
        self._spent.step(end.usage)
        if step.ours and end.reason in ("stop", "tool_calls") and not self._last_round:
            self._broken_off |= {call.id for call in step.ours if not call.complete}
            self._own.append(Message("assistant", tuple([_to_be_answered(part) for part in step.parts])))
            await self._journal.answered(self._own[-1], end.usage)
            return None
        kept = [part for part in step.parts if part not in step.ours]
        self._own.append(Message("assistant", tuple(kept)))
        await self._journal.finished(self._own, step.theirs)
        reason = "stop" if end.reason == "tool_calls" and not step.theirs else end.reason
        return StepEnd(reason, self._spent.usage, end.stop_sequence, end.extra)

    async def _round(
        self, calls: Sequence[ToolCall], outcomes: list[ToolResult | ApprovalRequest]
    ) -> AsyncGenerator[list[StepEvent], None]:
        """Run the calls side by side; what became of them is told and kept in the order in which they were made."""
        refusals = self._refusals(calls)
        if any(call.id not in refusals and not self._is_harmless(call.name) for call in calls):
            await self._journal.progressed(self._own)
        news: asyncio.Queue[ToolProgress | None] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._outcome(call, refusals.get(call.id), news)) for call in calls]
        for task in tasks:
            task.add_done_callback(lambda _: news.put_nowait(None))
        try:
            if status := self._teller.calling(calls):
                yield status
            while len(outcomes) < len(tasks):
                progress = await news.get()
                batch: list[StepEvent] = [] if progress is None else [progress]
                while len(outcomes) < len(tasks) and tasks[len(outcomes)].done():
                    call, outcome = calls[len(outcomes)], tasks[len(outcomes)].result()
                    outcomes.append(outcome)
                    batch += self._teller.outcome(call, outcome)
                if batch:
                    yield batch
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _refusals(self, calls: Sequence[ToolCall]) -> dict[str, str]:
        """Why calls are not run, by id: a budget is used up, the model turns in circles, or they were cut off before."""
        spent = time.monotonic() - self._began - self._toolbox.waited()
        exceeded = self._spent.exceeded(len(calls), spent)
        if exceeded:
            refusals = {call.id: f"Not run: {exceeded}. Answer with what you have." for call in calls}
        else:
            refusals = dict.fromkeys(self._spent.round(calls), CIRCLING)
        self._last_round = len(refusals) == len(calls)
        self._limit = exceeded or "the same call was made again and again"
        # Only what may do harm is noted when it starts; its tool need not be here yet to say so again.
        refusals |= {call.id: INTERRUPTED for call in calls if call.id in self._past.started}
        refusals |= {call.id: BROKEN_OFF for call in calls if call.id in self._broken_off}
        return refusals | {call.id: STRANGE for call in calls if call.id in self._past.strange}

    def _is_harmless(self, name: str) -> bool:
        """Whether it makes no difference if the model is asked anew and makes another call instead."""
        return self._toolbox.is_traceless(name) and not self._toolbox.may_ask(name)

    async def _outcome(
        self, call: ToolCall, refusal: str | None, news: "asyncio.Queue[ToolProgress | None]"
    ) -> ToolResult | ApprovalRequest:
        if refusal is not None:
            outcome: ToolResult | ApprovalRequest = ToolResult(call.id, (Text(refusal),), True, call.name)
        else:
            async with self._gate:
                outcome = await self._toolbox.run(call, partial(_tell, news), partial(self._starting, call))
        if isinstance(outcome, ToolResult):
            await self._journal.ended(outcome)
        return outcome

    async def _starting(self, call: ToolCall) -> None:
        await self._journal.starting(call, self._toolbox.is_repeatable(call.name))

    async def _settled(self, outcomes: list[ToolResult | ApprovalRequest]) -> list[StepEvent] | None:
        """The end of the run if it waits, for a person or for the client's own tools."""
        results = [outcome for outcome in outcomes if isinstance(outcome, ToolResult)]
        waiting = [outcome for outcome in outcomes if isinstance(outcome, ApprovalRequest)]
        self._own += [Message("tool", (result,)) for result in results]
        theirs, asked = _returned(self._own), [one.id for one in waiting]
        if theirs:
            await self._journal.finished(self._own, theirs, asked)
            return [*self._teller.waiting(waiting), StepEnd("tool_calls", self._spent.usage)]
        if waiting and (self._manner.asking or self._manner.pausing):
            await self._journal.finished(self._own, (), asked)  # the client will come back with all of it
        elif waiting:
            await self._journal.progressed(self._own)
        if waiting:
            end = StepEnd("pause" if self._manner.pausing else "stop", self._spent.usage)
            return [*self._teller.waiting(waiting), end]
        if any(not self._is_harmless(result.name or "") for result in results):
            await self._journal.progressed(self._own)
        return None


def _is_answer(part: Part) -> bool:
    """Whether a part of an answer tells the client something, or calls its tools."""
    return not is_blank(part) and not (isinstance(part, ToolCall) and part.executor == "gateway")


def _to_be_answered(part: Part) -> Part:
    """The part as it is kept: a call of ours that broke off gets a result, which says so."""
    is_ours = isinstance(part, ToolCall) and part.executor == "gateway"
    return replace(part, complete=True) if is_ours else part


def _tell(news: "asyncio.Queue[ToolProgress | None]", progress: ToolProgress) -> None:
    """Pass it on, unless so much waits to be told that nobody can be listening."""
    if news.qsize() < _MOST_NEWS:
        news.put_nowait(progress)


def _not_at_all() -> None:
    """Nobody wants to know."""


def _returned(messages: Sequence[Message]) -> list[ToolCall]:
    """The client's calls in the last answer of the model."""
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    return [part for part in last.parts if isinstance(part, ToolCall) and part.executor == "client"] if last else []


async def _batches(answer: Answer) -> AsyncGenerator[list[StepEvent], None]:
    events: AsyncIterator[list[StepEvent]] = answer.events()
    async for batch in events:
        yield batch
