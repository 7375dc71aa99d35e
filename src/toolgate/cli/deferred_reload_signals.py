"""Hold back reload signals that arrive before the server handles them, while it opens databases and tools."""

import os
import signal
from types import FrameType

_NUMBERS = (signal.SIGHUP, signal.SIGUSR2)


class DeferredReloadSignals:
    """Records the reload signals, which would end a process without handlers, until there are handlers."""

    def __init__(self) -> None:
        self._received: set[int] = set()

    def __enter__(self) -> "DeferredReloadSignals":
        for number in _NUMBERS:
            signal.signal(number, self._record)  # not SIG_IGN, which child processes would inherit
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def deliver(self) -> None:
        """Send the recorded signals again; one without a handler then has its default effect."""
        self._restore()
        for number in self._received:
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for number in _NUMBERS:
            # The server may have installed its own handlers already.
            if signal.getsignal(number) == self._record:
                signal.signal(number, signal.SIG_DFL)

    def _record(self, number: int, _: FrameType | None) -> None:
        self._received.add(number)
