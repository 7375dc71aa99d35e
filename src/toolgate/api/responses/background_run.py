"""Make background responses: the work of a run, from its stored request to the stored end of its response.

An attempt continues from the steps and frames that earlier attempts stored, so that a response survives its process.
Knows runs and the chat handler. It must not know how runs are scheduled, nor who reads the response.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from toolgate.api.chat import ChatHandler
from toolgate.api.response_writer import PreparedRequest
from toolgate.api.responses.attempt_recovery import RecoveredAttempt, resumption
from toolgate.api.responses.background_request import (
    BackgroundChatRequestContext,
    BackgroundRequest,
    decode_request,
    failure,
    headers_by_name,
)
from toolgate.api.responses.conversation_locks import ProcessConversationLocks
from toolgate.api.responses.save import ContinuedRequest, FinishedResponseSaver
from toolgate.api.responses.stream_recorder import StreamRecorder, WriteClaim
from toolgate.auth.authenticator import ANONYMOUS, Caller
from toolgate.conversation.errors import GatewayOverloaded, InternalGatewayError, ToolgateError, Unauthenticated
from toolgate.conversation.events import StepStart, Usage
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.usage_tally import UsageTally
from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import with_rights
from toolgate.limits.local_budgets import BudgetReservation
from toolgate.runs.journal import ANSWER_STEP
from toolgate.runs.scheduler import EarlyEnd, RunAttempt
from toolgate.runs.timeline_recorder import RunTimeline, RunTimelines
from toolgate.scheduling import CALLER
from toolgate.storage.conversations import ConversationStore
from toolgate.storage.responses import ResponseStore
from toolgate.storage.runs import RunStore
from toolgate.storage.streams import StreamStore
from toolgate.telemetry.request_log import CLIENT_LEFT, RequestRecord, Telemetry
from toolgate.tools.execution.durable import DurableRunContext

_OUTAGE = "storage_unavailable"  # the code of errors that end with the outage
_INTERRUPTED = "run_interrupted"  # the code in the record of an attempt that did not end its response
_ABANDONED = {
    "parked": "The server stopped again and again while it made this response, so that it was given up.",
    "lost": "What this response had done so far is lost, so that it was not gone on with: nothing is done twice.",
    "unreadable": "The stored request of this response cannot be read, so that it was given up.",
}


class BackgroundResponseOptions(Struct, frozen=True):
    """How many background responses a caller may have, and how they are stored."""

    per_caller: int = 16
    stream_bytes: int = 16 * 1024 * 1024
    stream_keep_seconds: float = 86_400.0
    flush_seconds: float = 0.25
    retry_seconds: float = 1.0  # between attempts to store an end while the database is away
    keepalive: float = 15.0
    asks_again: bool = True  # a person decides about calls that were cut off


class BackgroundBudgets(Protocol):
    """Charges what a background response used after its request was answered."""

    def keep_reservation(self, request_id: str) -> BudgetReservation | None:
        """Return what the request has reserved of its key's budget, which from now on is settled by `charge` alone."""

    def stop_run_at_limits(self, record: RequestRecord) -> None:
        """Let the run of this record call tools only while its key's budget and its tokens per minute last."""

    def charge(self, record: RequestRecord, held: BudgetReservation | None = None, unknown: bool = False) -> None:
        """Charge what was used by the record; with `unknown` usage no less than was reserved."""


class UnlimitedBudgets:
    """Charges nothing (`BackgroundBudgets`)."""

    def keep_reservation(self, request_id: str) -> BudgetReservation | None:
        return None

    def stop_run_at_limits(self, record: RequestRecord) -> None:
        return None

    def charge(self, record: RequestRecord, held: BudgetReservation | None = None, unknown: bool = False) -> None:
        return None


class BackgroundServices(Struct, frozen=True):
    """What the configuration in force provides for background responses; `callers` finds a caller by name."""

    chat: ChatHandler
    callers: Callable[[str], Caller | None] = {ANONYMOUS.name: ANONYMOUS}.get
    budgets: BackgroundBudgets = UnlimitedBudgets()


class AcceptedBackgroundRequest(Struct, frozen=True):
    """A request that this process has accepted and whose run has not started yet.

    It spares the run a second decoding; `release` unlocks the response's conversation.
    """

    request: BackgroundRequest
    decoded: ModelRequest | None
    release: Callable[[], None]
    started: asyncio.Event


