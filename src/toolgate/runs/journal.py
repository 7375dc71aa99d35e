"""The journal of a run that survives its process: every answer of the model and every call's end is a step."""

from collections.abc import Awaitable, Callable, Sequence

from toolgate.conversation.events import Usage
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.engine.ports import Journal
from toolgate.runs.steps import Answered, Ended, Intended, Steps, write


class StepJournal:
    """Writes steps; what must be found by a later request is left to the usual journal `behind` it."""

    def __init__(
        self,
        steps: Steps,
        behind: Journal,
        mark: Callable[[], Awaitable[int]],
        check: Callable[[], Awaitable[None]],
    ) -> None:
        """`mark` brings all that was told to the disk and counts it; `check` raises LeaseLost if the run is another's."""
        self._steps = steps
        self._behind = behind
        self._mark = mark
        self._check = check

    async def answered(self, message: Message, usage: Usage | None) -> None:
        """Write the round; what was told of it is on the disk before, so that it is never told twice."""
        await self._keep_round(Answered(message, usage, await self._mark()))

    async def starting(self, call: ToolCall, repeatable: bool) -> None:
        """Write that a harmful call is about to run, unless the run is another's by now."""
        if repeatable:
            await self._check()
        else:
            await self._keep_intent(Intended(call.id))

    async def ended(self, result: ToolResult) -> None:
        """Write what a call gave."""
        await self._keep_result(Ended(result))

    async def progressed(self, messages: Sequence[Message]) -> None:
        """All of it is written already."""

    async def finished(
        self, messages: Sequence[Message], returned: Sequence[ToolCall], asked: Sequence[str] = ()
    ) -> None:
        """Let later requests find the turn."""
        await self._behind.finished(messages, returned, asked)

    async def _keep_round(self, step: Answered) -> None:
        await self._steps.keep("answer", write(step))

    async def _keep_intent(self, step: Intended) -> None:
        await self._steps.keep("intent", write(step))

    async def _keep_result(self, step: Ended) -> None:
        await self._steps.keep("result", write(step))
