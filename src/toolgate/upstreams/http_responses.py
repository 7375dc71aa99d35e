"""Read the responses of upstreams over HTTP: whole, as events, or relayed to a client of the same dialect.

It knows frames, codecs and how much work the event loop may do at a time. It must not know URLs, keys or sockets.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from operator import attrgetter
from typing import Protocol, TypeVar

from msgspec.structs import replace

from toolgate.conversation.errors import InvalidUpstreamAnswer, UpstreamError
from toolgate.conversation.event_assembler import MAX_CONTENT, check_content_length
from toolgate.conversation.events import ModelResponse, PartDelta, StepEvent, Usage
from toolgate.conversation.fold import fold, unfold
from toolgate.conversation.message import ToolCall
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.conversation.tool_name_matching import ToolNameMatcher
from toolgate.dialects.dialect import AnswerMetadata, Dialect, StreamRelay, UpstreamCodec, UpstreamStreamDecoder
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.engine.ports import ModelStream
from toolgate.upstreams.setting_emulation import EmulatedResponseRewriter
from toolgate.upstreams.token_counting_offline import estimate
from toolgate.upstreams.transport import UpstreamResponse
from toolgate.wire.jsontext import decode_response_body, encode, encode_in_steps
from toolgate.wire.received_stream_frames import MAX_FRAME, EventFrameDecoder, ReceivedStreamFrame, check_size

# One step of the event loop decodes at most this many bytes or frames, some milliseconds: then other requests are served.
_SLICE_BYTES = 32 * 1024
_MANY_FRAMES = 500
# An answer with more bytes is encoded in steps; eight levels reach the arguments of the calls of a choice.
_MANY_BYTES = 4 * 1024 * 1024
_ANSWER_LEVELS = 8
# Counted for each frame before the first event beside its bytes; they are kept, up to as many bytes as one frame may have.
_FRAME_BYTES = 128
_DATA = attrgetter("data")
_BLANKS = b"\xef\xbb\xbf \t\r\n"  # with a byte order mark


class WholeResponseStream:
    """A response that came whole; it is decoded when it is made, so that a malformed one can be retried."""

    __slots__ = (
        "_body",
        "_codec",
        "_raw",
        "_request",
        "_response",
        "_rewriter",
        "_size",
        "dialect",
        "has_declared_names",
        "plain",
        "plain_body",
        "reported",
        "upstream",
        "warnings",
        "whole",
    )

    def __init__(
        self,
        upstream: str,
        dialect: Dialect,
        request: ModelRequest,
        raw: bytes,
        warnings: tuple[str, ...],
        rewriter: EmulatedResponseRewriter | None,
    ) -> None:
        self.upstream = upstream
        self.whole = True
        self.dialect = None if request.stream else dialect.name
        self.warnings = warnings
        self._codec = dialect.upstream
        self._request = request
        self._rewriter = rewriter
        self._raw: bytes | None = raw
        relayed = request.dialect == dialect.name
        # The response, if it is nothing but a text and its usage, in the very form of its dialect. Most responses are:
        # they are decoded in one step with their types, and a client of the same dialect gets the bytes that came.
        self.plain = dialect.decode_plain_answer(raw, relayed) if rewriter is None else None
        self._size, self.plain_body = len(raw), b""
        if self.plain is not None:
            self.plain_body = raw
            self._body, self._response, self.has_declared_names = None, self.plain, True
            self.reported = self.plain.usage
            return
        try:
            self._body, self._raw = decode_response_body(raw)
        except InvalidUpstreamAnswer:
            # Some upstreams send a stream although a whole answer was requested.
            streamed = _decode_unrequested_stream(dialect, request, raw)
            if streamed is None:
                raise
            self.dialect, self._body, self._raw, self.has_declared_names = None, None, None, False
            self._response, self.reported = streamed, streamed.usage
            return
        # A response that cannot be used may have cost tokens, which are charged nevertheless.
        try:
            self._response = self._codec.decode_response(self._body, request)
            if len(raw) > MAX_CONTENT:
                check_content_length(self._response.parts)
        except UpstreamError as fault:
            fault.usage = self._codec.usage_of(self._body)
            raise
        except _WRONG_TYPE as error:
            malformed = _unreadable(error)
            malformed.usage = self._codec.usage_of(self._body)
            raise malformed from error
        self.reported = self._response.usage
        undeclared: list[str] = []
        if request.tools:
            names = tool_names(request.tools)
            called = [part.name for part in self._response.parts if type(part) is ToolCall]
            undeclared = [name for name in called if name not in names]
        self.has_declared_names = not undeclared  # then `ToolNameCorrectingModel` leaves this stream alone
        if undeclared and ToolNameMatcher(tool_names(request.tools)).matches_any(undeclared):
            self.dialect = None  # so that its events are translated, and the names corrected on the way

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield all events in one batch."""
        events = unfold(self._response)
        yield await _restored(self._rewriter, events) if self._rewriter else events

    async def relay_whole(self, metadata: AnswerMetadata, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """Return the body for a client of the same dialect, and the response; `usage` replaces what was reported."""
        if self.plain is not None:
            return self.plain_body, self.plain
        if self._size > LARGE_BODY:
            return await run_in_thread(self._relay, metadata, usage)
        return self._relay(metadata, usage)

    def _relay(self, metadata: AnswerMetadata, usage: Usage | None) -> tuple[bytes, ModelResponse]:
        response = self._response
        if usage is not None:
            response = replace(response, usage=usage)
        try:
            body = self._codec.relay_response(self._body, response, self._request, metadata)
        except _WRONG_TYPE as error:
            raise _unreadable(error) from error
        # The codec returns the very object if it changed nothing: then the bytes that came are relayed unencoded.
        if self._raw is not None and body is self._body:
            return self._raw, response
        return (encode_in_steps(body, _ANSWER_LEVELS) if self._size > _MANY_BYTES else encode(body)), response

    async def aclose(self) -> None:
        """Do nothing: the response is read already."""


def _decode_unrequested_stream(dialect: Dialect, request: ModelRequest, raw: bytes) -> ModelResponse | None:
    """Decode a stream that was sent instead of a whole response; None if the bytes are no stream of the dialect."""
    # An SSE stream begins with a field or a comment, such as `data: {"id": …}` or `: ping`.
    if dialect.framing == "sse" and not raw[:_SLICE_BYTES].lstrip(_BLANKS).startswith(
        (b"data:", b"event:", b":", b"id:")
    ):
        return None
    framing, decoder = dialect.frame_decoder(), dialect.upstream.decoder(request)
    try:
        frames = [frame for piece in _slices(raw) for frame in framing.feed(piece)]
        events, failure = _DecoderReader(decoder).read([*frames, *framing.end()])
    except InvalidUpstreamAnswer:
        return None
    # From here on it is a stream, so that its own error says more than "not JSON".
    try:
        if failure is not None:
            raise failure
        with wrong_types_as_malformed:
            return fold([*events, *([] if decoder.done else decoder.end())])
    except UpstreamError as fault:
        fault.usage = fault.usage or decoder.usage
        raise


async def open_stream(
    upstream: str,
    dialect: Dialect,
    request: ModelRequest,
    response: UpstreamResponse,
    warnings: tuple[str, ...],
    rewriter: EmulatedResponseRewriter | None,
) -> ModelStream:
    """Return the streamed response once its first events are decoded; an error in them is raised."""
    stream = HttpModelStream(upstream, dialect, request, response, warnings, rewriter)
    blanks = 0
    async for start in response:
        if not start.strip():  # blank in every framing, so that it need not be kept
            blanks += len(start)
            check_size(blanks, MAX_FRAME)
            continue
        # Instead of a stream an upstream may send one JSON body, an error with status 200 or a whole response; a proxy
        # may send an HTML page. Only where a stream is JSON lines, as in Ollama's API, does a brace begin a stream.
        first = start[:_SLICE_BYTES].lstrip(_BLANKS)[:1]
        if first == b"<" or (first in (b"{", b"[") and dialect.framing == "sse"):
            whole = start + await response.read()
            if len(whole) > LARGE_BODY:
                return await run_in_thread(WholeResponseStream, upstream, dialect, request, whole, warnings, rewriter)
            return WholeResponseStream(upstream, dialect, request, whole, warnings, rewriter)
        try:
            with wrong_types_as_malformed:
                await stream.open(start)
        except UpstreamError as fault:
            fault.usage = fault.usage or stream.reported
            raise
        return stream
    raise InvalidUpstreamAnswer("The upstream's stream ended before it began.")


class HttpModelStream:
    """A response that streams in: decoded to events, or relayed to a client of the same dialect."""

    def __init__(
        self,
        upstream: str,
        dialect: Dialect,
        request: ModelRequest,
        response: UpstreamResponse,
        warnings: tuple[str, ...],
        rewriter: EmulatedResponseRewriter | None,
    ) -> None:
        self.upstream = upstream
        self.whole = False
        self.dialect: str | None = dialect.name
        self.warnings = warnings
        self._codec = dialect.upstream
        self._request = request
        self._response = response
        self._rewriter = rewriter
        self._framing = dialect.frame_decoder()
        self._decoder = dialect.upstream.decoder(request)
        self._frames: list[ReceivedStreamFrame] = []  # all frames of `open`, for a relay
        self._kept_bytes = 0
        self._events: list[StepEvent] = []  # the events that `open` decoded
        self._undecoded: list[ReceivedStreamFrame] = []  # the frames behind them

    @property
    def reported(self) -> Usage | None:
        """The usage that the upstream has reported so far."""
        return self._decoder.usage

    async def open(self, start: bytes) -> None:
        """Read until there is an event, and keep the frames: they are decoded or relayed later."""
        chunk: bytes | None = start
        while not self._events and chunk is not None:
            for piece in _slices(chunk):
                await self._keep_bounded(self._framing.feed(piece))
                if piece is not chunk:  # there are several: other requests get their turn in between
                    await asyncio.sleep(0)
            if not self._events:
                chunk = await anext(self._response, None)
        if chunk is None:  # the response has ended without an event: its decoder may raise what is wrong
            await self._keep_bounded(self._framing.end())
            if not self._decoder.done and not self._undecoded:
                self._events += self._decoder.end()

    async def _keep_bounded(self, frames: list[ReceivedStreamFrame]) -> None:
        """Keep the frames, and decode large ones in a thread."""
        # A frame that is larger than a slice began in an earlier one, so that it is the first of its piece.
        if frames and len(frames[0].data) > LARGE_BODY:
            await run_in_thread(self._keep, frames)
        else:
            self._keep(frames)

    def _keep(self, frames: list[ReceivedStreamFrame]) -> None:
        # One event is enough to know that the upstream answers; the other frames are decoded only if no relay takes them.
        self._frames += frames
        for number, frame in enumerate(frames):
            if self._events or self._decoder.done:
                self._undecoded += frames[number:]
                return
            if self._kept_bytes > MAX_FRAME:
                raise InvalidUpstreamAnswer("The upstream sent too many events without any content.")
            self._kept_bytes += len(frame.data) + _FRAME_BYTES
            self._events += self._decoder.feed(frame)

    async def events(self) -> AsyncGenerator[list[StepEvent], None]:
        """Yield the events in batches, as the network delivers them."""
        rewriter = self._rewriter
        first, self._events = self._events, []
        async with aclosing(
            _read(self._response, self._framing, _DecoderReader(self._decoder), first, self._undecoded)
        ) as batches:
            async for batch in batches:
                # A freeform call is held back until it is whole, so that a batch may come out empty.
                if events := await _restored(rewriter, batch) if rewriter else batch:
                    yield events
                if rewriter and rewriter.done:  # at a stop text: what the upstream still sends is not for the client
                    return

    def relay_stream(self, metadata: AnswerMetadata) -> "RelayedHttpStream":
        """Return the stream of frames for a client of the same dialect."""
        relay = self._codec.relay(self._request, metadata)
        return RelayedHttpStream(self._request, relay, self._response, self._framing, self._frames)

    async def aclose(self) -> None:
        """Close the response; an unfinished one is cancelled at the upstream."""
        await self._response.aclose()


class RelayedHttpStream:
    """A streamed response as frames for a client of the same dialect; without reported usage it ends with an estimate."""

    def __init__(
        self,
        request: ModelRequest,
        relay: StreamRelay,
        response: UpstreamResponse,
        framing: EventFrameDecoder,
        frames: list[ReceivedStreamFrame],
    ) -> None:
        self.relay = relay
        self._request = request
        self._response = response
        self._framing = framing
        self._frames = frames

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the frames in batches, as the network delivers them."""
        reader = _RelayReader(self.relay)
        async with aclosing(_read(self._response, self._framing, reader, [], self._frames)) as batches:
            async for batch in batches:
                yield b"".join(batch)
        if self.relay.lacks_usage:
            yield self.relay.end_with(await estimate(self._request, self.relay.received(), self.relay.usage))


_T = TypeVar("_T")


class _FrameReader(Protocol[_T]):
    """Reads frames into events or into chunks for the client."""

    @property
    def done(self) -> bool: ...

    def read(self, frames: list[ReceivedStreamFrame]) -> tuple[list[_T], UpstreamError | None]:
        """Read the frames up to one that fails; the loop is here because a call for each frame would cost too much."""

    def end(self) -> list[_T]: ...


class _DecoderReader:
    """Reads frames into events."""

    def __init__(self, decoder: UpstreamStreamDecoder) -> None:
        self._decoder = decoder

    @property
    def done(self) -> bool:
        return self._decoder.done

    def read(self, frames: list[ReceivedStreamFrame]) -> tuple[list[StepEvent], UpstreamError | None]:
        decoder, events = self._decoder, list[StepEvent]()
        try:
            for frame in frames:
                if decoder.done:
                    break
                events += decoder.feed(frame)
        except _DECODE_ERRORS as error:
            fault = _as_fault(error)
            if fault.usage is not None:  # what an error reports is charged, too
                decoder.usage = fault.usage.following(decoder.usage)
            return events, fault
        return events, None

    def end(self) -> list[StepEvent]:
        return self._decoder.end()


class _RelayReader:
    """Reads frames into chunks for a client of the same dialect."""

    def __init__(self, relay: StreamRelay) -> None:
        self._relay = relay

    @property
    def done(self) -> bool:
        return self._relay.done

    def read(self, frames: list[ReceivedStreamFrame]) -> tuple[list[bytes], UpstreamError | None]:
        relay, chunks = self._relay, list[bytes]()
        try:
            for frame in frames:
                if relay.done:
                    break
                if chunk := relay.feed(frame):
                    chunks.append(chunk)
        except _DECODE_ERRORS as error:
            fault = _as_fault(error)
            if fault.usage is not None:
                relay.usage = fault.usage.following(relay.usage)
            return chunks, fault
        return chunks, None

    def end(self) -> list[bytes]:
        return [self._relay.end()]


async def _read(
    response: UpstreamResponse,
    framing: EventFrameDecoder,
    reader: _FrameReader[_T],
    first: list[_T],
    frames: list[ReceivedStreamFrame],
) -> AsyncGenerator[list[_T], None]:
    """Read a response to its end, in batches: `first` is read already, and of `frames` only the framing.

    A failure is raised after everything before it was yielded. Large input is read in slices, between which the event
    loop serves others, and a large frame in a thread.
    """
    failure: UpstreamError | None
    for at in range(0, max(1, len(frames)), _MANY_FRAMES):
        if at:
            await asyncio.sleep(0)
        some = frames[at : at + _MANY_FRAMES]
        batch, failure = await run_in_thread(reader.read, some) if _has_large(some) else reader.read(some)
        if batch := first + batch:
            yield batch
        if failure is not None:
            raise failure
        first = []
    if not reader.done:
        async for chunk in response:
            for piece in _slices(chunk):
                some = framing.feed(piece)
                # A frame that is larger than a slice began in an earlier one, so that it is the first of its piece.
                if some and len(some[0].data) > LARGE_BODY:
                    batch, failure = await run_in_thread(reader.read, some)
                else:
                    batch, failure = reader.read(some)
                if batch:
                    yield batch
                if failure is not None:
                    raise failure
                if reader.done:
                    break
                if piece is not chunk:  # see `HttpModelStream.open`
                    await asyncio.sleep(0)
            if reader.done:
                break
    if not reader.done:
        some = framing.end()
        batch, failure = await run_in_thread(reader.read, some) if _has_large(some) else reader.read(some)
        if failure is None and not reader.done:
            with wrong_types_as_malformed:
                batch += reader.end()
        if batch:
            yield batch
        if failure is not None:
            raise failure
    # Behind the last event there is at most the end of the body: the connection is kept for the next request.
    response.release()


async def _restored(rewriter: EmulatedResponseRewriter, events: list[StepEvent]) -> list[StepEvent]:
    """Return the events for the client; long texts are searched in a thread."""
    if sum([len(event.text) for event in events if type(event) is PartDelta]) > LARGE_BODY:
        return await run_in_thread(rewriter.restore, events)
    return rewriter.restore(events)


def _slices(chunk: bytes) -> Sequence[bytes]:
    """Cut a chunk into pieces of bounded size; most are one already."""
    if len(chunk) <= _SLICE_BYTES:
        return (chunk,)
    return [chunk[at : at + _SLICE_BYTES] for at in range(0, len(chunk), _SLICE_BYTES)]


def _has_large(frames: list[ReceivedStreamFrame]) -> bool:
    return max(map(len, map(_DATA, frames)), default=0) > LARGE_BODY


# Errors of a decoder over a value that has not the type of its field in the dialect, such as a list in place of a text.
_WRONG_TYPE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
_DECODE_ERRORS = (UpstreamError, *_WRONG_TYPE)


def _as_fault(error: Exception) -> UpstreamError:
    return error if isinstance(error, UpstreamError) else _unreadable(error)


def _unreadable(error: Exception) -> InvalidUpstreamAnswer:
    return InvalidUpstreamAnswer(
        f"The upstream's answer does not have the form of its API: {type(error).__name__}: {str(error)[:200]}"
    )


def decode_error(codec: UpstreamCodec, response: UpstreamResponse, raw: bytes) -> UpstreamError:
    """Decode an error of an upstream, with the usage that it may report."""
    with wrong_types_as_malformed:
        fault = codec.decode_error(response.status, response.headers, raw)
    with suppress(InvalidUpstreamAnswer, *_WRONG_TYPE):
        fault.usage = fault.usage or codec.usage_of(decode_response_body(raw)[0])
    return fault


class _WrongTypes:
    """Map errors over values of a wrong type to `InvalidUpstreamAnswer`, the upstream's fault."""

    # Not a generator with `contextmanager`, which takes five times as long.

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _WRONG_TYPE):
            raise _unreadable(error) from error


wrong_types_as_malformed = _WrongTypes()
