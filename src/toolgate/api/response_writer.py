"""Ask the model a prepared request and write its response to the client, whole or as a stream.

It knows sinks, codecs and model streams. It must not know how a request was decoded, routed or given tools (`chat.py`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol, cast

from msgspec import Struct

from toolgate.api.dropped_answer_content import UntranslatedContentWarnings
from toolgate.conversation.errors import InternalGatewayError, ToolgateError
from toolgate.conversation.events import ModelResponse, PartDelta, PartEnd, PartStart, RunEnd, RunEvent
from toolgate.conversation.fold import fold, is_empty
from toolgate.conversation.message import ToolCall, is_blank
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.rough_size_estimate import are_parts_larger
from toolgate.dialects.dialect import AnswerMetadata, Dialect, ServerCodec, StreamEncoder
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.engine.model_to_run_events import WholeArgumentsEmitter, run_events
from toolgate.engine.ports import Model, ModelStream, RelayableStream, RelayedStream, RelayStats
from toolgate.http.exchange import Header
from toolgate.telemetry.request_log import RequestRecord, Telemetry
from toolgate.upstreams.http_responses import WholeResponseStream
from toolgate.upstreams.token_counting_offline import estimate

EMPTY_ANSWER = "the model gave an empty answer"
# Marks token counts that were estimated here because the upstream sent none.
ESTIMATED: Header = (b"x-toolgate-usage", b"estimated")

_MANY_EVENTS = 500  # encoding fewer takes less time than handing them to a thread
_PING = b": ping\n"  # no blank line: some clients take one for an empty event


class StreamKeepaliveTimings(Struct, frozen=True):
    """Seconds that a stream waits for its first event before it starts with a comment, and seconds between comments."""

    first_event: float = 10.0
    keepalive: float = 15.0


class ResponseSink(Protocol):
    """Receives a response: an HTTP exchange, or a recorder that stores the response for a later request."""

    @property
    def client_left(self) -> bool:
        """Whether the client has disconnected."""

    def cancel_when_client_leaves(self) -> None:
        """Cancel the running task as soon as the client disconnects."""

    async def respond(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Send a whole response."""

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Start a streamed response."""

    async def write(self, chunk: bytes) -> None:
        """Send a chunk of a streamed response."""

    def idle_for(self) -> float:
        """Return the seconds since the last chunk."""

    async def end(self) -> None:
        """End a streamed response."""


class PreparedRequest(Struct, frozen=True):
    """A request that is checked and routed, with everything that is needed to write its response.

    `request` is the client's. `model_request` is sent to the model: the same, unless the server's tools take part.
    """

    sink: ResponseSink
    dialect: Dialect
    codec: ServerCodec
    request: ModelRequest
    model: Model
    model_request: ModelRequest
    metadata: AnswerMetadata
    record: RequestRecord
    whole_arguments: bool = False
    # Continues a stream whose beginning was sent by an earlier attempt.
    encoder: StreamEncoder | None = None
    # Called when the client has received the response.
    on_delivered: Callable[[], Awaitable[None]] | None = None
    # The request as its codec decoded it, before anything was checked or added.
    decoded: ModelRequest | None = None


class AnswerRecorder(Protocol):
    """Stores a response before the client receives its end."""

    async def before_chunk(self, chunk: bytes) -> None:
        """Store a chunk of a stream that is about to be sent."""

    async def before_whole(self, body: bytes) -> None:
        """Store a whole response that is about to be sent."""


class ResponseWriter:
    """Writes the responses to prepared requests of any dialect."""

    def __init__(self, timings: StreamKeepaliveTimings, telemetry: Telemetry) -> None:
        self._timings = timings
        self._telemetry = telemetry

    def respond(self, prepared: PreparedRequest, recorder: AnswerRecorder | None = None) -> Awaitable[None]:
        """Ask the model and write its response, whole or streamed as requested."""
        prepared.sink.cancel_when_client_leaves()
        writing = (self._stream if prepared.request.stream else self._write_whole)(prepared, recorder)
        return writing if prepared.on_delivered is None else _report_delivery(prepared, writing, prepared.on_delivered)

    async def _write_whole(self, prepared: PreparedRequest, recorder: AnswerRecorder | None) -> None:
        body, headers = await self.complete(prepared)
        if recorder is not None:
            await recorder.before_whole(body)
        await prepared.sink.respond(200, body, headers)

    async def complete(self, prepared: PreparedRequest) -> tuple[bytes, list[Header]]:
        """Ask the model and return its whole response with the headers, without writing it."""
        record = prepared.record
        try:
            answer = await prepared.model.ask(prepared.model_request)
            lost: list[str] = []
            if type(answer) is WholeResponseStream and (plain := answer.plain) is not None:
                body, response = _encode_plain(prepared, answer, plain), plain
            else:
                try:
                    body, response, lost = await _whole(prepared, answer)
                finally:
                    if not answer.whole:
                        await answer.aclose()
                if is_empty(response):
                    lost = [*lost, EMPTY_ANSWER]
                for part in response.parts:
                    if type(part) is ToolCall:
                        record.note_call(part.name)
            record.note_answer(answer.upstream, response.reason, response.usage)
        finally:
            # Also of an answer that failed: the upstream is paid for it. Without open steps there is nothing to wait for.
            if record.tally.open_steps:
                await record.settle_usage()
            else:
                record.usage = record.tally.usage or record.usage
        headers: list[Header] = []
        if prepared.request.warnings or answer.warnings or lost:
            headers = _headers(prepared, answer, *lost)
        if response.usage is not None and response.usage.estimated:
            headers.append(ESTIMATED)
        return body, headers

    async def _stream(self, prepared: PreparedRequest, recorder: AnswerRecorder | None) -> None:
        """Start a stream and write it to its end."""
        sink, timings = prepared.sink, self._timings
        asking = asyncio.ensure_future(prepared.model.ask(prepared.model_request))
        self._telemetry.stream_opened()
        try:
            # The model's first event decides the status: `result` raises what becomes an error response. If it takes too
            # long, the stream starts without it, because clients and proxies give up on a silent connection.
            await asyncio.wait({asking}, timeout=timings.first_event)
            answer = asking.result() if asking.done() else None
            comment = _PING if prepared.dialect.framing == "sse" else b""
            await sink.start(prepared.dialect.stream_type.encode(), _headers(prepared, answer))
            if answer is None:
                await sink.write(comment)
            async with _kept_alive(sink, timings.keepalive, comment):
                await self._write_stream(prepared, asking, recorder, len(answer.warnings) if answer else 0)
        finally:
            self._telemetry.stream_closed()
            try:
                if not asking.done():  # the client has left before the first event: the upstream must not go on
                    asking.cancel()
                    await asyncio.wait({asking})  # and not `await asking`, which would raise its cancellation here
                if not asking.cancelled() and asking.exception() is None:
                    await asking.result().aclose()
            finally:
                await prepared.record.settle_usage()
        await sink.end()

    async def _write_stream(
        self,
        prepared: PreparedRequest,
        asking: asyncio.Future[ModelStream],
        recorder: AnswerRecorder | None,
        warned: int,
    ) -> None:
        """Write what follows the headers; failures and further warnings go into the stream, in the dialect's own form.

        `warned` is the number of warnings in the headers.
        """
        encoder: StreamEncoder | RelayStats | None = None
        late, sent_late = list[str](), 0  # warnings about the answer itself
        try:
            answer = await asking
            prepared.record.upstream = answer.upstream
            # The upstream speaks the client's dialect: its own chunks are passed on, no events are encoded again.
            if prepared.request.relay and answer.dialect == prepared.request.dialect:
                relayed = cast(RelayableStream, answer).relay_stream(prepared.metadata)
                encoder, late = relayed.relay, relayed.relay.names.warnings
                chunks = _relayed(prepared, relayed, late)
            else:
                encoder = own = prepared.encoder or prepared.codec.encoder(prepared.request, prepared.metadata)
                chunks = _encoded(prepared, answer, own, late)
            async with aclosing(chunks):
                async for chunk in chunks:
                    if len(answer.warnings) > warned:
                        await _warn(prepared, answer.warnings[warned:])
                        warned = len(answer.warnings)
                    if len(late) > sent_late:
                        await _warn(prepared, late[sent_late:])
                        sent_late = len(late)
                    # What a client has received must be there when it comes back, even after a crash.
                    if recorder is not None:
                        await recorder.before_chunk(chunk)
                    await _write(prepared, chunk)
        except ToolgateError as error:
            await _fail(prepared, encoder, error)
        except asyncio.CancelledError:
            if prepared.sink.client_left:
                raise
            # The server stops, or the caller's key was revoked: the client gets an error instead of a cut stream.
            await _fail(prepared, encoder, prepared.record.end_error())
        except Exception as error:  # noqa: BLE001  # the HTTP edge: the client gets an error event, the log the traceback
            self._telemetry.crashed(prepared.record, error)
            await _fail(prepared, encoder, InternalGatewayError("An internal error occurred; the server's log has it."))


async def _report_delivery(
    prepared: PreparedRequest, writing: Awaitable[None], on_delivered: Callable[[], Awaitable[None]]
) -> None:
    await writing
    if not prepared.sink.client_left:
        await on_delivered()


async def _encoded(
    prepared: PreparedRequest, answer: ModelStream, encoder: StreamEncoder, late: list[str]
) -> AsyncGenerator[bytes, None]:
    """Encode the events of a run, one chunk for each batch."""
    gather = WholeArgumentsEmitter().gather if prepared.whole_arguments else None
    empty, size = True, 0
    lost = UntranslatedContentWarnings(prepared.request, prepared.dialect.name, late)
    async with aclosing(run_events(answer)) as batches:
        async for batch in batches:
            added, blank = _record_batch(prepared.record, batch, lost)
            size += added
            empty = empty and blank
            if empty and isinstance(end := batch[-1], RunEnd) and end.reason in ("stop", "tool_calls"):
                late.append(EMPTY_ANSWER)
            events = gather(batch) if gather else batch
            # The end of a part and of the run repeat all that was sent before, which may be large.
            if (
                len(events) > _MANY_EVENTS
                or added > LARGE_BODY
                or (size > LARGE_BODY and type(batch[-1]) is not PartDelta)
            ):
                yield await run_in_thread(_joined, encoder, events)
            else:
                yield _joined(encoder, events)
    prepared.record.upstream = answer.upstream  # a run that starts with its tools knows no upstream at first


def _joined(encoder: StreamEncoder, events: list[RunEvent]) -> bytes:
    return b"".join([encoder.encode(event) for event in events])


def _record_batch(record: RequestRecord, batch: list[RunEvent], lost: UntranslatedContentWarnings) -> tuple[int, bool]:
    """Add these events to the request's record; return how many characters they bring, and whether their parts are blank.

    What the client's dialect cannot express of them is added to `lost`. Types are compared, because `match` would ask of
    every delta whether it is something else first.
    """
    if record.first_event is None:
        record.note_first_event()
    size, blank = 0, True
    for event in batch:
        kind = type(event)
        if kind is PartDelta:
            size += len(event.text)  # type: ignore[union-attr]  # a PartDelta
        elif kind is PartStart:
            if isinstance(part := event.part, ToolCall):  # type: ignore[union-attr]  # a PartStart
                record.note_call(part.name)
        elif kind is PartEnd:
            blank = blank and is_blank(event.part)  # type: ignore[union-attr]  # a PartEnd
            lost.add_part(event.part)  # type: ignore[union-attr]
        elif kind is RunEnd:
            record.note_end(event.reason, event.usage)  # type: ignore[union-attr]  # a RunEnd
            lost.add_end(event.extra)  # type: ignore[union-attr]
    return size, blank


async def _relayed(prepared: PreparedRequest, relayed: RelayedStream, late: list[str]) -> AsyncGenerator[bytes, None]:
    """Pass on the chunks of an upstream that uses the client's own dialect."""
    relay, checked = relayed.relay, False
    try:
        async for chunk in relayed:
            prepared.record.note_first_event()
            # Looked at once, before the last chunk is sent: a warning behind the end of a stream is not read.
            if relay.reason is not None and not checked:
                checked = True
                if relay.reason in ("stop", "tool_calls") and all(is_blank(part) for part in relay.received()):
                    late.append(EMPTY_ANSWER)
            yield chunk
    finally:
        prepared.record.calls = relay.calls
        prepared.record.note_end(relay.reason, relay.usage)


