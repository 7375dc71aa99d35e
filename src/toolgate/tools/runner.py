"""The one way in which a server tool is run, whoever asks for it: check, prepare, consent, run, bound.

A tool runs only with arguments that fit its schema and only with the consent its policy demands. Whatever it does, what
comes out is an `Output` of bounded size within bounded time; the time that a person takes to decide is not the tool's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.message import Text
from toolgate.tools.arguments import ArgumentCheck
from toolgate.tools.bounding import Bounds as Bounds
from toolgate.tools.bounding import bounded
from toolgate.tools.cache import OutputCache
from toolgate.tools.tool import (
    Approvals,
    Asked,
    Denied,
    Invocation,
    Outcome,
    Output,
    Preparation,
    Progress,
    Stance,
    Tell,
    Tool,
    ToolFailure,
    ToolSpec,
    TooSlow,
    TransientFailure,
    Verdict,
    in_silence,
)

_PREPARATION_SECONDS = 5.0
_LONGEST_WORD = 2000

Given = TypeVar("Given")


class Ended(Struct, frozen=True):
    """How a call ended; `seconds` is the tool's own time, unless it did not come to run."""

    spec: ToolSpec
    asked: Invocation
    run: str
    seconds: float
    outcome: Outcome


class Ran(Protocol):
    """Hears of every call that came to an end."""

    def __call__(self, ended: Ended) -> None:
        """A call ended."""


class Consent(Struct, frozen=True):
    """How a call may get a person's consent: what the request demands, and how long it may wait here.

    `approvals` decide instead of the runner's own, for a run that has its own ways with them.
    """

    run: str
    stance: Stance | None = None
    hold_seconds: float = 0.0
    tainted: bool = False
    approvals: Approvals | None = None


class Waiting(Struct, frozen=True):
    """The call waits for this approval."""

    approval: str


async def _at_once() -> None:
    """Nothing needs to be noted before a call starts."""


class _Course:
    """How far a call has come."""

    def __init__(self, starting: Callable[[], Awaitable[None]]) -> None:
        self.began = time.monotonic()
        self.has_begun = False
        self._starting = starting

    async def start(self) -> None:
        """Its effects are about to happen."""
        await self._starting()
        self.has_begun = True


