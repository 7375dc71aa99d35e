"""Accept, read, follow and cancel background responses, on whichever node they are made.

A response is stored, with all that is needed to make it, before the client gets its id. A run (`toolgate.runs`) makes it
(`background_run.py`): should the process die, another attempt continues from what is stored, and readers get the rest.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

from msgspec.structs import replace

from toolgate.api.response_writer import PreparedRequest
from toolgate.api.responses.background_request import BackgroundRequest, encode_request, failure
from toolgate.api.responses.background_run import AcceptedBackgroundRequest, BackgroundResponseOptions, LiveResponses
from toolgate.api.responses.cut_off_stream import closing, error_frame, items_done
from toolgate.api.responses.save import to_stored
from toolgate.change_notifications.notifier import ChangeNotifier, wait_for
from toolgate.conversation.errors import (
    Conflict,
    GatewayOverloaded,
    InvalidRequest,
    NotFound,
    RateLimited,
    ToolgateError,
)
from toolgate.dialects.openai_responses.response_object import DONE, UNFINISHED, describe
from toolgate.engine.json_thread import run_in_thread
from toolgate.runs.scheduler import LeasedRunScheduler
from toolgate.storage.responses import ResponseStore, StoredResponse, Write
from toolgate.storage.runs import TooManyRuns
from toolgate.storage.streams import StreamStore

_PING = b": ping\n"  # no blank line: some clients take one for an empty event
_LAST_FRAMES = tuple([b"event: response.%b\n" % end for end in (b"completed", b"incomplete", b"failed", b"cancelled")])
_TOO_LONG = "This stream grew too long to be kept; GET the response without stream until it has ended."
_STOPPED = "The server stopped while this response was running."


class BackgroundResponses:
    """The background responses of all nodes, as the endpoints of this one see them."""

    def __init__(
        self,
        store: ResponseStore,
        streams: StreamStore,
        scheduler: LeasedRunScheduler,
        live: LiveResponses,
        options: BackgroundResponseOptions,
        notifier: ChangeNotifier,
    ) -> None:
        """`notifier` tells followers of a response on other nodes that there is more of it."""
        self.streams = streams
        self.scheduler = scheduler
        self._store = store
        self._live = live
        self._options = options
        self._notifier = notifier
        self._closed = False

    async def accept(
        self, prepared: PreparedRequest, request: BackgroundRequest, release: Callable[[], None], *also: Write
    ) -> StoredResponse:
        """Store a response as queued, together with its run and the other writes, and schedule the run.

        `release` unlocks the response's conversation when it has ended; on an error that is left to the caller.
        """
        if self._closed:
            raise GatewayOverloaded("The server is shutting down.", retry_after=1)
        queued = {**describe(prepared.request, prepared.metadata), **UNFINISHED, "status": "queued"}
        stored = to_stored(request.turn, queued)
        runs, most = self.scheduler.store, self._options.per_caller
        opening = runs.opening(stored.id, stored.owner, await run_in_thread(encode_request, request), most)
        self._live.accepted[stored.id] = AcceptedBackgroundRequest(request, prepared.decoded, release, asyncio.Event())
        try:
            await self._store.save(stored, self.streams.opening(stored.id, request.streamed), opening, *also)
        except BaseException as error:
            del self._live.accepted[stored.id]
            if isinstance(error, TooManyRuns):
                raise RateLimited(
                    f"{most} responses run in the background already; wait for one to end, or cancel one.",
                    code="too_many_background_responses",
                    retry_after=5,
                ) from None
            raise
        self.scheduler.schedule(stored.id, on_failure=lambda: self._live.drop(stored.id))
        return stored

    async def current(self, stored: StoredResponse) -> StoredResponse:
        """Return the response as it is now, whichever node makes it."""
        if (recorder := self._live.recorder(stored.id)) is not None:
            return replace(stored, body=recorder.snapshot)
        if not is_running(stored):
            return stored
        run = await self.scheduler.store.load(stored.id)
        if run is None:  # accepted by a version that stored no runs
            return replace(stored, body={**stored.body, "status": "failed", "error": failure(_STOPPED)})
        if run.is_over:  # it has ended since `stored` was read
            return await self._store.load(stored.owner, stored.id) or stored
        # A run that another node takes over is queued again, but with a token above 0: clients saw it in progress.
        status = "queued" if run.state == "queued" and run.token == 0 else "in_progress"
        return replace(stored, body={**stored.body, "status": status})

    async def output(self, stored: StoredResponse) -> list[Any]:
        """Return the items of the response so far, as far as they are complete and can be read on this node."""
        if (recorder := self._live.recorder(stored.id)) is not None:
            return recorder.items
        if is_running(stored):
            frames = await self.streams.all(stored.id)
            done = await run_in_thread(lambda: dict(items_done(frames)))
            return [done[index] for index in sorted(done)]
        output = stored.body.get("output")
        return output if type(output) is list else []

    async def cancel(self, stored: StoredResponse) -> StoredResponse:
        """Cancel a response and return it; one that has ended stays as it is."""
        if is_running(stored):
            await self.scheduler.cancel(stored.id)
        return await self._store.load(stored.owner, stored.id) or stored

    def forgetting(self, id: str) -> tuple[Write, ...]:
        """Return the writes that delete the stream and the run of a response."""
        return self.streams.forgetting(id), self.scheduler.store.deleting(id)

    async def follow(self, stored: StoredResponse, after: int) -> AsyncGenerator[bytes]:
        """Yield the frames after this number: the stored ones at once, later ones as they come."""
        number, ended = after, False
        try:
            async with aclosing(self._frames(stored.id, after)) as batches:
                async for frames in batches:
                    number += len(frames)
                    ended = bool(frames) and frames[-1].startswith(_LAST_FRAMES)
                    yield b"".join(frames) or _PING
            last = b""
            if not ended:
                over, stream = await self._store.load(stored.owner, stored.id), await self.streams.load(stored.id)
                if over is None or stream is None:  # the second, if it was deleted in between
                    raise NotFound("The response was deleted.", param="response_id", code="response_not_found")
                # A response that was cancelled or given up has no last frame of its own: it is made of what is stored.
                if not stream.whole:
                    last = closing(over.body, number + 1)
            yield last + DONE
        except ToolgateError as error:
            yield error_frame(error, number + 1) + DONE

    async def _frames(self, id: str, number: int) -> AsyncGenerator[list[bytes]]:
        """Yield frames as they come, until the response has ended; an empty list when none came for a while."""
        clock = asyncio.get_running_loop().time
        silent_since = clock()
        notified: asyncio.Event | None = None
        async with AsyncExitStack() as stack:
            while True:
                if notified is not None:
                    notified.clear()
                recorder, accepted = self._live.recorder(id), self._live.accepted.get(id)
                # Taken before frames are read: a change during the read sets it, and the wait below returns at once.
                changed = recorder.changed if recorder else accepted.started if accepted else None
                over = False
                if recorder is None:
                    # Whether it is over is read before the last frames are: both are written in one transaction.
                    stream = await self.streams.load(id)
                    over = stream is None or stream.ended is not None
                pending = recorder.since(number + 1) if recorder else None
                frames = await self.streams.after(id, number) if pending is None else pending
                if frames:
                    yield frames
                    number += len(frames)
                    silent_since = clock()
                    continue
                if over:
                    return
                if recorder is not None and pending is None:
                    raise Conflict(_TOO_LONG, code="stream_not_kept")
                if changed is not None:
                    await wait_for(changed, self._options.keepalive)
                elif notified is None:  # read once more when subscribed: something may have been stored meanwhile
                    notified = await stack.enter_async_context(self._notifier.subscribe(topic(id)))
                else:
                    await wait_for(notified, self._notifier.poll_seconds)
                if clock() - silent_since >= self._options.keepalive:
                    silent_since = clock()
                    yield []

    async def require_stream(self, stored: StoredResponse) -> None:
        """Raise unless the events of this response are stored."""
        stream = await self.streams.load(stored.id)
        if stream is None:
            raise InvalidRequest(
                "Only a response that was made with background and stream can be streamed again.", param="stream"
            )
        if not stream.kept:
            raise Conflict("The events of this response are no longer stored, or never were.", code="stream_not_kept")

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for running responses, then leave them to another node or the next start; accept nothing new."""
        self._closed = True
        await self.scheduler.aclose(seconds)


def is_running(stored: StoredResponse) -> bool:
    """Return whether the response has not ended, by what is stored of it."""
    return stored.body.get("status") in ("queued", "in_progress")


def topic(id: str) -> str:
    """Return the topic of notifications that more of a response is stored."""
    return f"response/{id}"
