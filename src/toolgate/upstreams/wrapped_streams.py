"""Wrap model streams: pass them on with further warnings, and call listeners when they end.

A stream stays relayable when it is wrapped. However many wrappers listen for the end of a stream, it passes through one
`WatchedStream`, once per batch and never per event.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast

from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.engine.ports import ClosableIterator, ModelStream, RelayableStream, RelayedStream, RelayStats

T = TypeVar("T")
StreamEnd: TypeAlias = Literal["read", "left"] | BaseException
Listener: TypeAlias = Callable[[StreamEnd], None]


class WrappedStream:
    """A stream that passes another one on unchanged; subclasses override what they change."""

    def __init__(self, answer: ModelStream) -> None:
        self.upstream = answer.upstream
        self.dialect = answer.dialect
        self.more_warnings: tuple[str, ...] = ()
        self.whole = answer.whole
        self._answer = cast(RelayableStream, answer)  # `relay_stream` is called only if `dialect` shows that it can

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the stream so far, and those added here."""
        # Asked of the stream each time, because its warnings may grow while it is read.
        return (*self._answer.warnings, *self.more_warnings) if self.more_warnings else self._answer.warnings

    def events(self) -> ClosableIterator[list[StepEvent]]:
        """Yield the events in batches."""
        return self._answer.events()

    def relay_stream(self, reply: Any) -> RelayedStream:
        """Return the stream of frames of its dialect."""
        return self._answer.relay_stream(reply)

    async def relay_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """Return the body in its dialect, and the response."""
        return await self._answer.relay_whole(reply, usage)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._answer.aclose()


class WatchedStream(WrappedStream):
    """A stream that calls its listeners once when it ends: read to its end, left by its reader, or failed."""

    def __init__(self, answer: ModelStream) -> None:
        super().__init__(answer)
        self._listeners: list[Listener] = []
        self._leaving = False

    def on_end(self, listener: Listener) -> None:
        """Call the listener when the stream ends; it must not raise."""
        self._listeners.append(listener)

    def events(self) -> ClosableIterator[list[StepEvent]]:
        """Yield the events in batches."""
        return _WatchedBatches(self._answer.events(), self._end)

    def relay_stream(self, reply: Any) -> RelayedStream:
        """Return the stream of frames of its dialect."""
        return _WatchedRelay(self._answer.relay_stream(reply), self._end)

    async def relay_whole(self, reply: Any, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """Return the body in its dialect, and the response; the stream has then been read to its end."""
        try:
            relayed = await self._answer.relay_whole(reply, usage)
        except BaseException as fault:
            self._end(fault)
            raise
        self._end("read")
        return relayed

    async def aclose(self) -> None:
        """Close the stream; a fault that this causes in a reader is not the upstream's."""
        self._leaving = True
        try:
            await self._answer.aclose()
        finally:
            self._end("left")

    def _end(self, ending: StreamEnd) -> None:
        # Emptied first, so that each listener is called once: a reader's end is followed by `aclose`.
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener("left" if self._leaving else ending)


class _WatchedBatches(Generic[T]):
    """Pass batches on and report the end."""

    # An iterator with its own `__anext__`, because it is cheaper than an async generator.
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


class _WatchedRelay:
    """A relayed stream whose end is reported."""

    __slots__ = ("_end", "_relayed")

    def __init__(self, relayed: RelayedStream, end: Listener) -> None:
        self._relayed = relayed
        self._end = end

    @property
    def relay(self) -> RelayStats:
        return self._relayed.relay

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _WatchedBatches(aiter(self._relayed), self._end)


def with_end_listener(answer: ModelStream, listener: Listener) -> ModelStream:
    """Return the stream with one more listener for its end."""
    watcher = answer if isinstance(answer, WatchedStream) else WatchedStream(answer)
    watcher.on_end(listener)
    return watcher


def with_warning(answer: ModelStream, warning: str) -> ModelStream:
    """Return the stream with one more warning."""
    wrapped = answer if isinstance(answer, WrappedStream) else WrappedStream(answer)
    wrapped.more_warnings = (*wrapped.more_warnings, warning)
    return wrapped
