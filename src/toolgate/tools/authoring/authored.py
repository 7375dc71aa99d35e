"""An author's tool run in this process: async code on this loop, other code in a thread of its own.

Whatever it does becomes an Output or a ToolFailure. Knows nothing of worker processes.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from toolgate.tools.authoring.cancellation import CancellationTokenSource
from toolgate.tools.authoring.definition import Definition, Step
from toolgate.tools.authoring.parts import ConfirmationMessages, PreparedToolInvocation, Progress, ToolInvocationToken
from toolgate.tools.authoring.results import output_of, told
from toolgate.tools.authoring.signature import Call
from toolgate.tools.tool import Invocation, Output, Preparation, ToolFailure, ToolSpec

T = TypeVar("T")


class Authored:
    """A tool that runs in this process. A call that ignores its cancellation is abandoned, not waited for."""

    def __init__(self, definition: Definition, scope: Callable[[], object] = lambda: None) -> None:
        """`scope` is called in the context of every call, before it."""
        self.definition = definition
        self._scope = scope
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def spec(self) -> ToolSpec:
        """What it says of itself."""
        return self.definition.spec

    async def prepare(self, invocation: Invocation) -> Preparation:
        """What its author wants a person to know first."""
        if self.definition.prepare is None:
            return Preparation()
        return preparation_of(await self._result(self.definition.prepare, invocation))

    async def invoke(self, invocation: Invocation) -> Output:
        """Run it; cancelling this cancels its token and its task."""
        return output_of(await self._result(self.definition.invoke, invocation))

    async def aclose(self) -> None:
        """Cancel what still runs; a second is enough for code that listens."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=1.0)

    async def _result(self, step: Step, invocation: Invocation) -> Any:
        source = CancellationTokenSource()
        hand_over = asyncio.get_running_loop().call_soon_threadsafe
        call = Call(source.token, Progress(invocation.tell, hand_over), token_of(invocation))
        context = contextvars.copy_context()
        context.run(self._scope)
        task = asyncio.create_task(_guarded(_value(step, invocation.arguments, call)), context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            source.cancel()
            task.cancel()
            raise
        if task.cancelled():
            raise ToolFailure("The tool cancelled itself.")
        if isinstance(task.result(), ToolFailure):
            raise task.result()
        return task.result()


def preparation_of(prepared: Any) -> Preparation:
    """What an author's `prepare_invocation` returned, in our words."""
    match prepared:
        case None:
            return Preparation()
        case PreparedToolInvocation(invocation_message=message, confirmation_messages=ConfirmationMessages() as asked):
            return Preparation(message, asked.title, asked.message)
        case PreparedToolInvocation(invocation_message=message):
            return Preparation(message)
    raise ToolFailure(f"The tool's prepare_invocation returned a {type(prepared).__name__}.")


def token_of(invocation: Invocation) -> ToolInvocationToken:
    """What a tool may know of its call."""
    return ToolInvocationToken(invocation.call_id, invocation.caller, invocation.session, invocation.key)


async def _value(step: Step, arguments: Mapping[str, Any], call: Call) -> Any:
    if step.blocks:
        return await _in_thread(lambda: step.run(arguments, call))
    value = step.run(arguments, call)
    return await value if inspect.isawaitable(value) else value


async def _guarded(value: Awaitable[Any]) -> Any:
    """The value, or the failure as a value: an exit raised inside a task would end the whole loop."""
    try:
        return await value
    except asyncio.CancelledError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the tool boundary
        return ToolFailure(told(error))


async def _in_thread(function: Callable[[], T]) -> T:
    """Run it on a daemon thread: one that hangs keeps neither a pool nor the end of the program waiting."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(error: BaseException | None, value: Any = None) -> None:
        if not done.done():
            done.set_result(value) if error is None else done.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[ToolFailure | None, T | None] = (None, context.run(function))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the tool boundary
            outcome = (ToolFailure(told(error)), None)
        with contextlib.suppress(RuntimeError):  # the loop ended first
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="toolgate-tool", daemon=True).start()
    return await done