class LiveResponses:
    """The background responses that this process has accepted or makes now, by id."""

    def __init__(self) -> None:
        self.accepted: dict[str, AcceptedBackgroundRequest] = {}
        self.recorders: dict[str, StreamRecorder] = {}

    def recorder(self, id: str) -> StreamRecorder | None:
        """Return the recorder of a response that is being made here."""
        recorder = self.recorders.get(id)
        return recorder if recorder is not None and not recorder.ended else None

    def drop(self, id: str) -> None:
        """Forget an accepted response, whose run starts later or on another node, and unlock its conversation."""
        if (accepted := self.accepted.pop(id, None)) is not None:
            accepted.release()
            accepted.started.set()


class BackgroundRunHandler:
    """Makes background responses (`toolgate.runs.scheduler.ScheduledRunHandler`)."""

    def __init__(
        self,
        store: ResponseStore,
        streams: StreamStore,
        runs: RunStore,
        conversations: ConversationStore,
        active: ProcessConversationLocks,
        live: LiveResponses,
        services: Callable[[], BackgroundServices],
        telemetry: Telemetry,
        options: BackgroundResponseOptions,
        announce: Callable[[str], None],
        timelines: RunTimelines | None = None,
        dialect: Dialect = OPENAI_RESPONSES,
    ) -> None:
        """`services` returns those of the configuration in force; `announce` reports that more of a response is stored.

        `timelines` show runs to people.
        """
        self._store = store
        self._streams = streams
        self._runs = runs
        self._conversations = conversations
        self._active = active
        self._live = live
        self._services = services
        self._telemetry = telemetry
        self._options = options
        self._announce = announce
        self._timelines = timelines
        self._dialect = dialect

    async def perform(self, attempt: RunAttempt) -> None:
        """Make a response, from its beginning or from where an earlier attempt ended."""
        # In `accepted` if this process has accepted it and this is the first attempt: then nothing is decoded twice.
        id, accepted = attempt.run.id, self._live.accepted.get(attempt.run.id)
        request = accepted.request if accepted else await self._stored_request(attempt)
        if request is None:
            await self.stop(attempt, "unreadable")
            return
        release = accepted.release if accepted else await self._lock_conversation(request)
        record, recorder, steps, flushing = request.new_record(), None, None, None
        CALLER.set(record.caller)  # queues for threads and connections let callers take turns by it
        try:
            resumed = await self._resumption(attempt, request)
            timeline = await self._timeline(attempt, resumed)
            # The attempt that ends the response is charged for the steps of all attempts.
            for model, used in resumed.history.by_model.items():
                record.tally.add(used, model)
            self._services().budgets.stop_run_at_limits(record)
            recorder = self._live.recorders[id] = await self._recorder(
                attempt, request, resumed, release, lambda: record.code == _OUTAGE and record.upstream_status is None
            )
            # Only now: followers that wait for the start look for the recorder at once.
            if accepted is not None:
                del self._live.accepted[id]
                accepted.started.set()
            flushing = asyncio.get_running_loop().create_task(recorder.keep_flushing(attempt.lose))
            steps = _ClaimedSteps(attempt, recorder, record.tally)
            durable = _durable_run(attempt, resumed, recorder, steps, self._options.asks_again, timeline)
            decoded = accepted.decoded if accepted else None
            await self._respond(attempt, request, decoded, resumed, recorder, record, durable)
        finally:
            if flushing is not None:
                flushing.cancel()
            self._live.recorders.pop(id, None)
            self._live.drop(id)  # if it failed before it had a recorder: followers must not wait for its start for ever
            release()
            if recorder is not None and recorder.ended:
                record.usage = record.tally.usage or record.usage
                self._telemetry.finish(record)
                self._services().budgets.charge(record, request.held)
            # A response that has not ended is continued by another attempt, which charges all stored steps.
            elif steps is not None and (unstored := _unstored_usage(record, steps.stored_usage, attempt.run.token)):
                self._telemetry.finish(unstored)
                self._services().budgets.charge(unstored)
            if self._timelines is not None:
                self._timelines.detach(id)

    async def _timeline(self, attempt: RunAttempt, resumed: RecoveredAttempt) -> RunTimeline | None:
        """Open the timeline of the run, with all that earlier attempts are known to have finished."""
        if self._timelines is None:
            return None
        again = attempt.run.token > 1  # every claim counts it up by one
        timeline = await self._timelines.attach(attempt.run.id, attempt.run.owner, again)
        if timeline is not None and again:
            timeline.reconcile(resumed.history.messages, resumed.history.started)
        return timeline

    async def _respond(
        self,
        attempt: RunAttempt,
        request: BackgroundRequest,
        decoded: ModelRequest | None,
        resumed: RecoveredAttempt,
        recorder: StreamRecorder,
        record: RequestRecord,
        durable: DurableRunContext,
    ) -> None:
        """Have the chat handler answer into the recorder; however that goes the response ends, unless it is interrupted."""
        services, codec = self._services(), self._dialect.server
        continued: PreparedRequest | None = None  # set once its encoder continues the stream: then it encodes failures
        try:
            # The caller may have lost its key, and tools may have come or gone, since the request was accepted.
            caller = services.callers(request.turn.owner)
            if caller is None:
                raise Unauthenticated("The key that asked for this response is no longer valid.")
            headers = headers_by_name(request.headers)
            call = BackgroundChatRequestContext(recorder, with_rights(caller, headers), record, headers)
            prepared = await services.chat.prepare(call, self._dialect, codec, request.turn.body, durable, decoded)
            # The client knows the response by the id and the time that it got when the request was accepted.
            before = max(0, prepared.metadata.created - request.created)  # seconds until this attempt

            def times() -> tuple[float, float]:
                first, now = record.times()
                return before + first, before + now

            metadata = replace(prepared.metadata, id=request.id, created=request.created, times=times)
            prepared = replace(prepared, metadata=metadata)
            prepared, withdrawn = await run_in_thread(resumed.continue_stream, prepared)
            continued = prepared
            await recorder.write(withdrawn)
            if durable.timeline is not None and prepared.on_delivered is None:  # no tool loop records its steps
                durable.timeline.step_started(())
            await services.chat.respond(prepared)
        except ToolgateError as error:
            if isinstance(error, GatewayOverloaded) and error.code == _OUTAGE:
                raise  # another attempt continues when the database is back
            await _fail(recorder, continued, record, error)
        except asyncio.CancelledError:
            if not attempt.cancelled:  # the server stops, or the lease is lost: another attempt continues
                raise
            record.note_cancelled()
            await recorder.close("cancelled")
            await services.chat.cancel_approvals(request.id)
        except Exception as error:  # noqa: BLE001  # no caller is left to raise it to: the client reads it, the log has all
            self._telemetry.crashed(record, error)
            await _fail(
                recorder,
                continued,
                record,
                InternalGatewayError("An internal error occurred; the server's log has it."),
            )

    async def stop(self, attempt: RunAttempt, how: EarlyEnd) -> None:
        """Store the end of a response that is not made any further."""
        request = await self._stored_request(attempt)
        if request is None:
            # Its end is stored nevertheless, or the run would be resumed for ever and could not even be cancelled.
            run = attempt.run
            stored = await self._store.load(run.owner, run.id)
            turn = ContinuedRequest(run.owner, {}, stored.input if stored is not None else [])
            request = BackgroundRequest(run.id, int(run.created), turn, streamed=True)
        resumed = await self._resumption(attempt, request)
        # No lock to release: a response that is cancelled or failed adds nothing to its conversation.
        recorder = await self._recorder(attempt, request, resumed, lambda: None)
        services = self._services()
        try:
            if how == "cancelled":
                await recorder.close("cancelled")
                await services.chat.cancel_approvals(request.id)
            else:
                await recorder.close("failed", failure(_ABANDONED[how]), "parked" if how == "parked" else "failed")
                if self._timelines is not None:
                    await self._timelines.fail(attempt.run.id, attempt.run.owner, _ABANDONED[how])
        finally:
            self._live.drop(attempt.run.id)
            if recorder.ended:
                model = request.turn.body.get("model")
                name = model if type(model) is str else ""
                record = RequestRecord(request.request_id, caller=request.turn.owner, model=name)
                for model, used in resumed.history.by_model.items():
                    record.tally.add(used, model)
                record.usage = record.tally.usage
                # The usage of steps that cannot be read is not known: as much as was reserved is charged.
                services.budgets.charge(record, request.held, len(attempt.steps.recorded) < attempt.run.steps)

    async def _stored_request(self, attempt: RunAttempt) -> BackgroundRequest | None:
        """Return the request of a run; None if it cannot be read, because a newer version or a defect has written it."""
        try:
            return await run_in_thread(decode_request, attempt.run.request)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self._telemetry.log.warning("run", id=attempt.run.id, problem=f"its stored request cannot be read: {error}")
            return None

    async def _lock_conversation(self, request: BackgroundRequest) -> Callable[[], None]:
        """Lock the conversation again; another response that was started there meanwhile ends first."""
        turn = request.turn
        if turn.conversation is None or await self._conversations.load(turn.owner, turn.conversation) is None:
            return lambda: None
        return await self._active.wait_for_lock(turn.conversation)

    async def _resumption(self, attempt: RunAttempt, request: BackgroundRequest) -> RecoveredAttempt:
        frames = await self._streams.all(request.id) if request.streamed else []
        return await run_in_thread(resumption, attempt.steps.recorded, frames)

    async def _recorder(
        self,
        attempt: RunAttempt,
        request: BackgroundRequest,
        resumed: RecoveredAttempt,
        on_stored: Callable[[], None],
        storage_failed: Callable[[], bool] = lambda: False,
    ) -> StreamRecorder:
        stored = await self._store.load(request.turn.owner, request.id)
        stream = await self._streams.load(request.id)
        return StreamRecorder(
            self._streams,
            WriteClaim(self._runs, attempt.run),
            FinishedResponseSaver(self._store, request.turn, self._conversations, on_stored),
            stored.body if stored is not None else {"id": request.id, "created_at": request.created},
            stored=stream is not None and stream.kept,
            sent=resumed.frames,
            items=resumed.items,
            most_bytes=self._options.stream_bytes,
            flush_seconds=self._options.flush_seconds,
            retry_seconds=self._options.retry_seconds,
            interrupted=lambda: attempt.interrupted,
            storage_failed=storage_failed,
            on_stored=lambda: self._announce(request.id),
        )


