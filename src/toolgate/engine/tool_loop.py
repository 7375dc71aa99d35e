"""Run a model together with the server's tools: ask it, run the tools it calls, and ask again until it has answered.

The conversation is the only state: if it ends in calls that the gateway runs, they are run; otherwise the model is asked.
To resume after an approval, a lost connection or the client's own tools is therefore just to run again.

The name of a call decides who runs it, before anything is emitted. The client's calls are passed on as they arrive, all
others are marked as the gateway's: dialects with native server tools show them, the others leave them out.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import EmptyModelAnswer
from toolgate.conversation.events import StepEnd, StepEvent, ToolProgress, Usage
from toolgate.conversation.history import split_at_waiting_calls, unanswered_calls
from toolgate.conversation.message import ApprovalRequestPart, Message, Text, ToolCall, ToolResult, is_blank
from toolgate.conversation.request import ModelRequest, ToolChoice
from toolgate.engine.client_visible_events import (
    AlreadySentCalls,
    ClientVisibleEventFilter,
    CollectedStepAnswer,
    Presentation,
)
from toolgate.engine.ports import Model, ModelStream, RunJournal, RunObserver, RunTools, UnobservedRun
from toolgate.engine.run_limits import Price, RunLimits, RunLimitTracker

# These texts are the results of calls that are not run. The model reads them, so each says what to do next.
INTERRUPTED_CALL = (
    "This call was interrupted and its outcome is unknown: it may or may not have taken effect. "
    "Do not repeat it; find out what happened, or ask the user."
)
UNKNOWN_CALL = "This server did not make this call, or made it too long ago. It was not run; make it again if needed."
INCOMPLETE_CALL = (
    "This call broke off and was not run, because its arguments are not complete: write the whole call again."
)
EMPTY_ANSWER_PROMPT = "Your last answer was empty. Answer the user now."
REPEATED_CALL = (
    "This very call was made several times already and was not run again: use its result, or do something else."
)
# A client that does not read must not make the queue grow without end; progress that does not fit is dropped.
_MAX_QUEUED_PROGRESS = 100


class EarlierAttempts(Struct, frozen=True):
    """What an earlier attempt at the same run did before it stopped, and the ids of the calls it had started.

    `unknown` calls are in the client's conversation as the gateway's, but this server did not make them for this client.
    `by_model` is the usage by the models that were asked, whose prices differ, with that of failed requests.
    `shown` is what the client has received already; without it everything is emitted again.
    """

    messages: tuple[Message, ...] = ()
    started: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    usage: Usage | None = None
    by_model: Mapping[str, Usage] = {}
    shown: AlreadySentCalls | None = None


class ToolLoop(Struct, frozen=True):
    """A model that runs the server's tools it calls, and is asked again until it has answered."""

    model: Model
    tools: RunTools
    journal: RunJournal
    presentation: Presentation = Presentation()
    limits: RunLimits = RunLimits()
    price: Price = Price()
    prices: Mapping[str, Price] = {}
    parallel: int = 8
    history: EarlierAttempts = EarlierAttempts()
    observer: RunObserver = UnobservedRun()

    async def ask(self, request: ModelRequest) -> "ToolLoopRun":
        """Return the run, once the model's first event has arrived or there are calls to run before it is asked."""
        run = ToolLoopRun(self, request)
        await run.start()
        return run


