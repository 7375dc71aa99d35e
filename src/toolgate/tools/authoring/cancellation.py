"""Cancellation as in the editor's API: a source cancels, and tools watch its token.

Safe between threads, since a worker receives a cancellation on another thread than the tool's. Knows nothing of tools.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeAlias

Listener: TypeAlias = Callable[[], object]


class Disposable:
    """Undoes something, once; it is also a context manager that does so at its end."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo: Callable[[], object] | None = undo

    def dispose(self) -> None:
        """Undo it, unless that was done already."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> "Disposable":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dispose()


class CancellationToken:
    """Lets a tool find out that its call was cancelled."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._listeners: dict[object, Listener] = {}
        self._lock = threading.Lock()

    @property
    def is_cancellation_requested(self) -> bool:
        """Whether the call was cancelled."""
        return self._requested.is_set()

    def on_cancellation_requested(self, listener: Listener) -> Disposable:
        """Call the listener once when the call is cancelled, or now if it was; it may be called on another thread."""
        # The lock makes sure that a listener is called once: either here or by `_request`. It is not held meanwhile,
        # because a listener may use the token itself.
        with self._lock:
            late = self._requested.is_set()
            key = object()
            if not late:
                self._listeners[key] = listener
        if late:
            listener()
        return Disposable(lambda: self._listeners.pop(key, None))

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep that long or until the cancellation, in a function that is not async; returns whether it was cancelled."""
        return self._requested.wait(seconds)

    def _request(self) -> None:
        with self._lock:
            self._requested.set()
            listeners, self._listeners = list(self._listeners.values()), {}
        for listener in listeners:
            with suppress(Exception):  # the tool's own code: one bad listener must not affect the others
                listener()


class CancellationTokenSource:
    """Makes a token and cancels it."""

    def __init__(self) -> None:
        self.token = CancellationToken()

    def cancel(self) -> None:
        """Cancel the token; a second time does nothing."""
        if not self.token.is_cancellation_requested:
            self.token._request()
