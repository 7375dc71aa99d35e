"""Run an author's tool in this process: async code on this loop, other code in a thread of its own.

Whatever it returns or raises becomes a ToolOutput or a ToolCallFailed. Knows nothing of worker processes.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from toolgate.tools.authoring.cancellation import CancellationTokenSource
from toolgate.tools.authoring.definition import FunctionWithAsyncFlag, PythonToolDefinition
from toolgate.tools.authoring.jsonable import whole_characters
from toolgate.tools.authoring.language_model_types import (
    ConfirmationMessages,
    PreparedToolInvocation,
    ProgressReporter,
    ToolInvocationToken,
)
from toolgate.tools.authoring.results import error_text, output_of
from toolgate.tools.authoring.signature import InjectableCallValues
from toolgate.tools.tool import CallPreview, ServerToolDefinition, ToolCallFailed, ToolCallInput, ToolOutput

T = TypeVar("T")


class InProcessTool:
    """A tool that runs in this process. A call that ignores its cancellation is abandoned, not waited for."""

    def __init__(self, definition: PythonToolDefinition, scope: Callable[[], object] = lambda: None) -> None:
        """`scope` is called in the context of every call, before it."""
        self.definition = definition
        self._scope = scope
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def spec(self) -> ServerToolDefinition:
        """The definition."""
        return self.definition.spec

    async def prepare(self, invocation: ToolCallInput) -> CallPreview:
        """Let the author's code describe the call, if it can."""
        if self.definition.prepare is None:
            return CallPreview()
        return preparation_of(await self._result(self.definition.prepare, invocation))

    async def invoke(self, invocation: ToolCallInput) -> ToolOutput:
        """Run the call; cancelling this cancels its token and its task."""
        return output_of(await self._result(self.definition.invoke, invocation))

    async def aclose(self) -> None:
        """Cancel running calls and give them a second to stop."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=1.0)

    async def _result(self, step: FunctionWithAsyncFlag, invocation: ToolCallInput) -> Any:
        source = CancellationTokenSource()
        call_on_loop = asyncio.get_running_loop().call_soon_threadsafe
        call = InjectableCallValues(
            source.token, ProgressReporter(invocation.report, call_on_loop), token_of(invocation)
        )
        # A context of its own: what `scope` and the tool set there must not reach the caller's task.
        context = contextvars.copy_context()
        context.run(self._scope)
        task = asyncio.create_task(_value_or_failure(step, invocation.arguments, call), context=context)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # `wait` returns at once when the call is cancelled, even if the tool catches its own cancellation and goes on.
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            source.cancel()
            task.cancel()
            raise
        if task.cancelled():
            raise ToolCallFailed("The tool cancelled itself.")
        if isinstance(task.result(), ToolCallFailed):
            raise task.result()
        return task.result()


def preparation_of(prepared: Any) -> CallPreview:
    """Convert what an author's `prepare_invocation` returned."""
    match prepared:
        case None:
            return CallPreview()
        case PreparedToolInvocation(invocation_message=message, confirmation_messages=ConfirmationMessages() as asked):
            return CallPreview(_text_or_none(message), _text(asked.title), _text(asked.message))
        case PreparedToolInvocation(invocation_message=message):
            return CallPreview(_text_or_none(message))
    raise ToolCallFailed(f"The tool's prepare_invocation returned a {type(prepared).__name__}.")


def _text(shown: Any) -> str:
    # Not even a Struct checks the types of what it is made with, and NaN for a title would be no title in JSON.
    if not isinstance(shown, str):
        raise ToolCallFailed(f"The tool's prepare_invocation returned a {type(shown).__name__} in place of a text.")
    return whole_characters(shown)


def _text_or_none(shown: Any) -> str | None:
    return None if shown is None else _text(shown)


def token_of(invocation: ToolCallInput) -> ToolInvocationToken:
    """Return what a tool may know of its call."""
    return ToolInvocationToken(invocation.call_id, invocation.caller, invocation.session, invocation.key)


async def _value_or_failure(
    step: FunctionWithAsyncFlag, arguments: Mapping[str, Any], call: InjectableCallValues
) -> Any:
    """Run a function and return its value, or its failure as a value: an exit raised in a task would end the loop."""
    try:
        if step.blocks:
            return await _in_thread(lambda: step.run(arguments, call))
        value = step.run(arguments, call)
        return await value if inspect.isawaitable(value) else value
    except asyncio.CancelledError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the tool boundary
        return ToolCallFailed(error_text(error))


async def _in_thread(function: Callable[[], T]) -> T:
    """Run a function in a daemon thread: one that hangs blocks neither a pool nor the end of the program."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(error: BaseException | None, value: Any = None) -> None:
        if not done.done():
            done.set_result(value) if error is None else done.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[ToolCallFailed | None, T | None] = (None, context.run(function))
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the tool boundary
            outcome = (ToolCallFailed(error_text(error)), None)
        with contextlib.suppress(RuntimeError):  # the loop ended first
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="toolgate-tool", daemon=True).start()
    return await done
