"""Responses that run on while nobody waits for them: started, followed, cancelled, and ended with the server.

A response is queued on the disk before the client hears its id. Should the process die, whoever asks for the response next
finds that nobody runs it any more, and it has failed; what it told until then can still be read.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Conflict, GatewayFault, InvalidRequest, Overloaded, RateLimited, ToolgateError
from toolgate.conversation.events import StepStart
from toolgate.dialects.openai_responses.answer import DONE, UNFINISHED, describe
from toolgate.server.endpoints import Question
from toolgate.server.responses.keeper import Keeper
from toolgate.server.responses.recording import Recording
from toolgate.server.responses.telling import closing, error_frame, items_done
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.streams import StoredStream, StreamStore
from toolgate.telemetry.traced import RequestRecord, Traced

_PING = b": ping\n"
_TOO_LONG = "This stream grew too long to be kept; GET the response without stream until it has ended."
_STOPPED = "The server stopped while this response was running."


class Terms(Struct, frozen=True):
    """How much may run in the background, and how it is kept."""

    per_caller: int = 16
    stream_bytes: int = 16 * 1024 * 1024
    flush_seconds: float = 0.25
    beat_seconds: float = 5.0
    keepalive: float = 15.0
    look_seconds: float = 0.25
    """Between two looks at a response that another process runs."""


class _Run(Struct, eq=False):
    """A response under way."""

    owner: str
    recording: Recording
    task: asyncio.Task[None] | None = None
    cancelled: bool = False


class Background:
    """The responses that this process runs, and those that others ran."""

    def __init__(self, store: ResponseStore, streams: StreamStore, traced: Traced, terms: Terms) -> None:
        self.streams = streams
        self._store = store
        self._traced = traced
        self.charge: Callable[[RequestRecord], None] = _free
        self._terms = terms
        self._runs: dict[str, _Run] = {}
        self._beating: asyncio.Task[None] | None = None
        self._closed = False

    async def start(
        self,
        answer: Callable[[Question], Awaitable[None]],
        question: Question,
        keeper: Keeper,
        owner: str,
        *,
        kept: bool,
        on_end: Callable[[], None] = lambda: None,
    ) -> StoredResponse:
        """Have the question answered from now on, and return the queued response; `on_end` is called at its end."""
        self._admit(owner)
        queued = {**describe(question.request, question.reply), **UNFINISHED, "status": "queued"}
        terms = self._terms
        recording = Recording(
            self.streams,
            keeper,
            queued,
            kept=kept,
            most_bytes=terms.stream_bytes,
            flush_seconds=terms.flush_seconds,
        )
        run = self._runs[queued["id"]] = _Run(owner, recording)
        stored = keeper.record(queued)
        try:
            await self._store.save(stored, self.streams.opening(stored.id, kept))
        except BaseException:
            del self._runs[stored.id]
            raise
        question = replace(question, exchange=recording, record=_own_record(question.record))
        run.task = asyncio.get_running_loop().create_task(self._run(run, question, answer, on_end))
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        return stored

    def _admit(self, owner: str) -> None:
        if self._closed:
            raise Overloaded("The server is shutting down.", retry_after=1)
        most = self._terms.per_caller
        if sum(run.owner == owner and not run.recording.ended for run in self._runs.values()) >= most:
            raise RateLimited(
                f"{most} responses run in the background already; wait for one to end, or cancel one.",
                code="too_many_background_responses",
                retry_after=5,
            )

    async def _run(
        self,
        run: _Run,
        question: Question,
        answer: Callable[[Question], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        flushing = asyncio.get_running_loop().create_task(run.recording.keep_flushing())
        try:
            await self._answered(run, question, answer)
        except ToolgateError as error:  # the storage: nothing can be kept, and whoever asks next will find it abandoned
            question.record.note_error(error)
        finally:
            flushing.cancel()
            del self._runs[run.recording.response["id"]]
            on_end()
            self._traced.finish(question.record)
            self.charge(question.record)

    async def _answered(self, run: _Run, question: Question, answer: Callable[[Question], Awaitable[None]]) -> None:
        try:
            await answer(question)
        except ToolgateError as error:
            await _fail(run.recording, question, error)
        except asyncio.CancelledError:
            if run.cancelled:
                await run.recording.close("cancelled")
            else:
                await _fail(run.recording, question, Overloaded("The server is shutting down.", retry_after=1))
        except Exception as error:  # noqa: BLE001  # nobody above would hear of it: the client does, the log has the story
            self._traced.crashed(question.record, error)
            await _fail(run.recording, question, GatewayFault("An internal error occurred; the server's log has it."))

    async def current(self, stored: StoredResponse) -> StoredResponse:
        """The response as it is now: one that nobody runs any more has failed."""
        recording = self._live(stored.id)
        if recording is not None:
            return replace(stored, body=recording.shown)
        if not is_running(stored):
            return stored
        stream = await self.streams.load(stored.id)
        if stream is None or (stream.ended is None and not await self.streams.take_over(stream)):
            return stored
        return await self._ended(stored, stream)

    async def _ended(self, stored: StoredResponse, stream: StoredStream) -> StoredResponse:
        """It has ended since it was looked at, or now that nobody runs it."""
        if stream.ended is not None:
            return await self._store.load(stored.owner, stored.id) or stored
        told, number = [], -1
        while frames := await self.streams.after(stored.id, number):
            told += items_done(frames)
            number += len(frames)
        error = {"code": "server_error", "message": _STOPPED}
        over = replace(stored, body={**stored.body, "status": "failed", "error": error, "output": told})
        await self._store.save(over, self.streams.ending(stored.id, number + 1, [], whole=False))
        return over

    async def cancel(self, stored: StoredResponse) -> StoredResponse:
        """Stop a response; one that has ended stays as it is."""
        run = self._runs.get(stored.id)
        if run is None or run.task is None:
            return stored
        if not run.cancelled and not run.recording.finishing:
            run.cancelled = run.recording.client_left = True
            run.task.cancel()
        await asyncio.wait({run.task})
        return await self._store.load(stored.owner, stored.id) or stored

    async def follow(self, stored: StoredResponse, after: int) -> AsyncGenerator[bytes, None]:
        """The frames behind this number, those of the past at once and those to come when they come."""
        number = after
        try:
            async with aclosing(self._frames(stored.id, after)) as batches:
                async for frames in batches:
                    number += len(frames)
                    yield b"".join(frames) or _PING
            yield await self._closing(stored, number)
        except ToolgateError as error:
            yield error_frame(error, number + 1) + DONE

    async def _frames(self, id: str, number: int) -> AsyncGenerator[list[bytes], None]:
        """Frames as they come, until the response has ended; none when nothing has come for a while."""
        while True:
            recording = self._live(id)
            changed = recording.changed if recording else None
            frames = recording.since(number + 1) if recording else None
            lost = frames is None
            if frames is None:
                frames = await self.streams.after(id, number)
            if frames:
                yield frames
                number += len(frames)
            elif changed is None:
                if not await self._wait_elsewhere(id):
                    return
            elif lost:
                raise Conflict(_TOO_LONG, code="stream_not_kept")
            elif not await _set_within(changed, self._terms.keepalive):
                yield []

    def _live(self, id: str) -> Recording | None:
        run = self._runs.get(id)
        return run.recording if run is not None and not run.recording.ended else None

    async def _wait_elsewhere(self, id: str) -> bool:
        """Whether more may come: another process runs the response."""
        stream = await self.streams.load(id)
        if stream is None or stream.ended is not None or await self.streams.take_over(stream):
            return False
        await asyncio.sleep(self._terms.look_seconds)
        return True

    async def _closing(self, stored: StoredResponse, number: int) -> bytes:
        """The terminator, and before it how the response ended, if its own frames do not tell."""
        over = await self._store.load(stored.owner, stored.id)
        if over is not None:
            over = await self.current(over)
            stream = await self.streams.load(stored.id)
            if stream is not None and not stream.whole:
                return closing(over.body, number + 1) + DONE
        return DONE

    async def require_stream(self, stored: StoredResponse) -> None:
        """Refuse unless the events of this response are kept."""
        stream = await self.streams.load(stored.id)
        if stream is None:
            raise InvalidRequest(
                "Only a response that was made with background and stream can be streamed again.", param="stream"
            )
        if not stream.kept:
            raise Conflict("The events of this response are not kept, or not any more.", code="stream_not_kept")

    async def aclose(self, seconds: float = 0.0) -> None:
        """Wait so long for what runs, then end it as failed; nothing new is started."""
        self._closed = True
        tasks = {run.task for run in self._runs.values() if run.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for run in tuple(self._runs.values()):
            if run.task is not None and not run.cancelled and not run.recording.finishing:
                run.task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
            await self._tell_storage(self.streams.leave())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._terms.beat_seconds)
            if self._runs:
                await self._tell_storage(self.streams.beat())

    async def _tell_storage(self, saying: Awaitable[None]) -> None:
        """What is said is worth a line in the log if it fails, but no more."""
        try:
            await saying
        except Overloaded as error:
            self._traced.log.error("background", problem=error.message)


def is_running(stored: StoredResponse) -> bool:
    """Whether the response has not ended, for all that is stored of it."""
    return stored.body.get("status") in ("queued", "in_progress")


async def _fail(recording: Recording, question: Question, error: ToolgateError) -> None:
    """Tell the failure as a stream would have: with its beginning, if nothing has been told yet."""
    question.record.note_error(error)
    if recording.begun:
        failure: dict[str, Any] = {"code": "server_error", "message": error.message}
        await recording.close("failed", failure)
        return
    teller = question.half.encoder(question.request, question.reply)
    await recording.write(teller.encode(StepStart()) + teller.error(error))


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _own_record(record: RequestRecord) -> RequestRecord:
    """The request is over when its client has been told the id; what follows is on a record of its own."""
    return RequestRecord(
        record.request_id,
        record.method,
        record.path,
        endpoint=record.endpoint,
        dialect=record.dialect,
        caller=record.caller,
        model=record.model,
        stream=record.stream,
    )


def _free(record: RequestRecord) -> None:
    """Nobody pays."""
