"""Answers handed on by a wrapper: what lets them be relayed is kept, and their end is heard.

However many wrappers watch an answer, it passes through one watcher, once per batch and never per event.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.engine.ports import Answer, Heard, Relayable, Retold

T = TypeVar("T")
Ending: TypeAlias = Literal["read", "left"] | BaseException
Listener: TypeAlias = Callable[[Ending], None]


class Wrapped:
    """An answer handed on as it is; who wraps it changes only what it must."""

    def __init__(self, answer: Answer) -> None:
        self.upstream = answer.upstream
        self.dialect = answer.dialect
        self.more_warnings: tuple[str, ...] = ()
        self.whole = answer.whole
        self._answer = cast(Relayable, answer)  # nobody asks it to retell unless `dialect` says that it can

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the answer so far, and those of the wrapper."""
        return (*self._answer.warnings, *self.more_warnings) if self.more_warnings else self._answer.warnings

    def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches."""
        return self._answer.events()

    def retell(self, reply: Any) -> Retold:
        """The streamed answer as frames of its dialect."""
        return self._answer.retell(reply)

    def retell_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """The whole answer as a body of its dialect, and what it says."""
        return self._answer.retell_whole(reply, usage)

    async def aclose(self) -> None:
        """Stop listening."""
        await self._answer.aclose()


class Watched(Wrapped):
    """An answer that tells its listeners once how it ended: read to its end, left by its reader, or broken."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._listeners: list[Listener] = []
        self._leaving = False

    def on_end(self, listener: Listener) -> None:
        """Call the listener when the answer ends; it must not raise."""
        self._listeners.append(listener)

    def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches."""
        return _Reading(self._answer.events(), self._end)

    def retell(self, reply: Any) -> Retold:
        """The streamed answer as frames of its dialect."""
        return _Retelling(self._answer.retell(reply), self._end)

    def retell_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """The whole answer as a body of its dialect, and what it says; it is read by being told."""
        try:
            told = self._answer.retell_whole(reply, usage)
        except BaseException as fault:
            self._end(fault)
            raise
        self._end("read")
        return told

    async def aclose(self) -> None:
        """Stop listening; a fault that this causes in a reader is no fault of the upstream."""
        self._leaving = True
        try:
            await self._answer.aclose()
        finally:
            self._end("left")

    def _end(self, ending: Ending) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener("left" if self._leaving else ending)


class _Reading(Generic[T]):
    """Passes batches on until there are no more, or it is closed; cheaper than a generator, and never left half-run."""

    __slots__ = ("_end", "_next", "_source")

    def __init__(self, source: AsyncIterator[T], end: Listener) -> None:
        self._source = source
        self._next = source.__anext__
        self._end = end

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await self._next()
        except StopAsyncIteration:
            self._end("read")
            raise
        except BaseException as fault:
            self._end(fault)
            raise

    async def aclose(self) -> None:
        try:
            close = getattr(self._source, "aclose", None)  # an iterator need not have one; a generator must use it
            if close is not None:
                await close()
        finally:
            self._end("left")


class _Retelling:
    """A retold answer whose end is heard."""

    __slots__ = ("_end", "_told")

    def __init__(self, told: Retold, end: Listener) -> None:
        self._told = told
        self._end = end

    @property
    def relay(self) -> Heard:
        return self._told.relay

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Reading(aiter(self._told), self._end)


def watched(answer: Answer, listener: Listener) -> Answer:
    """The answer, with a listener for its end."""
    watcher = answer if isinstance(answer, Watched) else Watched(answer)
    watcher.on_end(listener)
    return watcher


def noted(answer: Answer, warning: str) -> Answer:
    """The answer, with one more warning."""
    wrapped = answer if isinstance(answer, Wrapped) else Wrapped(answer)
    wrapped.more_warnings = (*wrapped.more_warnings, warning)
    return wrapped
