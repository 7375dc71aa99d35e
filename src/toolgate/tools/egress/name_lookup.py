"""Look up the host names of tools' requests in threads of their own.

A model chooses the name and so its name server, and one that never answers blocks a thread for half a minute, even after
the call has ended. The event loop has few threads for lookups and shares them with the connections to upstreams. Here each
caller has a bounded share of threads that are used for nothing else.
"""

import asyncio
import socket
from contextlib import suppress
from threading import Thread
from weakref import WeakValueDictionary

from toolgate.scheduling import CALLER, FairSemaphore

THREADS = 64
# Threads that one caller may use at a time.
SHARE = 8


class NameLookup:
    """Looks up the addresses of hosts with the system's resolver."""

    def __init__(self, threads: int = THREADS, share: int = SHARE) -> None:
        self._threads = FairSemaphore(threads)
        self._share = share
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, as text; OSError if there are none."""
        caller, loop = CALLER.get(), asyncio.get_running_loop()
        # A weak value: it is there while a lookup of the caller holds it, and costs nothing afterwards.
        share = self._shares.get(caller)
        if share is None:
            share = self._shares[caller] = asyncio.Semaphore(self._share)
        await share.acquire()
        try:
            await self._threads.acquire(caller)
        except BaseException:
            share.release()
            raise
        found: asyncio.Future[list[str]] = loop.create_future()

        # The thread gives its place back, not the call: a call that is cancelled leaves its thread behind, which is
        # still blocked.
        def end(addresses: list[str], error: Exception | None) -> None:
            share.release()
            self._threads.release(caller)
            if found.done():  # the call was cancelled
                return
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(addresses)

        def look_up() -> None:
            addresses: list[str] = []
            failure: Exception | None = None
            try:
                answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [str(answer[4][0]) for answer in answers]
            except (OSError, UnicodeError) as error:
                failure = error if isinstance(error, OSError) else OSError(str(error))
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(end, addresses, failure)

        # A daemon: the process does not wait at its end for a name server that is silent.
        Thread(target=look_up, name="toolgate-names", daemon=True).start()
        return await found