class Runner:
    """Runs tools."""

    def __init__(
        self,
        approvals: Approvals,
        bounds: Bounds = Bounds(),  # noqa: B008  # an immutable value
        redact: Callable[[str], str] = str,
        ran: Ran | None = None,
    ) -> None:
        self._approvals = approvals
        self._check = ArgumentCheck()
        self._cache = OutputCache()
        self.bounds = bounds
        self.permits: Callable[[str, ToolSpec], bool] = _everybody
        self._redact = redact
        self._ran = ran

    async def run(
        self,
        tool: Tool,
        asked: Invocation,
        consent: Consent,
        starting: Callable[[], Awaitable[None]] = _at_once,
        on_wait: Callable[[float], None] | None = None,
    ) -> Output | Waiting:
        """What the call gave, be it a failure, or the approval it waits for.

        Only the text of `asked.arguments` counts: they are read and checked here. `on_wait` hears how long a person took.
        """
        course = _Course(starting)
        try:
            output = await self._through(tool, asked, consent, course, on_wait)
        except ToolFailure as failure:
            output, outcome = _failed(str(failure)), failure.outcome
        except asyncio.CancelledError:
            is_harmless = tool.spec.annotations.repeatable or not course.has_begun
            self._end(tool, asked, consent, course, "cancelled" if is_harmless else "outcome_unknown")
            raise
        else:
            if isinstance(output, Waiting):
                return output
            outcome = "error" if output.is_error else "ok"
        self._end(tool, asked, consent, course, outcome)
        return await bounded(output, self.bounds, self._redact)

    async def _through(
        self,
        tool: Tool,
        asked: Invocation,
        consent: Consent,
        course: "_Course",
        on_wait: Callable[[float], None] | None,
    ) -> Output | Waiting:
        arguments = await self._check.read(tool.spec, asked.text)
        invocation = replace(asked, arguments=arguments, tell=self._discreet(asked.tell))
        verdict = await self._verdict(tool, invocation, consent, on_wait)
        if verdict.stance == "pending":
            return Waiting(verdict.approval or "")
        if verdict.stance == "deny":
            raise Denied(_denied(tool, verdict))
        if verdict.arguments is not None:
            edited = await self._check.read(tool.spec, verdict.arguments)
            invocation = replace(invocation, arguments=edited, text=verdict.arguments)
        if not self.permits(invocation.caller, tool.spec):  # it took its time to get here
            raise Denied(f"The caller may not use {tool.spec.name} any more. It was not run.")
        course.began = time.monotonic()
        return await self._output(tool, invocation, course.start)

    def _end(self, tool: Tool, asked: Invocation, consent: Consent, course: "_Course", outcome: Outcome) -> None:
        if self._ran is not None:
            self._ran(Ended(tool.spec, asked, consent.run, time.monotonic() - course.began, outcome))

    def _discreet(self, tell: Tell) -> Tell:
        """The same, with no secret of ours in what is told."""

        def told(progress: Progress) -> None:
            message = progress.message
            tell(progress if message is None else replace(progress, message=self._redact(message[:_LONGEST_WORD])))

        return told

    async def _verdict(
        self, tool: Tool, invocation: Invocation, consent: Consent, on_wait: Callable[[float], None] | None
    ) -> Verdict:
        preparation = await self._prepared(tool, invocation)
        asked = Asked(tool.spec, invocation, consent.run, preparation, consent.stance, consent.tainted)
        approvals = consent.approvals or self._approvals
        verdict = await approvals.decide(asked)
        until = time.monotonic() + consent.hold_seconds
        # A question may go out of scope before it is answered, because the policy changes: then another stands for it.
        while verdict.stance == "pending" and verdict.approval is not None:
            began = time.monotonic()
            if began >= until:
                break
            answered = await approvals.wait(verdict.approval, until - began)
            if on_wait is not None:
                on_wait(time.monotonic() - began)
            if not answered:
                break
            verdict = await approvals.decide(asked)
        return verdict

    async def _prepared(self, tool: Tool, invocation: Invocation) -> Preparation:
        try:
            return await _timed(tool.prepare, invocation, _PREPARATION_SECONDS)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise ToolFailure(f"{tool.spec.name} was cancelled from within.") from None
        except TimeoutError:
            raise TooSlow(f"{tool.spec.name} took too long to prepare the call; nothing was run.") from None
        except ToolFailure:
            raise
        except Exception as error:  # noqa: BLE001  # the tool boundary: whatever a tool raises is its own failure
            raise ToolFailure(f"{tool.spec.name} could not prepare the call: {_said(error)}") from None

    async def _output(self, tool: Tool, invocation: Invocation, starting: Callable[[], Awaitable[None]]) -> Output:
        spec = tool.spec
        if spec.cache_seconds and (known := self._cache.get(spec, invocation)):
            return known
        await starting()
        attempts = self.bounds.attempts if spec.annotations.repeatable else 1
        for attempt in range(attempts):
            try:
                output = await self._once(tool, invocation)
                break
            except TransientFailure:
                if attempt + 1 == attempts:
                    raise
        if spec.cache_seconds and not output.is_error:
            self._cache.put(spec, invocation, output)
        return output

    async def _once(self, tool: Tool, invocation: Invocation) -> Output:
        seconds = tool.spec.timeout or self.bounds.seconds
        try:
            return await _timed(tool.invoke, invocation, seconds)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise ToolFailure(f"{tool.spec.name} was cancelled from within.") from None
        except TimeoutError:
            raise TooSlow(f"{tool.spec.name} did not answer within {seconds:g} seconds and was stopped.") from None
        except ToolFailure:
            raise
        except Exception as error:  # noqa: BLE001  # the tool boundary: whatever a tool raises is its own failure
            raise ToolFailure(f"{tool.spec.name} failed: {_said(error)}") from None


class _Alarm(Struct, frozen=True):
    """A clock that ends its call."""

    timeout: asyncio.Timeout
    seconds: float

    def stop(self) -> None:
        self.timeout.reschedule(None)

    def start(self) -> None:
        self.timeout.reschedule(asyncio.get_running_loop().time() + self.seconds)


async def _timed(step: Callable[[Invocation], Awaitable[Given]], invocation: Invocation, seconds: float) -> Given:
    """What the step gives within so many seconds, not counting those that it stands in line."""
    async with asyncio.timeout(seconds) as timeout:
        return await step(replace(invocation, clock=_Alarm(timeout, seconds)))


def _everybody(caller: str, spec: ToolSpec) -> bool:
    """Nobody has lost a right."""
    return True


def _is_cancelled() -> bool:
    """Whether somebody wants us to stop; a cancellation that nobody asked for is the tool's own failure."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _denied(tool: Tool, verdict: Verdict) -> str:
    reason = f": {verdict.reason.rstrip('.')}" if verdict.reason else ""
    return f"The call of {tool.spec.name} was not allowed{reason}. It was not run; do not try it again unchanged."


def _failed(message: str) -> Output:
    return Output((Text(message),), is_error=True)


def _said(error: Exception) -> str:
    """An exception in words, without its traceback."""
    return f"{type(error).__name__}: {error}"[:2000] if str(error) else type(error).__name__


def invocation(
    call_id: str, text: str, caller: str, session: str = "", tell: Tell = in_silence, arguments: Mapping[str, Any] = {}
) -> Invocation:
    """A call that is yet to be checked; its key is that of the call, so that a repetition has the same."""
    return Invocation(call_id, arguments, text, caller, session, call_id, tell)