def _encode_plain(prepared: PreparedRequest, answer: WholeResponseStream, plain: ModelResponse) -> bytes:
    """Encode a plain text, of which nothing can be lost: no events are made of it only to fold them again."""
    request, metadata = prepared.request, prepared.metadata
    if request.relay and answer.dialect == request.dialect:
        return answer.plain_body
    return prepared.codec.encode_response(plain, request, metadata)


async def _whole(prepared: PreparedRequest, answer: ModelStream) -> tuple[bytes, ModelResponse, list[str]]:
    """Read the answer to its end and encode it; the last value warns of what the dialect cannot express."""
    request, metadata = prepared.request, prepared.metadata
    if request.relay and answer.dialect == request.dialect:
        relayable: RelayableStream = answer  # type: ignore[assignment]  # `dialect` is set on relayable streams only
        body, response = await relayable.relay_whole(metadata)
        if response.usage is None or response.usage.missing:
            usage = await estimate(request, response.parts, response.usage)
            body, response = await relayable.relay_whole(metadata, usage)
        return body, response, []
    events: list[RunEvent] = []
    async for batch in run_events(answer):
        events += batch
    response = fold(events)
    lost: list[str] = []
    content = UntranslatedContentWarnings(request, prepared.dialect.name, lost)
    for part in response.parts:
        content.add_part(part)
    content.add_end(response.extra)
    encode = prepared.codec.encode_response
    if are_parts_larger(response.parts, LARGE_BODY):
        return await run_in_thread(encode, response, request, metadata), response, lost
    return encode(response, request, metadata), response, lost


