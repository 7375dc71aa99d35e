"""A response that is being made while nobody may be listening: its frames are kept, and readers follow as they like.

It stands where an HTTP exchange would stand and takes what that would send. Frames that are not on the disk yet are in
memory, all others only there, so that a slow reader costs nothing. The frames of a response are numbered from 0 without
gaps: the place of a frame is its sequence number.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from toolgate.server.exchange import Header
from toolgate.server.responses.keeper import Keeper, last_response
from toolgate.server.responses.telling import items_done
from toolgate.storage.streams import StreamStore

_END = b"\n\n"
_NOT_EVENTS = (b":", b"data: [DONE]")


class Recording:
    """One response under way; `begun` once the model answers, `ended` when all of it is kept."""

    def __init__(
        self,
        streams: StreamStore,
        keeper: Keeper,
        response: dict[str, Any],
        *,
        kept: bool,
        most_bytes: int,
        flush_seconds: float,
    ) -> None:
        """`response` is what is told of it while it waits; its events are `kept` if the client asked for a stream."""
        self.response = response
        self.begun = self.finishing = self.ended = False
        self.client_left = False
        self.changed = asyncio.Event()
        self._streams = streams
        self._keeper = keeper
        self._kept = kept
        self._left = most_bytes
        self._flush_seconds = flush_seconds
        self._pending: list[bytes] = []
        self._first = 0  # the number of the first frame that is pending
        self._items: list[Any] = []
        self._dirty = asyncio.Event()
        self._flushing = asyncio.Lock()

    @property
    def shown(self) -> dict[str, Any]:
        """The response as a client that asks now should see it."""
        return {**self.response, "status": "in_progress"} if self.begun else self.response

    def since(self, number: int) -> list[bytes] | None:
        """The frames from this number on that are known so far, or None when they are on the disk, if anywhere."""
        return self._pending[number - self._first :] if self._kept and number >= self._first else None

    def cancel_when_client_leaves(self) -> None:
        """Nobody has to stay."""

    async def respond(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """A whole answer never comes here: it is always made as a stream."""
        raise NotImplementedError

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """There is nobody to send a head to."""

    def idle_for(self) -> float:
        """Never long: nobody needs to be kept awake."""
        return 0.0

    async def end(self) -> None:
        """The last frame has said so."""

    async def write(self, chunk: bytes) -> None:
        """Take frames; those that tell the end are kept, with the response, before anybody hears of them."""
        frames = [frame + _END for frame in chunk.split(_END) if frame and not frame.startswith(_NOT_EVENTS)]
        if not frames or self.ended:
            return
        self.begun = True
        done = items_done(frames)
        self._items += done
        response = last_response(chunk)
        if response is not None:
            await self._finish(response, frames, whole=True)
            return
        if self._kept:
            self._pending += frames
            self._dirty.set()
            self._notify()
        if done:
            await self.flush()

    async def close(self, status: str, error: dict[str, Any] | None = None) -> None:
        """End a response that does not tell its own end."""
        if not self.ended:
            told = {**self.response, "status": status, "error": error, "output": self._items}
            await self._finish(told, [], whole=False)

    async def _finish(self, response: dict[str, Any], frames: Sequence[bytes], *, whole: bool) -> None:
        self.finishing = True
        try:
            async with self._flushing:
                told = [*self._pending, *frames] if self._kept else []
                ending = self._streams.ending(self.response["id"], self._first, told, whole=whole)
                await self._keeper.keep(response, ending)
                self._drop(len(self._pending))
                self.ended = True
        finally:
            self.finishing = False
        self._notify()

    async def keep_flushing(self) -> None:
        """Bring what is pending to the disk whenever it has been for a moment; runs until it is cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._flush_seconds)
            await self.flush()

    async def flush(self) -> None:
        """Bring what is pending to the disk; when there is too much of it, none of it is kept from now on."""
        async with self._flushing:
            frames = list(self._pending)
            self._dirty.clear()
            if not frames or self.ended:
                return
            self._left -= sum(map(len, frames))
            if self._left < 0:
                self._kept = False
                self._pending.clear()
                self._notify()
                await self._streams.drop(self.response["id"])
                return
            await self._streams.append(self.response["id"], self._first, frames)
            self._drop(len(frames))

    def _drop(self, count: int) -> None:
        del self._pending[:count]
        self._first += count

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
