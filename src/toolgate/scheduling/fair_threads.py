"""A thread pool that callers share: the work of one caller never takes all threads."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from toolgate.scheduling.caller import CALLER

THREADS = 8
SHARE = 4

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class FairThreads(ThreadPoolExecutor):
    """An executor in which each caller uses at most `share` threads; the server's own work has no such limit.

    Work beyond the share waits in a queue of its caller.
    """

    def __init__(self, threads: int = THREADS, share: int = SHARE) -> None:
        super().__init__(threads, thread_name_prefix="toolgate-work")
        self._share = share
        self._lock = Lock()
        self._busy: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = {}

    def submit(
        self, function: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> "Future[_Result]":
        """Call the function in a thread once its caller is below its share, unless the future is cancelled before."""
        caller, work = CALLER.get(), partial(function, *args, **kwargs)
        future: Future[_Result] = Future()
        with self._lock:
            if caller and self._busy[caller] >= self._share:
                self._waiting.setdefault(caller, deque()).append((future, work))
                return future
            # First, since it raises once the executor is shut down; the thread waits for the lock when it ends.
            super().submit(self._run, caller, future, work)
            self._busy[caller] += 1
        return future

    def _run(self, caller: str, future: "Future[Any]", work: Callable[[], Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
                future.set_exception(error)
                del future, work  # the error refers to this frame: they would stay in a cycle with it
            else:
                future.set_result(result)
        following = self._take_next(caller)
        if following is None:
            return
        try:
            super().submit(self._run, caller, *following)
        except RuntimeError:  # the executor is shutting down, but accepted work is finished
            self._run(caller, *following)

    def _take_next(self, caller: str) -> "tuple[Future[Any], Callable[[], Any]] | None":
        """Return the caller's next work; without any, the thread no longer counts as the caller's."""
        with self._lock:
            queue = self._waiting.get(caller)
            if queue:
                following = queue.popleft()
                if not queue:
                    del self._waiting[caller]
                return following
            self._busy[caller] -= 1
            if not self._busy[caller]:
                del self._busy[caller]
        return None
