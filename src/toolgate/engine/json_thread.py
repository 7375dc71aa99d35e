"""Decode and encode large JSON in a thread, so that the event loop serves other requests meanwhile.

There is one thread: two would compete with the loop for the interpreter and finish no sooner. A single call of a C
library does not release the interpreter even in a thread, so whatever is decoded here is bounded first; see
`toolgate.wire.jsontext.check_structure`. Callers take turns, so that a caller with many large requests delays the request
of another by one of its own.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from toolgate.scheduling import CALLER, FairQueue

# Bytes of JSON above which it is decoded in a thread. A usual smaller body takes 0.2 ms, the slowest that was found 15.
LARGE_BODY = 64 * 1024

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def run_in_thread(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call the function in the thread; it must use nothing that the event loop changes meanwhile."""
    return await asyncio.wrap_future(_thread().submit(CALLER.get(), partial(function, *args, **kwargs)))


class FairThread:
    """One thread that works for all callers in turn."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: FairQueue[tuple[Future[Any], Callable[[], Any]]] = FairQueue()
        self._lock = Lock()

    def submit(self, caller: str, work: Callable[[], _Result]) -> "Future[_Result]":
        """Run the work when it is the caller's turn, unless the future is cancelled before."""
        future: Future[_Result] = Future()
        with self._lock:
            self._waiting.put(caller, (future, work))
        # The executor itself serves in order of arrival, so it gets no work, only the order to take the next one.
        self._thread.submit(self._run_next)
        return future

    def _run_next(self) -> None:
        with self._lock:
            future, work = self._waiting.take()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(error)
            # The error refers to this frame. What the frame refers to would stay in a cycle until the garbage collector
            # runs: the future, which has the error, and the work with the body that was refused.
            del future, work
        else:
            future.set_result(result)


# Made at the first large body, not at import: most processes, such as those of the command line, never need it.
@cache
def _thread() -> FairThread:
    return FairThread("toolgate-json")
