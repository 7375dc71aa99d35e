"""Abort a connection when one of its event-loop callbacks fails."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

_Callback = TypeVar("_Callback", bound=Callable[..., None])


class _Abortable(Protocol):
    def abort(self, error: Exception) -> None: ...


def aborts_on_error(callback: _Callback) -> _Callback:
    """Wrap a callback of the event loop so that a failure aborts the connection instead of leaving it open."""

    @wraps(callback)
    def call(self: _Abortable, *args: Any) -> None:
        try:
            callback(self, *args)
        except Exception as error:  # noqa: BLE001  # the HTTP edge: the event loop would only log it
            self.abort(error)

    return cast(_Callback, call)