class ToolLoopRun:
    """One run of the tool loop, read like any other `ModelStream`."""

    dialect: str | None = None
    whole = False

    def __init__(self, loop: ToolLoop, request: ModelRequest) -> None:
        self.upstream = ""
        self.warnings: tuple[str, ...] = ()
        earlier, self._later = split_at_waiting_calls(request)  # the latter is read behind the results of waiting calls
        self._request = request = replace(request, messages=earlier) if self._later else request
        self._added = list(loop.history.messages)  # the messages of this run, behind those of the request
        self._history = loop.history
        self._model = loop.model
        self._tools = loop.tools
        self._journal = loop.journal
        self._observer = loop.observer
        self._presentation = loop.presentation
        # An earlier attempt is part of the run, so its limits include what that has used.
        self._used = RunLimitTracker(loop.limits, loop.price, loop.prices)
        self._used.add_step(loop.history.usage)
        # A round counts when its calls are run, so the last answer of an earlier attempt does not while it has open calls.
        answers = sum(message.role == "assistant" for message in self._added)
        self._used.rounds = answers - bool(unanswered_calls(self._added))
        self._presenter = ClientVisibleEventFilter(loop.presentation, loop.tools, request)
        choice = request.tool_choice
        self._semaphore = asyncio.Semaphore(1 if choice and choice.parallel is False else loop.parallel)
        self._answer: ModelStream | None = None
        self._last_round = False
        self._reached_limit = ""  # which limit made this the last round, as text
        self._incomplete: set[str] = set()  # ids of gateway calls whose arguments broke off
        self._was_empty = False  # the model has been asked again for an empty answer
        self._start_time = time.monotonic()
        self._on_close: Callable[[], None] | None = None

    async def start(self) -> None:
        """Ask the model, unless there are calls to run before, or the run had ended and only the client missed it."""
        # Awaited before anything is sent, so that an error of the first question becomes the status code of the response.
        if not self._pending_calls() and not self._had_ended():
            await self._ask(self._next_choice() if self._added else self._request.tool_choice)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the run's events, in batches as they became known."""
        if self._added or self._answer is None:
            yield self._presenter.replay(self._added, self._history.shown)
        if self._answer is None and self._had_ended():
            # The answer is recorded and the client has only missed its end, so the model is not asked.
            yield [StepEnd("tool_calls" if _returned_calls(self._added) else "stop", self._used.usage)]
            return
        while True:
            if self._answer is not None:
                step = CollectedStepAnswer()
                async with aclosing(self._present(self._answer, step)) as batches:
                    async for batch in batches:
                        yield batch
                self._answer = None
                self._observer.step_ended(step.end.usage, bool(step.gateway_calls or step.client_calls))
                if self._would_end_empty(step):
                    self._used.add_step(step.end.usage)
                    # An empty answer is not recorded, and the model is asked once more. A second one is an error,
                    # except where a limit is reached: such a run always ends in an answer, though in one of ours.
                    if self._was_empty and not self._last_round:
                        raise EmptyModelAnswer("The model gave an empty answer, and another when it was asked again.")
                    if self._was_empty:
                        yield await self._end_without_answer()
                        return
                    self._was_empty = True
                    await self._ask(self._next_choice(), Message("user", (Text(EMPTY_ANSWER_PROMPT),)))
                    continue
                if (end := await self._record_step(step)) is not None:
                    yield [end]
                    return
            outcomes: list[ToolResult | ApprovalRequestPart] = []
            async with aclosing(self._run_calls(self._pending_calls(), outcomes)) as batches:
                async for batch in batches:
                    yield batch
            if (last := await self._record_outcomes(outcomes)) is not None:
                yield last
                return
            await self._ask(self._next_choice())

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call this when the run is closed."""
        self._on_close = callback

    async def aclose(self) -> None:
        """Cancel the model's answer; running calls are cancelled when `events` is closed."""
        if self._on_close is not None:
            self._on_close()
        if self._answer is not None:
            await self._answer.aclose()

    def _pending_calls(self) -> list[ToolCall]:
        return unanswered_calls((*self._request.messages, *self._added))

    def _had_ended(self) -> bool:
        """Return whether an earlier attempt ended: its last message is the model's, and calls no tool of the gateway."""
        earlier = self._history.messages
        return bool(earlier) and earlier[-1].role == "assistant" and not self._pending_calls()

    def _would_end_empty(self, step: CollectedStepAnswer) -> bool:
        """Return whether the run would end here with neither text for the client nor a call of its tools."""
        if step.end.reason not in ("stop", "tool_calls") or (step.gateway_calls and not self._last_round):
            return False
        # Text of earlier rounds counts as an answer, since the client has received it.
        earlier = [part for message in self._added if message.role == "assistant" for part in message.parts]
        return all(
            is_blank(part) or (isinstance(part, ToolCall) and part.executor == "gateway")
            for part in (*earlier, *step.parts)
        )

    async def _end_without_answer(self) -> list[StepEvent]:
        """End a run whose limit is reached and whose model still does not answer, with a sentence instead of an error."""
        text = (
            f"No answer: {self._reached_limit}, "
            "and the model went on calling tools when it was asked to answer without them."
        )
        self.warnings = (*self.warnings, text)
        self._added.append(Message("assistant", (Text(text),)))
        await self._journal.finished(self._added, [])
        return [*self._presenter.notice(text), StepEnd("stop", self._used.usage)]

    async def _ask(self, choice: ToolChoice | None, *more: Message) -> None:
        # What the client sent behind its waiting calls comes after their results, and before the model's next answers.
        results = list(itertools.takewhile(lambda message: message.role == "tool", self._added)) if self._later else []
        messages = (*self._request.messages, *results, *self._later, *self._added[len(results) :], *more)
        client_tools, offered = self._request.tools, self._tools.offered()
        tools = (*client_tools, *offered) if client_tools else offered
        # Not relayed: the loop must see every call before the client does. Not small: the history has grown.
        request = replace(self._request, messages=messages, tools=tools, tool_choice=choice, relay=False, small=False)
        self._observer.step_started([tool.name for tool in offered])
        self._answer = await self._model.ask(request)
        self.upstream = self._answer.upstream
        self._add_warnings(self._answer)

    def _add_warnings(self, answer: ModelStream) -> None:
        if answer.warnings:
            self.warnings = tuple(dict.fromkeys((*self.warnings, *answer.warnings)))

    def _next_choice(self) -> ToolChoice | None:
        """Return the tool choice of the next round: a forced call has been made, and the last round must answer."""
        choice = self._request.tool_choice
        if self._last_round:
            return ToolChoice("none")
        if choice is None or choice.mode != "required":
            return choice
        # A model that must call in every round would never answer.
        return ToolChoice(parallel=choice.parallel)

    async def _present(self, answer: ModelStream, step: CollectedStepAnswer) -> AsyncGenerator[list[StepEvent], None]:
        """Yield one answer of the model as the client receives it, and record it in `step`."""
        try:
            async with aclosing(answer.events()) as batches:
                async for batch in batches:
                    if events := self._presenter.present(batch, step, self._last_round):
                        yield events
        finally:
            # Added again: what was corrected in an answer is known only when it has been read.
            self._add_warnings(answer)
            await answer.aclose()

    async def _record_step(self, step: CollectedStepAnswer) -> StepEnd | None:
        """Record an answer of the model; return the end of the run if there is no call that the gateway runs."""
        end = step.end
        self._used.add_step(end.usage)
        if step.gateway_calls and end.reason in ("stop", "tool_calls") and not self._last_round:
            self._incomplete |= {call.id for call in step.gateway_calls if not call.complete}
            # An incomplete call is recorded as complete, because it gets a result: an error that it was not run.
            parts = [
                replace(part, complete=True) if isinstance(part, ToolCall) and part.executor == "gateway" else part
                for part in step.parts
            ]
            self._added.append(Message("assistant", tuple(parts)))
            tally = self._request.tally
            await self._journal.answered(self._added[-1], end.usage, tally.by_model if tally else {})
            return None
        # Calls of the gateway that are not run are left out: the client would wait for results that never come.
        parts = [part for part in step.parts if part not in step.gateway_calls]
        self._added.append(Message("assistant", tuple(parts)))
        await self._journal.finished(self._added, step.client_calls)
        reason = "stop" if end.reason == "tool_calls" and not step.client_calls else end.reason
        return StepEnd(reason, self._used.usage, end.stop_sequence, end.extra)

    async def _run_calls(
        self, calls: Sequence[ToolCall], outcomes: list[ToolResult | ApprovalRequestPart]
    ) -> AsyncGenerator[list[StepEvent], None]:
        """Run the calls concurrently; their outcomes are emitted, and added to `outcomes`, in the order of the calls."""
        refusals = self._refusals(calls)
        # Recorded before the calls run: if the process dies meanwhile, the same request resumes with these calls.
        if any(call.id not in refusals and self._tools.rules(call.name).needs_record for call in calls):
            await self._journal.progressed(self._added)
        # Tasks and a queue, not a task group: events are yielded while the calls run. Each task puts None when it is
        # done, so that the loop below wakes up for its outcome.
        queue: asyncio.Queue[ToolProgress | ToolCall | None] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._run_call(call, refusals.get(call.id), queue)) for call in calls]
        for task in tasks:
            task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            if status := self._presenter.calling(calls):
                yield status
            while len(outcomes) < len(tasks):
                waiting = [await queue.get()]
                while not queue.empty():  # before the outcomes, which the progress of their calls must precede
                    waiting.append(queue.get_nowait())
                batch: list[StepEvent] = []
                for one in waiting:
                    if isinstance(one, ToolCall):
                        batch += self._presenter.started(one)
                    elif one is not None:
                        batch.append(one)
                while len(outcomes) < len(tasks) and tasks[len(outcomes)].done():
                    call, outcome = calls[len(outcomes)], tasks[len(outcomes)].result()
                    outcomes.append(outcome)
                    batch += self._presenter.outcome(call, outcome)
                if batch:
                    yield batch
        finally:  # also when the client has left: `events` is closed then, and its tools must not run on
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _refusals(self, calls: Sequence[ToolCall]) -> dict[str, str]:
        """Return why calls are not run, by id: a limit is reached, they repeat, are unknown, incomplete or interrupted."""
        # The time that approvals take does not count: a person may need hours.
        seconds = time.monotonic() - self._start_time - self._tools.waited_seconds()
        tally = self._request.tally
        by_model = tally.by_model if tally else {}
        exceeded = self._used.exceeded(len(calls), seconds, by_model) or (
            tally.used_up() if tally and tally.used_up else None
        )
        if exceeded:
            refusals = {call.id: f"Not run: {exceeded}. Answer with what you have." for call in calls}
        else:
            refusals = dict.fromkeys(self._used.add_round(calls), REPEATED_CALL)
        # While only some of the calls repeat, the model has new results to work with.
        self._last_round = len(refusals) == len(calls)
        self._reached_limit = exceeded or "the same call was made again and again"
        # These replace a limit as the reason, since the model must know whether a call has taken effect.
        # Only calls that may do harm are recorded when they start, so their tools need not be there to be asked again.
        refusals |= {call.id: INTERRUPTED_CALL for call in calls if call.id in self._history.started}
        refusals |= {call.id: INCOMPLETE_CALL for call in calls if call.id in self._incomplete}
        return refusals | {call.id: UNKNOWN_CALL for call in calls if call.id in self._history.unknown}

    async def _run_call(
        self, call: ToolCall, refusal: str | None, queue: "asyncio.Queue[ToolProgress | ToolCall | None]"
    ) -> ToolResult | ApprovalRequestPart:
        def report(progress: ToolProgress) -> None:
            if queue.qsize() < _MAX_QUEUED_PROGRESS:
                queue.put_nowait(progress)

        async def starting() -> None:
            await self._journal.starting(call, self._tools.rules(call.name).repeatable)
            self._observer.tool_started(call.id)
            queue.put_nowait(call)

        if refusal is not None:
            self._observer.call_refused(call, "unknown" if refusal == INTERRUPTED_CALL else "failed")
            outcome: ToolResult | ApprovalRequestPart = ToolResult(call.id, (Text(refusal),), True, call.name)
        else:
            async with self._semaphore:
                self._observer.call_started(call)
                outcome = await self._tools.run(call, report, starting)
            if isinstance(outcome, ApprovalRequestPart):
                self._observer.call_ended(call.id, "waiting")
            else:
                self._observer.call_ended(call.id, "failed" if outcome.is_error else "completed")
        if isinstance(outcome, ToolResult):
            await self._journal.ended(outcome)
        return outcome

    async def _record_outcomes(self, outcomes: list[ToolResult | ApprovalRequestPart]) -> list[StepEvent] | None:
        """Record the results; return the end of the run if it waits for an approval or for the client's own tools."""
        results = [outcome for outcome in outcomes if isinstance(outcome, ToolResult)]
        waiting = [outcome for outcome in outcomes if isinstance(outcome, ApprovalRequestPart)]
        self._added += [Message("tool", (result,)) for result in results]
        returned, approvals = _returned_calls(self._added), [one.id for one in waiting]
        # The client's own calls come first: without their results the conversation cannot go on, approved or not.
        if returned:
            await self._journal.finished(self._added, returned, approvals)
            return [*self._presenter.waiting(waiting), StepEnd("tool_calls", self._used.usage)]
        pause = self._presentation.native_pause
        if waiting and (self._presentation.native_approvals or pause):
            await self._journal.finished(self._added, (), approvals)  # the client will send all of it back
        elif waiting:
            # Other clients know of no approvals: they send the same request again, which resumes from here.
            await self._journal.progressed(self._added)
        if waiting:
            return [*self._presenter.waiting(waiting), StepEnd("pause" if pause else "stop", self._used.usage)]
        # Recorded before the model is asked: if that fails, the same request must not run these calls once more.
        if any(self._tools.rules(result.name or "").needs_record for result in results):
            await self._journal.progressed(self._added)
        return None


def _returned_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls of the client's tools in the last answer of the model."""
    last = next((message for message in reversed(messages) if message.role == "assistant"), None)
    return [part for part in last.parts if isinstance(part, ToolCall) and part.executor == "client"] if last else []
