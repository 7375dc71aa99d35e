"""What a running tool tells of itself, as the notifications that its client asked for.

A client that gave a progress token hears of progress; one that asked for log messages instead gets the words as such;
any other hears nothing. Pure.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from toolgate.server.mcp.jsonrpc import Json, notification
from toolgate.server.mcp.revisions import LEVELS, Level
from toolgate.tools.tool import Progress

Notify: TypeAlias = Callable[[Json], None]


class Telling:
    """The progress of one call; nothing is told any more once it is over."""

    def __init__(self, token: Any, level: Level | None, tool: str, notify: Notify) -> None:
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None
        self._logs = level is not None and LEVELS.index(level) <= LEVELS.index("info")
        self._tool = tool
        self._notify: Notify | None = notify
        self._last: float | None = None

    def __call__(self, progress: Progress) -> None:
        """Tell the client, if it wants to hear."""
        if self._notify is None:
            return
        if self._token is not None:
            self._notify(notification("notifications/progress", self._progress(progress)))
        elif self._logs and progress.message is not None:
            said = {"level": "info", "logger": self._tool, "data": progress.message}
            self._notify(notification("notifications/message", said))

    def end(self) -> None:
        """The call is over."""
        self._notify = None

    def _progress(self, progress: Progress) -> Json:
        self._last = self._next(progress)
        told: Json = {"progressToken": self._token, "progress": self._last}
        if progress.total is not None:
            told["total"] = progress.total
        if progress.message is not None:
            told["message"] = progress.message
        return told

    def _next(self, progress: Progress) -> float:
        """The protocol wants a number that grows with every notification, whatever the tool says."""
        done, last = progress.done, self._last
        if done is not None and (last is None or done > last):
            return done
        if last is None:
            return 0
        return last + 1 if done is None and progress.total is None else math.nextafter(last, math.inf)
