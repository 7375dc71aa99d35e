"""Run a server tool: check its arguments, get approval, invoke it in bounded time, limit its output.

Every call of a server tool passes through `ToolRunner.run`, from a model's run as from the MCP server. A tool runs only with
arguments that fit its schema and only with the approval that the policy demands. Whatever it does, the result is a
`ToolOutput` of bounded size; the time that a person takes to decide does not count as the tool's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.message import Text
from toolgate.tools.argument_check import ArgumentValidator
from toolgate.tools.result_cache import ResultCache
from toolgate.tools.result_limits import ToolCallLimits as ToolCallLimits
from toolgate.tools.result_limits import limit_output
from toolgate.tools.tool import (
    CallApprovalOutcome,
    CallApprovals,
    CallDenied,
    CallProgressUpdate,
    CallTimedOut,
    Outcome,
    ProposedCall,
    ReportProgress,
    ServerToolDefinition,
    Stance,
    Tool,
    ToolCallFailed,
    ToolCallInput,
    ToolOutput,
    TransientToolFailure,
    ignore_progress,
)

# A tool only describes the call in this time; the limit of the call itself begins later.
_PREPARATION_SECONDS = 5.0
# Characters of a progress message or of an exception's text, both of which a tool chooses.
_MAX_MESSAGE = 2000

T = TypeVar("T")


class FinishedCallReport(Struct, frozen=True):
    """How a call ended; `seconds` is the tool's own time, or the time until the call was refused."""

    spec: ServerToolDefinition
    invocation: ToolCallInput
    run: str
    seconds: float
    outcome: Outcome


class FinishedCallObserver(Protocol):
    """Receives every call that has ended."""

    def __call__(self, ended: FinishedCallReport) -> None:
        """Record the call."""


class CallApprovalOptions(Struct, frozen=True):
    """How a call gets approval: what the request demands and how long the call may wait for a person.

    `approvals` decide instead of the runner's own; durable runs bring theirs.
    """

    run: str
    stance: Stance | None = None
    hold_seconds: float = 0.0
    tainted: bool = False
    approvals: CallApprovals | None = None


class ApprovalPendingOutcome(Struct, frozen=True):
    """The call was not run: it waits for this approval."""

    approval: str


class _CallTimer:
    """Measures one call and remembers whether its effects may have begun."""

    def __init__(self, starting: Callable[[], Awaitable[None]] | None) -> None:
        self.started_at = time.monotonic()
        self.has_begun = False
        self._starting = starting

    async def start(self) -> None:
        """Let the start be recorded; from here on the call may have effects."""
        if self._starting is not None:
            await self._starting()
        self.has_begun = True


