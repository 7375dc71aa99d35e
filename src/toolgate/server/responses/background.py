"""Responses that run on while nobody waits for them: accepted, made, followed and cancelled, on whichever node.

A response is on the disk, with all that is needed to make it, before the client hears its id. What makes it is a run
(`toolgate.runs`): should the process die, another attempt goes on from what is kept, and readers hear the rest.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import Conflict, GatewayFault, InvalidRequest, Overloaded, RateLimited, ToolgateError
from toolgate.conversation.events import StepStart
from toolgate.dialects.openai_responses.answer import DONE, UNFINISHED, describe
from toolgate.engine.offload import off_loop
from toolgate.limits.purse import Held
from toolgate.runs.host import Attempt, Runs, Stop
from toolgate.scheduling import CALLER
from toolgate.server.endpoints import Question
from toolgate.server.fanout import Fanout, LocalFanout, pause
from toolgate.server.responses.accepted import Accepted, failure, read, write
from toolgate.server.responses.keeper import Keeper, Turn
from toolgate.server.responses.recording import Claim, Recording
from toolgate.server.responses.resuming import Resumption, resumption
from toolgate.server.responses.telling import closing, error_frame
from toolgate.server.workshop.lasting import Lasting
from toolgate.storage.responses import ResponseStore, StoredResponse, Write
from toolgate.storage.runs import TooMany
from toolgate.storage.streams import StreamStore
from toolgate.telemetry.traced import RequestRecord, Traced

_PING = b": ping\n"
_TOO_LONG = "This stream grew too long to be kept; GET the response without stream until it has ended."
_STOPPED = "The server stopped while this response was running."
_GIVEN_UP = {
    "parked": "The server stopped again and again while it made this response, so that it was given up.",
    "lost": "What this response had done so far is lost, so that it was not gone on with: nothing is done twice.",
}


class Terms(Struct, frozen=True):
    """How much may run in the background, and how it is kept."""

    per_caller: int = 16
    stream_bytes: int = 16 * 1024 * 1024
    stream_keep_seconds: float = 86_400.0
    flush_seconds: float = 0.25
    keepalive: float = 15.0
    asks_again: bool = True
    """Whether a person decides about calls that were cut off."""


class Making(Struct, frozen=True):
    """How responses are made under the configuration in force: from what was accepted to a question, and its answer."""

    take: Callable[[Turn], Awaitable[Callable[[], None]]]
    keeper: Callable[[Turn, Callable[[], None]], Keeper]
    prepare: Callable[[Accepted, Lasting], Awaitable[Question]]
    answer: Callable[[Question], Awaitable[None]]
    dismiss: Callable[[str], Awaitable[None]]


class Background:
    """The responses that are made in the background (`toolgate.runs.host.Performer`)."""

    def __init__(
        self,
        store: ResponseStore,
        streams: StreamStore,
        runs: Runs,
        traced: Traced,
        terms: Terms,
        fanout: Fanout | None = None,
    ) -> None:
        """`fanout` tells those who follow a response on another node that there is more of it."""
        self.streams = streams
        self._fanout = fanout or LocalFanout()
        self.runs = runs
        self._store = store
        self._traced = traced
        self.goes_on: Callable[[str], Held | None] = _holding_nothing
        self.charge: Callable[[RequestRecord, Held | None, bool], None] = _free
        self.making: Making | None = None
        self._terms = terms
        self._recordings: dict[str, Recording] = {}
        self._releases: dict[str, Callable[[], None]] = {}
        self._begun: dict[str, asyncio.Event] = {}  # what was accepted here and is not made yet
        self._closed = False

    def open(self) -> None:
        """Make responses from now on, first those that an earlier process left."""
        self.runs.open(self)

    async def accept(self, question: Question, accepted: Accepted, release: Callable[[], None]) -> StoredResponse:
        """Have the response made from now on, and return it as it is queued; `release` is called at its end."""
        if self._closed:
            raise Overloaded("The server is shutting down.", retry_after=1)
        making, most = self._made_by(), self._terms.per_caller
        queued = {**describe(question.request, question.reply), **UNFINISHED, "status": "queued"}
        stored = making.keeper(accepted.turn, _nothing).record(queued)
        accepted = replace(accepted, held=self.goes_on(accepted.request_id))
        opening = self.runs.store.opening(stored.id, stored.owner, await off_loop(write, accepted), most)
        self._releases[stored.id] = release
        try:
            await self._store.save(stored, self.streams.opening(stored.id, accepted.streamed), opening)
        except BaseException as error:
            del self._releases[stored.id]
            self.charge(RequestRecord(accepted.request_id), accepted.held, False)
            if isinstance(error, TooMany):
                raise _too_many(most) from None
            raise
        self._begun[stored.id] = asyncio.Event()
        self.runs.start(stored.id)
        return stored

    async def perform(self, attempt: Attempt) -> None:
        """Make a response, from its beginning or from where an earlier attempt ended."""
        id, accepted = attempt.run.id, await off_loop(read, attempt.run.asked)
        past = await self._resumption(attempt, accepted)
        if id not in self._releases:
            self._releases[id] = await self._made_by().take(accepted.turn)
        recording = self._recordings[id] = await self._recording(attempt, accepted, past)
        self._tell_begun(id)
        flushing = asyncio.get_running_loop().create_task(recording.keep_flushing(attempt.lose))
        record = RequestRecord(accepted.request_id, "POST", accepted.path, endpoint=accepted.path, stream=True)
        record.caller = accepted.turn.owner
        CALLER.set(record.caller)
        record.tally.add(past.past.usage)
        try:
            await self._made(attempt, accepted, past, recording, record)
        finally:
            flushing.cancel()
            del self._recordings[id]
            self._release(id)
            if recording.ended:
                record.usage = record.tally.usage or record.usage
                self._traced.finish(record)
                self.charge(record, accepted.held, False)

    async def stop(self, attempt: Attempt, how: Stop) -> None:
        """End a response that nobody makes any more."""
        accepted = read(attempt.run.asked)
        past = await self._resumption(attempt, accepted)
        recording = await self._recording(attempt, accepted, past)
        if how == "cancelled":
            await recording.close("cancelled")
            await self._made_by().dismiss(accepted.id)
        else:
            await recording.close("failed", failure(_GIVEN_UP[how]), "parked" if how == "parked" else "failed")
        self._tell_begun(attempt.run.id)
        self._release(attempt.run.id)
        model = accepted.turn.body.get("model")
        record = RequestRecord(
            accepted.request_id, caller=accepted.turn.owner, model=model if type(model) is str else ""
        )
        record.usage = past.past.usage
        # What was used by steps that cannot be read is not known: as much as was held back is charged.
        self.charge(record, accepted.held, len(attempt.steps.recorded) < attempt.run.steps)

    async def _resumption(self, attempt: Attempt, accepted: Accepted) -> Resumption:
        frames = await self.streams.all(accepted.id) if accepted.streamed else []
        return resumption(attempt.steps.recorded, frames)

    async def _recording(self, attempt: Attempt, accepted: Accepted, past: Resumption) -> Recording:
        stored = await self._store.load(accepted.turn.owner, accepted.id)
        stream = await self.streams.load(accepted.id)
        return Recording(
            self.streams,
            Claim(self.runs.store, attempt.run),
            self._made_by().keeper(accepted.turn, lambda: self._release(accepted.id)),
            stored.body if stored is not None else {"id": accepted.id, "created_at": accepted.created},
            kept=stream is not None and stream.kept,
            told=past.frames,
            most_bytes=self._terms.stream_bytes,
            flush_seconds=self._terms.flush_seconds,
            interrupted=lambda: attempt.interrupted,
            on_disk=lambda: self._fanout.announce(_topic(accepted.id)),
        )

    async def _made(
        self, attempt: Attempt, accepted: Accepted, past: Resumption, recording: Recording, record: RequestRecord
    ) -> None:
        """The response ends here, however it does, unless this attempt is not the last."""
        making, question = self._made_by(), None
        try:
            question = await making.prepare(accepted, _lasting(attempt, past, recording, self._terms.asks_again))
            asked = replace(question.asked, tally=record.tally)
            question = replace(question, exchange=recording, record=_noted(record, question.record), asked=asked)
            question, withdrawn = past.going_on(question)
            await recording.write(withdrawn)
            await making.answer(question)
        except ToolgateError as error:
            await _fail(recording, question, record, error)
        except asyncio.CancelledError:
            if not attempt.cancelled:
                raise
            await recording.close("cancelled")
            await making.dismiss(accepted.id)
        except Exception as error:  # noqa: BLE001  # nobody above would hear of it: the client does, the log has the story
            self._traced.crashed(record, error)
            failed = GatewayFault("An internal error occurred; the server's log has it.")
            await _fail(recording, question, record, failed)

    def _tell_begun(self, id: str) -> None:
        if (begun := self._begun.pop(id, None)) is not None:
            begun.set()

    def _release(self, id: str) -> None:
        self._releases.pop(id, _nothing)()

    def _made_by(self) -> Making:
        if self.making is None:
            raise GatewayFault("No endpoints make responses here.")
        return self.making

    async def current(self, stored: StoredResponse) -> StoredResponse:
        """The response as it is now, whoever makes it."""
        recording = self._recordings.get(stored.id)
        if recording is not None and not recording.ended:
            return replace(stored, body=recording.shown)
        if not is_running(stored):
            return stored
        run = await self.runs.store.load(stored.id)
        if run is None:  # made before runs were kept
            return replace(stored, body={**stored.body, "status": "failed", "error": failure(_STOPPED)})
        if run.is_over:
            return await self._store.load(stored.owner, stored.id) or stored
        status = "queued" if run.state == "queued" and run.token == 0 else "in_progress"
        return replace(stored, body={**stored.body, "status": status})

    async def cancel(self, stored: StoredResponse) -> StoredResponse:
        """Stop a response; one that has ended stays as it is."""
        if is_running(stored):
            await self.runs.cancel(stored.id)
        return await self._store.load(stored.owner, stored.id) or stored

    def forgetting(self, id: str) -> tuple[Write, ...]:
        """Forgets how a response was made."""
        return self.streams.forgetting(id), self.runs.store.forgetting(id)

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
        silent_since = asyncio.get_running_loop().time()
        elsewhere: asyncio.Event | None = None
        async with AsyncExitStack() as stack:
            while True:
                if elsewhere is not None:
                    elsewhere.clear()
                recording, begun = self._live(id), self._begun.get(id)
                changed = recording.changed if recording else begun
                over = recording is None and await self._is_over(id)
                frames = recording.since(number + 1) if recording else None
                lost = frames is None
                if frames is None:
                    frames = await self.streams.after(id, number)
                if frames:
                    yield frames
                    number += len(frames)
                    silent_since = asyncio.get_running_loop().time()
                    continue
                if over:
                    return
                if changed is not None and recording is not None and lost:
                    raise Conflict(_TOO_LONG, code="stream_not_kept")
                if changed is not None:
                    await pause(changed, self._terms.keepalive)
                elif elsewhere is None:  # it is looked once more when we listen: something may have come meanwhile
                    elsewhere = await stack.enter_async_context(self._fanout.heard(_topic(id)))
                else:
                    await pause(elsewhere, self._fanout.look_seconds)
                if asyncio.get_running_loop().time() - silent_since >= self._terms.keepalive:
                    silent_since = asyncio.get_running_loop().time()
                    yield []

    def _live(self, id: str) -> Recording | None:
        recording = self._recordings.get(id)
        return recording if recording is not None and not recording.ended else None

    async def _is_over(self, id: str) -> bool:
        """Whether no more can come; looked at before the last frames are read, for they are written together."""
        stream = await self.streams.load(id)
        return stream is None or stream.ended is not None

    async def _closing(self, stored: StoredResponse, number: int) -> bytes:
        """The terminator, and before it how the response ended, if its own frames do not tell."""
        over = await self._store.load(stored.owner, stored.id)
        if over is not None:
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
        """Wait so long for what is being made, then leave it to another node or the next start; nothing new is accepted."""
        self._closed = True
        await self.runs.aclose(seconds)


def is_running(stored: StoredResponse) -> bool:
    """Whether the response has not ended, for all that is stored of it."""
    return stored.body.get("status") in ("queued", "in_progress")


def _lasting(attempt: Attempt, past: Resumption, recording: Recording, asks: bool) -> Lasting:
    claim = recording.claim
    return Lasting(
        attempt.run.id,
        past.past,
        attempt.run.token > 1,
        _Guarded(attempt, recording),
        recording.mark,
        lambda: recording.guarded(claim.check()),
        lambda waits: recording.guarded(claim.turn(waits)),
        asks,
    )


class _Guarded:
    """The steps of an attempt, which stops when it may not write one any more."""

    def __init__(self, attempt: Attempt, recording: Recording) -> None:
        self.recorded = attempt.steps.recorded
        self._attempt = attempt
        self._recording = recording

    async def keep(self, name: str, value: str) -> None:
        """Write a step."""
        await self._recording.guarded(self._attempt.steps.keep(name, value))


async def _fail(recording: Recording, question: Question | None, record: RequestRecord, error: ToolgateError) -> None:
    """Tell the failure as a stream would have: with its beginning, if nothing has been told yet."""
    record.note_error(error)
    if recording.begun or question is None:
        await recording.close("failed", failure(error.message))
        return
    teller = question.encoder or question.half.encoder(question.request, question.reply)
    await recording.write(teller.encode(StepStart()) + teller.error(error))


def _too_many(most: int) -> RateLimited:
    return RateLimited(
        f"{most} responses run in the background already; wait for one to end, or cancel one.",
        code="too_many_background_responses",
        retry_after=5,
    )


def _topic(id: str) -> str:
    """The name under which it is told that more of a response can be read."""
    return f"response/{id}"


def _noted(record: RequestRecord, known: RequestRecord) -> RequestRecord:
    """The record of the making, which has its own time, with what is known of the request."""
    record.dialect, record.model = known.dialect, known.model
    return record


def _nothing() -> None:
    """Nobody has to be told."""


def _holding_nothing(request_id: str) -> None:
    """Nobody has a budget."""


def _free(record: RequestRecord, held: Held | None, unknown: bool) -> None:
    """Nobody pays."""
