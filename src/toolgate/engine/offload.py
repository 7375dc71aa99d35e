"""Decoding and encoding of what is large, in a thread, so that the event loop serves others meanwhile.

One thread for all of it: two would take turns with the loop for the interpreter and finish no sooner.  A single call of a
C library keeps the interpreter to itself even in a thread, so that whatever is decoded here is bounded first; see
`toolgate.wire.jsontext.check_structure`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

LARGE = 64 * 1024
"""Bytes of JSON above which it is decoded in a thread: below, the worst that was found takes 15 ms, a usual body 0.2 ms."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def off_loop(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call the function in the thread; it must touch nothing that the loop changes meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(_thread(), lambda: function(*args, **kwargs))


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="toolgate-json")
