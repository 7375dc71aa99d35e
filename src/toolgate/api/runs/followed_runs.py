"""Share the description of a run between all that follow it, and bound how many runs a key follows at the same time.

Describing a run reads its stored response, which may be large, so that followers with the same rights wait for one
description. It must not know how a run is described.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

from toolgate.conversation.errors import RateLimited
from toolgate.storage.run_records import RunRecord

# Runs that one key follows at the same time: each costs a read of its timeline at least once a second.
MOST_FOLLOWED = 64


class SharedRunEvent:
    """Shares the event with the last description of a run between all its followers with the same rights."""

    def __init__(self) -> None:
        self.followers = 0
        self._described: tuple[RunRecord, Sequence[str]] | None = None
        self._event = b""
        self._lock = asyncio.Lock()

    async def event(self, run: RunRecord, entries: Sequence[str], describe: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the event that describes the run with these entries; the same object until either has changed."""
        async with self._lock:  # the others wait for the first one's description, and then find it here
            if self._described != (run, entries):
                self._event = b"event: run\ndata: %b\n\n" % await describe()
                self._described = run, entries
            return self._event


class FollowedRunCache:
    """The runs that clients follow on this node, each with a description that its followers share."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, SharedRunEvent] = {}
        self._callers: Counter[str] = Counter()

    @contextmanager
    def follow(self, caller: str, run: Hashable) -> Iterator[SharedRunEvent]:
        """Return what is shared with the other followers of this run; RateLimited if the caller follows too many."""
        if self._callers[caller] >= MOST_FOLLOWED:
            raise RateLimited(f"This key follows {MOST_FOLLOWED} runs already; end one of the streams.", retry_after=5)
        followed = self._runs.setdefault(run, SharedRunEvent())
        followed.followers += 1
        self._callers[caller] += 1
        try:
            yield followed
        finally:
            followed.followers -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            if not followed.followers:
                del self._runs[run]