async def _write(prepared: PreparedRequest, chunk: bytes) -> None:
    if not prepared.dialect.one_event_per_write:
        await prepared.sink.write(chunk)
        return
    sent = number = 0
    while (end := chunk.find(b"\n\n", sent) + 2) > 1:  # not split at once: the events may be large together
        await prepared.sink.write(chunk[sent:end])
        number += 1
        if end < len(chunk) and (number % _MANY_EVENTS == 0 or end - sent > LARGE_BODY):
            await asyncio.sleep(0)
        sent = end


async def _warn(prepared: PreparedRequest, warnings: Sequence[str]) -> None:
    """Send warnings that came after the headers were sent."""
    prepared.record.warnings += tuple(warnings)
    text = warning_header(warnings).decode()
    await prepared.sink.write(prepared.codec.encode_warning(text, prepared.metadata))


async def _fail(prepared: PreparedRequest, encoder: StreamEncoder | RelayStats | None, error: ToolgateError) -> None:
    prepared.record.note_error(error)
    # The model failed before there was an encoder, but after the headers were sent.
    encoder = encoder or prepared.encoder or prepared.codec.encoder(prepared.request, prepared.metadata)
    await _write(prepared, encoder.error(error))


@asynccontextmanager
async def _kept_alive(sink: ResponseSink, seconds: float, comment: bytes) -> AsyncGenerator[None]:
    """Send a comment whenever nothing was sent for so many seconds; nothing if the framing has no comments."""
    if not comment:
        yield
        return

    loop, sending = asyncio.get_running_loop(), list[asyncio.Task[None]]()

    async def send_comments() -> None:
        while True:
            if sink.idle_for() >= seconds * 0.9:
                await sink.write(comment)
            await asyncio.sleep(seconds)

    # The task starts when there may be something to send: most streams end before, and a timer costs far less.
    timer = loop.call_later(seconds, lambda: sending.append(loop.create_task(send_comments())))
    try:
        yield
    finally:
        timer.cancel()
        for task in sending:
            task.cancel()


def _headers(prepared: PreparedRequest, answer: ModelStream | None, *more: str) -> list[Header]:
    """Return the header with all warnings: what could not be sent to the upstream must not be dropped in silence."""
    warnings = [*prepared.request.warnings, *(answer.warnings if answer else ()), *more]
    if not warnings:
        return []
    prepared.record.warnings = tuple(warnings)
    return [(b"x-toolgate-warning", warning_header(warnings))]


def warning_header(warnings: Sequence[str]) -> bytes:
    """Join warnings to the value of one header, of safe length and characters."""
    text = "; ".join(warnings).encode("ascii", "backslashreplace")[:2000]
    return bytes([byte if 32 <= byte < 127 else 32 for byte in text])
