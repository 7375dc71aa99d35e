"""A response that is being made while nobody may be listening: its frames are kept, and readers follow as they like.

It stands where an HTTP exchange would stand and takes what that would send. Frames that are not on the disk yet are in
memory, all others only there, so that a slow reader costs nothing. The frames of a response are numbered from 0 without
gaps: the place of a frame is its sequence number. Every write is made under the claim of the attempt that makes the
response: one that has lost it writes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import ToolgateError
from toolgate.server.exchange import Header
from toolgate.server.responses.keeper import Keeper, last_response
from toolgate.server.responses.telling import items_done
from toolgate.storage.runs import ENDS, End, LeaseLost, RunStore, StoredRun
from toolgate.storage.streams import StreamStore

_END = b"\n\n"
_NOT_EVENTS = (b":", b"data: [DONE]")


class Claim(Struct, frozen=True):
    """Under which a response is written."""

    runs: RunStore
    run: StoredRun

    async def check(self) -> None:
        """Raise LeaseLost if the run is another's by now."""
        await self.runs.check(self.run.id, self.run.token)

    async def turn(self, waits: bool) -> None:
        """Say whether the run waits for a person."""
        await self.runs.turn(self.run.id, self.run.token, "waiting" if waits else "running")


class Recording:
    """One response under way; `begun` once the model answers, `ended` when all of it is kept."""

    def __init__(
        self,
        streams: StreamStore,
        claim: Claim,
        keeper: Keeper,
        response: dict[str, Any],
        *,
        kept: bool,
        told: Sequence[bytes] = (),
        most_bytes: int,
        flush_seconds: float,
        interrupted: Callable[[], bool] = lambda: False,
        on_disk: Callable[[], None] = lambda: None,
    ) -> None:
        """`response` is what is told of it while it waits; its events are `kept` if the client asked for a stream.

        `told` are the frames that earlier attempts have told; once `interrupted` there is nothing more to tell.
        `on_disk` is called whenever other processes can read more.
        """
        self.response = response
        self.begun = bool(told)
        self.ended = self._lost = False
        self._interrupted = interrupted
        self._on_disk = on_disk
        self.changed = asyncio.Event()
        self._streams = streams
        self.claim = claim
        self._keeper = keeper
        self._kept = kept
        self._left = most_bytes - sum(map(len, told))
        self._flush_seconds = flush_seconds
        self._pending: list[bytes] = []
        self._first = len(told)  # the number of the first frame that is pending
        self._items = dict(items_done(told))
        self._dirty = asyncio.Event()
        self._flushing = asyncio.Lock()

    @property
    def client_left(self) -> bool:
        """Whether whoever makes the response should just stop: another attempt tells the rest, or nobody."""
        return self._lost or self._interrupted()

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
        done = dict(items_done(frames))
        self._items |= done
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

    async def mark(self) -> int:
        """Bring all that was told to the disk; how many frames that are."""
        await self.flush()
        return self._first if self._kept else 0

    async def close(self, status: str, error: dict[str, Any] | None = None, state: End | None = None) -> None:
        """End a response that does not tell its own end; its run ends in the same way, unless otherwise said."""
        if not self.ended:
            output = [self._items[index] for index in sorted(self._items)]
            told = {**self.response, "status": status, "error": error, "output": output}
            await self._finish(told, [], whole=False, state=state)

    async def _finish(
        self, response: dict[str, Any], frames: Sequence[bytes], *, whole: bool, state: End | None = None
    ) -> None:
        claim, status = self.claim, response["status"]
        over = claim.runs.ending(claim.run.id, claim.run.token, state or (status if status in ENDS else "failed"))
        async with self._flushing:
            told = [*self._pending, *frames] if self._kept else []
            ending = self._streams.ending(self.response["id"], self._first, told, whole=whole)
            with self.unless_lost():
                await self._keeper.keep(response, over, ending)
            self._drop(len(self._pending))
            self.ended = True
        self._notify()
        self._on_disk()

    async def keep_flushing(self, on_lost: Callable[[], None]) -> None:
        """Bring what is pending to the disk whenever it has been for a moment; runs until it is cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._flush_seconds)
            try:
                await self.flush()
            except ToolgateError:
                self._dirty.set()  # the storage is away: it is tried again
            except asyncio.CancelledError:
                if self._lost:
                    on_lost()
                raise

    async def flush(self) -> None:
        """Bring what is pending to the disk; when there is too much of it, none of it is kept from now on."""
        async with self._flushing:
            frames = list(self._pending)
            self._dirty.clear()
            if not frames or self.ended:
                return
            holding = self.claim.runs.holding(self.claim.run.id, self.claim.run.token)
            self._left -= sum(map(len, frames))
            with self.unless_lost():
                if self._left < 0:
                    self._kept = False
                    self._pending.clear()
                    self._notify()
                    await self._streams.drop(self.response["id"], holding)
                    return
                await self._streams.append(self.response["id"], self._first, frames, holding)
            self._drop(len(frames))
        self._on_disk()

    async def guarded(self, doing: Awaitable[None]) -> None:
        """Do something that only the holder of the claim may do."""
        with self.unless_lost():
            await doing

    @contextmanager
    def unless_lost(self) -> Iterator[None]:
        """Whoever finds that the claim is lost has nobody to tell it to: it just stops."""
        try:
            yield
        except LeaseLost as lost:
            self._lost = True
            raise asyncio.CancelledError from lost

    def _drop(self, count: int) -> None:
        del self._pending[:count]
        self._first += count

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
