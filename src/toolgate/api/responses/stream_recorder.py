"""Record the frames of a background response, so that readers can follow it at any time.

The recorder is the sink of the response (`ResponseSink`), as an HTTP exchange is of others. Frames that are not stored yet
are in memory, all others only in the database, so that a slow reader costs nothing. The frames of a response are numbered
from 0 without gaps: the index of a frame is its sequence number. Every write is made under the claim of the attempt that
makes the response: one that has lost it writes nothing. A warning has no number: it is a comment inside the next frame.

An outage of the database does not fail the response: frames and the end are stored when it is over, or another attempt makes
the response again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from toolgate.api.responses.cut_off_stream import items_done
from toolgate.api.responses.save import FinishedResponseSaver, last_response
from toolgate.change_notifications.notifier import wait_for
from toolgate.conversation.errors import GatewayOverloaded, ToolgateError
from toolgate.dialects.dialect import WARNING_COMMENT
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.http.exchange import Header
from toolgate.storage.runs import ENDS, End, RunLeaseLost, RunStore, StoredRun
from toolgate.storage.streams import StreamStore

_NO_ITEMS: Mapping[int, Any] = {}
_END = b"\n\n"
# Pings and the terminator have no sequence number: every reader gets its own.
_NOT_EVENTS = (b":", b"data: [DONE]")
_WARNING = WARNING_COMMENT.partition(b"%")[0]
_MOST_SAVES = 60  # of an end, by a database that answers and does not take it


class WriteClaim(Struct, frozen=True):
    """The claim of one attempt, under which it writes."""

    runs: RunStore
    run: StoredRun

    async def check(self) -> None:
        """Raise RunLeaseLost if another node has the run by now."""
        await self.runs.check(self.run.id, self.run.token)

    async def has_ended_run(self) -> bool:
        """Return whether the run has ended under this very claim, though the commit of that was not confirmed."""
        return await self.runs.has_ended(self.run)

    async def set_waiting(self, waiting: bool) -> None:
        """Store whether the run waits for an approval."""
        await self.runs.set_waiting(self.run.id, self.run.token, waiting)


def _ends(frames: Sequence[bytes], chunk: bytes) -> tuple[dict[int, Any], dict[str, Any] | None]:
    """Return the items that these frames of a chunk finish, by index, and the response if they end it."""
    return dict(items_done(frames)), last_response(chunk)


class StreamRecorder:
    """One response in progress; `started` once the model answers, `ended` when all of it is stored."""

    def __init__(
        self,
        streams: StreamStore,
        claim: WriteClaim,
        recorder: FinishedResponseSaver,
        response: dict[str, Any],
        *,
        stored: bool,
        sent: Sequence[bytes] = (),
        items: Mapping[int, Any] = _NO_ITEMS,
        most_bytes: int,
        flush_seconds: float,
        retry_seconds: float,
        interrupted: Callable[[], bool] = lambda: False,
        storage_failed: Callable[[], bool] = lambda: False,
        on_stored: Callable[[], None] = lambda: None,
    ) -> None:
        """`response` is what readers get of it until it starts; its events are `stored` if the client wants a stream.

        `sent` are the frames of earlier attempts, `items` the finished items in them.
        While the database is away, the end is tried again every `retry_seconds`.
        Once `interrupted` nothing more is recorded; a failure is not if it is one of the storage (`storage_failed`).
        `on_stored` is called whenever other processes can read more.
        """
        self.response = response
        self.started = bool(sent)
        self.ended = self._lost = False
        self._interrupted = interrupted
        self._storage_failed = storage_failed
        self._on_stored = on_stored
        self.changed = asyncio.Event()
        self._streams = streams
        self.claim = claim
        self._recorder = recorder
        self._stored = stored
        self._left = most_bytes - sum(map(len, sent))
        self._flush_seconds = flush_seconds
        self._retry_seconds = retry_seconds
        self._pending: list[bytes] = []
        self._warnings = b""  # comments that wait for the next frame
        self._first = len(sent)  # the number of the first frame that is pending
        self._items = dict(items)
        self._dirty = asyncio.Event()
        self._flushing = asyncio.Lock()

    @property
    def client_left(self) -> bool:
        """Whether the attempt should stop without an end: another attempt records the rest."""
        return self._lost or self._interrupted()

    @property
    def snapshot(self) -> dict[str, Any]:
        """The response as a client that asks now should get it."""
        return {**self.response, "status": "in_progress"} if self.started else self.response

    @property
    def items(self) -> list[Any]:
        """The complete output items so far."""
        return [self._items[index] for index in sorted(self._items)]

    def since(self, number: int) -> list[bytes] | None:
        """Return the frames from this number on, or None when they are stored and not in memory, or not kept at all."""
        return self._pending[number - self._first :] if self._stored and number >= self._first else None

    def cancel_when_client_leaves(self) -> None:
        """Do nothing: no client has to stay."""

    async def respond(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Fail: a background response is always made as a stream."""
        raise NotImplementedError

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Turn the warnings among the headers, which are not stored, into a comment of the first frame."""
        for name, value in headers:
            if name == b"x-toolgate-warning":
                self._warnings += WARNING_COMMENT % value

    def idle_for(self) -> float:
        """Return 0: no comments are needed to keep a connection alive."""
        return 0.0

    async def end(self) -> None:
        """Do nothing: the last frame has ended the response."""

    async def write(self, chunk: bytes) -> None:
        """Record frames; the last ones are stored, together with the response, before a reader can get them."""
        if chunk.startswith(_WARNING):  # without a number it cannot be stored: it waits for the next frame
            self._warnings += chunk
            return
        frames = [frame + _END for frame in chunk.split(_END) if frame and not frame.startswith(_NOT_EVENTS)]
        if not frames or self.ended:
            return
        # First, so that nothing below happens in two parts: a large chunk is decoded in a thread.
        done, response = _ends(frames, chunk) if len(chunk) <= LARGE_BODY else await run_in_thread(_ends, frames, chunk)
        if self.ended:  # closed meanwhile
            return
        # Behind the name of the event, by which frames are found: "event: …\n: toolgate-warning: …\ndata: …\n\n".
        if self._warnings:
            name, line_end, rest = frames[0].partition(b"\n")
            frames[0] = name + line_end + self._warnings + rest
            self._warnings = b""
        self.started = True
        self._items |= done
        if response is not None:
            if response["status"] == "failed" and self._storage_failed():
                self._lost = True
                raise asyncio.CancelledError  # another attempt makes the response again
            await self._finish(response, frames, whole=True)
            return
        if self._stored:
            self._pending += frames
            self._dirty.set()
            self._notify()
        # Not a moment later: a finished item is what a crash must not lose, and what a reader on another node waits for.
        if done:
            try:
                await self.flush()
            except GatewayOverloaded:
                self._dirty.set()  # the database is away: they are stored later

    async def mark(self) -> int:
        """Store all frames recorded so far, and return how many there are."""
        await self.flush()
        return self._first if self._stored else 0

    async def close(self, status: str, error: dict[str, Any] | None = None, state: End | None = None) -> None:
        """End a response that has no last frame of its own; its run ends in the same state, unless `state` is given."""
        if not self.ended:
            sent = {**self.response, "status": status, "error": error, "output": self.items}
            await self._finish(sent, [], whole=False, state=state)

    async def _finish(
        self, response: dict[str, Any], frames: Sequence[bytes], *, whole: bool, state: End | None = None
    ) -> None:
        claim, status = self.claim, response["status"]
        over = claim.runs.ending(claim.run.id, claim.run.token, state or (status if status in ENDS else "failed"))
        async with self._flushing:
            sent = [*self._pending, *frames] if self._stored else []
            ending = self._streams.ending(self.response["id"], self._first, sent, whole=whole)
            interrupted = asyncio.Event()
            saving = asyncio.ensure_future(
                self._save_end(lambda: self._recorder.save(response, over, ending), interrupted)
            )
            with self.cancel_if_lost():
                try:
                    await asyncio.shield(saving)
                except asyncio.CancelledError:
                    # Whether it was stored must be known: if so, only this attempt can still charge the run.
                    interrupted.set()
                    await asyncio.wait({saving})
                    if saving.exception() is None:
                        self._set_ended()
                    raise
            self._set_ended()

    async def _save_end(self, save: Callable[[], Awaitable[None]], interrupted: asyncio.Event) -> None:
        """Save the end; after an outage save it again, unless it was stored; RunLeaseLost if another node has the run."""
        saves = 0
        while True:
            try:
                await save()
                return
            except RunLeaseLost:
                if not await self._has_ended_run(interrupted):
                    raise
                return  # an earlier write of the end was committed after all
            except GatewayOverloaded:
                saves += 1
                await wait_for(interrupted, self._retry_seconds)
                # Asked first: the commit may have been made though it was not confirmed (`CommitUncertain`).
                if await self._has_ended_run(interrupted):
                    return
                if interrupted.is_set() or saves == _MOST_SAVES:
                    raise

    async def _has_ended_run(self, interrupted: asyncio.Event) -> bool:
        """Return whether the end is stored, as soon as the database answers; once `interrupted`, ask a last time."""
        while True:
            is_last = interrupted.is_set()  # before it asks: a question of the outage may fail after the interruption
            try:
                return await self.claim.has_ended_run()
            except GatewayOverloaded:
                if is_last:
                    raise
                await wait_for(interrupted, self._retry_seconds)

    def _set_ended(self) -> None:
        self._drop(len(self._pending))
        self.ended = True
        self._notify()
        self._on_stored()

    async def keep_flushing(self, on_lost: Callable[[], None]) -> None:
        """Store pending frames a moment after they came, until this is cancelled."""
        while True:
            await self._dirty.wait()
            await asyncio.sleep(self._flush_seconds)
            try:
                await self.flush()
            except ToolgateError:
                self._dirty.set()  # the database is away: they are stored later
            except asyncio.CancelledError:
                if self._lost:
                    on_lost()
                raise

    async def flush(self) -> None:
        """Store pending frames; of a stream that is too long none are stored from now on."""
        async with self._flushing:
            frames = list(self._pending)
            self._dirty.clear()
            if not frames or self.ended:
                return
            holding = self.claim.runs.checking(self.claim.run.id, self.claim.run.token)
            size = sum(map(len, frames))
            with self.cancel_if_lost():
                # Too long: all of its frames go, since a stream with a hole is of no use. The response itself is kept.
                if size > self._left:
                    await self._streams.drop(self.response["id"], holding)
                    self._stored = False
                    self._pending.clear()
                    self._notify()
                    return
                await self._streams.append(self.response["id"], self._first, frames, holding)
            self._left -= size  # not before: a write that failed is made again
            self._drop(len(frames))  # not `clear`: more may have come while these were written
        self._on_stored()

    async def while_claimed(self, doing: Awaitable[None]) -> None:
        """Await a write that only the holder of the claim may make."""
        with self.cancel_if_lost():
            await doing

    @contextmanager
    def cancel_if_lost(self) -> Iterator[None]:
        """Cancel the attempt when its claim turns out to be lost: another node has the run."""
        try:
            yield
        except RunLeaseLost as lost:
            self._lost = True
            raise asyncio.CancelledError from lost

    def _drop(self, count: int) -> None:
        del self._pending[:count]
        self._first += count

    def _notify(self) -> None:
        # A new event for the next change: one that is set and cleared would be missed by a reader that is about to wait.
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