def _durable_run(
    attempt: RunAttempt,
    resumed: RecoveredAttempt,
    recorder: StreamRecorder,
    steps: "_ClaimedSteps",
    asks: bool,
    timeline: RunTimeline | None,
) -> DurableRunContext:
    claim = recorder.claim
    return DurableRunContext(
        attempt.run.id,
        resumed.history,
        attempt.run.token > 1,
        steps,
        recorder.mark,
        lambda: recorder.while_claimed(claim.check()),
        lambda waits: recorder.while_claimed(claim.set_waiting(waits)),
        asks,
        timeline,
    )


class _ClaimedSteps:
    """The steps of an attempt, which is cancelled when it may not write one any more (`DurableStepLog`).

    `stored_usage` is what the stored steps have used, by model: the attempt that ends the response charges it.
    """

    def __init__(self, attempt: RunAttempt, recorder: StreamRecorder, tally: UsageTally) -> None:
        """`tally` has the usage of the steps that earlier attempts stored."""
        self.recorded = attempt.steps.recorded
        self.stored_usage: Mapping[str, Usage] = dict(tally.by_model)
        self._attempt = attempt
        self._recorder = recorder
        self._tally = tally

    async def keep(self, name: str, value: str) -> None:
        keeping = self._attempt.steps.keep(name, value)
        await self._recorder.while_claimed(self._keep_answer(keeping) if name == ANSWER_STEP else keeping)

    async def _keep_answer(self, keeping: Awaitable[None]) -> None:
        """Store an answer, and note its usage as stored, even if the attempt is interrupted meanwhile."""
        used = dict(self._tally.by_model)  # as the step has it
        writing = asyncio.ensure_future(keeping)
        try:
            await asyncio.shield(writing)
        finally:
            await asyncio.wait({writing})
            if not writing.cancelled() and writing.exception() is None:
                self.stored_usage = used


