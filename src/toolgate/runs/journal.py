"""Record a durable run as steps: every answer of the model, and the start and the end of every call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.engine.ports import RunJournal
from toolgate.runs.step_records import CallFinishedStep, CallStartedStep, DurableStepLog, ModelAnswerStep, encode_step

ANSWER_STEP = "answer"  # the name of the steps that have the usage of the run so far


class DurableRunJournal:
    """Writes steps; what a later request must find is left to the journal of `turns` (`RunJournal`)."""

    def __init__(
        self,
        steps: DurableStepLog,
        turns: RunJournal,
        mark: Callable[[], Awaitable[int]],
        check: Callable[[], Awaitable[None]],
    ) -> None:
        """`mark` stores and counts all frames that were sent; `check` raises RunLeaseLost if another node has the run."""
        self._steps = steps
        self._turns = turns
        self._mark = mark
        self._check = check

    async def answered(self, message: Message, usage: Usage | None, by_model: Mapping[str, Usage]) -> None:
        """Write the answer; its frames are stored before, so that another attempt does not send them again."""
        step = ModelAnswerStep(message, usage, await self._mark(), dict(by_model))
        await self._steps.keep(ANSWER_STEP, encode_step(step))

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        """Write that a call is about to run that may do harm, unless another node has the run."""
        if repeatable:  # after a crash it is simply run again, so that no step need be written
            await self._check()
        else:
            await self._steps.keep("intent", encode_step(CallStartedStep(call.id)))

    async def ended(self, result: ToolResult) -> None:
        await self._steps.keep("result", encode_step(CallFinishedStep(result)))

    async def progressed(self, messages: Sequence[Message]) -> None:
        """Do nothing: all of it is written already."""

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], approvals: Sequence[str] = ()
    ) -> None:
        await self._turns.finished(messages, returned, approvals)
