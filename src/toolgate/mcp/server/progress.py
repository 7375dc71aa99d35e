"""Encode the progress of a running tool as the notifications that its client asked for.

A client that gave a progress token gets progress notifications; one that only asked for log messages gets the texts as
log messages; any other gets nothing. Pure.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from toolgate.mcp.protocol.jsonrpc import Json, RpcNotification
from toolgate.mcp.protocol.revisions import LEVELS, Level
from toolgate.tools.tool import CallProgressUpdate

Notify: TypeAlias = Callable[[RpcNotification], None]


class ProgressNotifier:
    """Notifies one client of the progress of one call, until the call ends."""

    def __init__(self, token: Any, level: Level | None, tool: str, notify: Notify) -> None:
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None
        self._logs = level is not None and LEVELS.index(level) <= LEVELS.index("info")
        self._tool = tool
        self._notify: Notify | None = notify
        self._last: float | None = None

    def __call__(self, progress: CallProgressUpdate) -> None:
        """Send a notification, if the client asked for one."""
        if self._notify is None:
            return
        if self._token is not None:
            # The protocol demands that the number grows, whatever the tool reports.
            done, last = progress.done, self._last
            if last is None:
                self._last = 0 if done is None else done
            elif done is not None and done > last:
                self._last = done
            elif done is None and progress.total is None:
                self._last = last + 1
            else:  # by the least possible: a whole step could exceed the total
                self._last = math.nextafter(last, math.inf)
            params: Json = {"progressToken": self._token, "progress": self._last}
            if progress.total is not None:
                params["total"] = progress.total
            if progress.message is not None:
                params["message"] = progress.message
            self._notify(RpcNotification("notifications/progress", params))
        elif self._logs and progress.message is not None:
            params = {"level": "info", "logger": self._tool, "data": progress.message}
            self._notify(RpcNotification("notifications/message", params))

    def end(self) -> None:
        """Send nothing more: the call has ended."""
        self._notify = None