class ToolRunner:
    """Runs tools for all callers."""

    def __init__(
        self,
        approvals: CallApprovals,
        limits: ToolCallLimits = ToolCallLimits(),  # noqa: B008  # an immutable value
        redact: Callable[[str], str] = str,
        on_end: FinishedCallObserver | None = None,
        permits: Callable[[str, ServerToolDefinition], bool] = lambda caller, spec: True,
    ) -> None:
        """`permits` returns whether a caller, by name, may still call a tool: a call can wait long for its approval."""
        self._approvals = approvals
        self._check = ArgumentValidator()
        self._cache = ResultCache()
        self._limits = limits
        self._permits = permits
        self._redact = redact
        self._on_end = on_end

    def configure(self, limits: ToolCallLimits) -> None:
        """Use these limits for calls that start from now on."""
        self._limits = limits

    async def run(
        self,
        tool: Tool,
        invocation: ToolCallInput,
        consent: CallApprovalOptions,
        starting: Callable[[], Awaitable[None]] | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> ToolOutput | ApprovalPendingOutcome:
        """Run the call; a failure is an output, too. A call that must wait for a person gives its approval instead.

        Only `invocation.text` counts: the arguments are parsed and checked here. `starting` is awaited right before the
        tool's effects may begin, `on_wait` receives the seconds that a person took.
        """
        timer = _CallTimer(starting)
        try:
            output = await self._run(tool, invocation, consent, timer, on_wait)
        except ToolCallFailed as failure:
            outcome = failure.outcome
            called = outcome not in ("denied", "refused")
            output = ToolOutput((Text(str(failure)),), is_error=True, called=called)
        except asyncio.CancelledError:
            # A tool that was stopped halfway may or may not have had its effect.
            is_harmless = tool.spec.annotations.repeatable or not timer.has_begun
            self._report_end(tool, invocation, consent, timer, "cancelled" if is_harmless else "outcome_unknown")
            raise
        else:
            if isinstance(output, ApprovalPendingOutcome):
                return output
            outcome = "error" if output.is_error else "ok"
        self._report_end(tool, invocation, consent, timer, outcome)
        return await limit_output(output, self._limits, self._redact)

    async def _run(
        self,
        tool: Tool,
        invocation: ToolCallInput,
        consent: CallApprovalOptions,
        timer: _CallTimer,
        on_wait: Callable[[float], None] | None,
    ) -> ToolOutput | ApprovalPendingOutcome:
        name, report = tool.spec.name, invocation.report

        def report_redacted(progress: CallProgressUpdate) -> None:
            if progress.message is not None:
                progress = replace(progress, message=self._redact(progress.message[:_MAX_MESSAGE]))
            report(progress)

        # The arguments are checked before anything else, so that no person is asked about a call that cannot run.
        arguments = await self._check.read(tool.spec, invocation.text)
        invocation = replace(invocation, arguments=arguments, report=report_redacted)
        verdict = await self._verdict(tool, invocation, consent, on_wait)
        if verdict.stance == "pending":
            return ApprovalPendingOutcome(verdict.approval or "")
        if verdict.stance == "deny":
            reason = f": {verdict.reason.rstrip('.')}" if verdict.reason else ""
            raise CallDenied(
                f"The call of {name} was not allowed{reason}. It was not run; do not try it again unchanged."
            )
        if verdict.arguments is not None:  # a person has edited them, and may have made a mistake
            edited = await self._check.read(tool.spec, verdict.arguments)
            invocation = replace(invocation, arguments=edited, text=verdict.arguments)
        # The caller's rights may have changed while a person took their time, and the tool may be gone.
        if not self._permits(invocation.caller, tool.spec):
            raise CallDenied(f"{name} may not be called by this caller any more, or was deleted. It was not run.")
        timer.started_at = time.monotonic()  # the wait for a person is not the tool's time
        return await self._output(tool, invocation, timer.start)

    def _report_end(
        self, tool: Tool, invocation: ToolCallInput, consent: CallApprovalOptions, timer: _CallTimer, outcome: Outcome
    ) -> None:
        if self._on_end is not None:
            seconds = time.monotonic() - timer.started_at
            self._on_end(FinishedCallReport(tool.spec, invocation, consent.run, seconds, outcome))

    async def _verdict(
        self,
        tool: Tool,
        invocation: ToolCallInput,
        consent: CallApprovalOptions,
        on_wait: Callable[[float], None] | None,
    ) -> CallApprovalOutcome:
        late = f"{tool.spec.name} took too long to prepare the call; nothing was run."
        failed = f"{tool.spec.name} could not prepare the call"
        preparation = await _call_tool(tool.prepare, invocation, _PREPARATION_SECONDS, late, failed)
        query = ProposedCall(tool.spec, invocation, consent.run, preparation, consent.stance, consent.tainted)
        approvals = consent.approvals or self._approvals
        verdict = await approvals.decide(query)
        deadline = time.monotonic() + consent.hold_seconds
        # A changed policy puts an open approval out of scope; `decide` then gives another one to wait for.
        while verdict.stance == "pending" and verdict.approval is not None:
            started_at = time.monotonic()
            if started_at >= deadline:
                break
            answered = await approvals.wait(verdict.approval, deadline - started_at)
            if on_wait is not None:
                on_wait(time.monotonic() - started_at)
            if not answered:
                break
            verdict = await approvals.decide(query)
        return verdict

    async def _output(
        self, tool: Tool, invocation: ToolCallInput, starting: Callable[[], Awaitable[None]]
    ) -> ToolOutput:
        spec = tool.spec
        if spec.cache_seconds and (cached := self._cache.get(tool, invocation)):
            return cached
        # Only now: a call that is answered from the cache has no effect that a journal must record.
        await starting()
        seconds = spec.timeout or self._limits.seconds
        late = f"{spec.name} did not answer within {seconds:g} seconds and was stopped."
        # A failed call may have had its effect all the same, so that only repeatable ones are tried again.
        attempts = self._limits.attempts if spec.annotations.repeatable else 1
        for attempt in range(1, attempts + 1):
            try:
                output = await _call_tool(tool.invoke, invocation, seconds, late, f"{spec.name} failed")
                break
            except TransientToolFailure:
                if attempt == attempts:
                    raise
        if spec.cache_seconds and not output.is_error:
            self._cache.put(tool, invocation, output)
        return output


class _TimeoutClock(Struct, frozen=True):
    """The clock that a call runs against (`toolgate.tools.tool.CallClock`)."""

    timeout: asyncio.Timeout
    seconds: float

    def stop(self) -> None:
        self.timeout.reschedule(None)

    def start(self) -> None:
        self.timeout.reschedule(asyncio.get_running_loop().time() + self.seconds)


async def _call_tool(
    method: Callable[[ToolCallInput], Awaitable[T]], invocation: ToolCallInput, seconds: float, late: str, failed: str
) -> T:
    """Await a method of a tool and map what it raises to a `ToolCallFailed`. `late` and `failed` begin the messages."""
    try:
        async with asyncio.timeout(seconds) as timeout:
            return await method(replace(invocation, clock=_TimeoutClock(timeout, seconds)))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Our task was not cancelled, so the tool raised this by itself.
        raise ToolCallFailed(f"{failed}: it was cancelled from within.") from None
    except TimeoutError:
        raise CallTimedOut(late) from None
    except ToolCallFailed:  # its message is written for the model already
        raise
    except Exception as error:  # noqa: BLE001  # the tool boundary: whatever a tool raises is its own failure
        text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE] if str(error) else type(error).__name__
        raise ToolCallFailed(f"{failed}: {text}") from None


def new_invocation(
    call_id: str,
    text: str,
    caller: str,
    session: str = "",
    report: ReportProgress = ignore_progress,
    arguments: Mapping[str, Any] = {},
) -> ToolCallInput:
    """Make an invocation whose arguments are not checked yet; its `key` is the call's id, which a repetition shares."""
    return ToolCallInput(call_id, arguments, text, caller, session, call_id, report)