def _unstored_usage(record: RequestRecord, stored: Mapping[str, Usage], token: int) -> RequestRecord | None:
    """Return a record of what an interrupted attempt has used and no stored step has; None if that is nothing."""
    tally = UsageTally()
    for model, used in record.tally.by_model.items():
        if used != (before := stored.get(model, Usage())):
            tokens = (
                used.input - before.input,
                used.output - before.output,
                used.cache_read - before.cache_read,
                used.cache_write - before.cache_write,
                used.reasoning - before.reasoning,
            )
            tally.add(Usage(*tokens, used.estimated), model)
    if tally.usage is None:
        return None
    # With an id of its own, and not as the record of the run: that is written by the attempt that ends the response.
    return replace(
        record,
        request_id=f"{record.request_id}-{token}",
        background=False,
        status=CLIENT_LEFT,
        code=_INTERRUPTED,
        error=record.error or "The attempt was interrupted, and another one continues the response.",
        tally=tally,
        usage=tally.usage,
    )


async def _fail(
    recorder: StreamRecorder, prepared: PreparedRequest | None, record: RequestRecord, error: ToolgateError
) -> None:
    """Record the failure as a stream would have sent it: with its beginning, if nothing was recorded yet."""
    record.note_error(error)
    if recorder.started or prepared is None:
        await recorder.close("failed", failure(error.message))
        return
    encoder = prepared.encoder or prepared.codec.encoder(prepared.request, prepared.metadata)
    await recorder.write(encoder.encode(StepStart()) + encoder.error(error))
