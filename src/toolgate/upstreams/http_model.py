"""A model behind HTTP: the one place where a request leaves for an upstream and its answer comes in.

It joins a dialect's upstream half, which does no I/O, with the transport, which knows no dialect.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from toolgate import __version__
from toolgate.conversation.errors import Garbled, Rejected, UpstreamFault
from toolgate.conversation.events import ModelResponse, StepEvent, Usage
from toolgate.conversation.fold import fold, unfold
from toolgate.conversation.message import ToolCall
from toolgate.conversation.names import Spellings
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.size import is_larger
from toolgate.conversation.stock import names_of
from toolgate.dialects.dialect import Dialect, Quirks, Relay
from toolgate.dialects.dialect import Reply as Presentation
from toolgate.engine.offload import LARGE, off_loop
from toolgate.engine.ports import Answer
from toolgate.upstreams.adapt import Restorer, adapt
from toolgate.upstreams.substitutes import EventRewriter, in_turn, substitute
from toolgate.upstreams.tokens import estimate
from toolgate.upstreams.transport import Reply, Timeouts, Transport
from toolgate.upstreams.wrappers.answers import noted
from toolgate.wire.frames import MAX_FRAME, Frame, FrameDecoder, check_size
from toolgate.wire.jsontext import decode_whole, encode, excerpt

OWN_HEADERS = {"content-type": "application/json", "user-agent": f"toolgate/{__version__}"}
_SLICE_BYTES = 32 * 1024
_MANY_FRAMES = 500


class Endpoint(Struct, frozen=True):
    """Where and how to reach an upstream."""

    name: str
    dialect: Dialect
    base_url: str
    headers: Mapping[str, str]
    timeouts: Timeouts = Timeouts()


class HttpModel:
    """One model of one upstream."""

    def __init__(
        self,
        transport: Transport,
        endpoint: Endpoint,
        model: str,
        quirks: Quirks,
        note: Callable[[str, str], None] = lambda upstream, outcome: None,
    ) -> None:
        """`note` is told of every attempt: the upstream, and `ok` or the failure's code."""
        self._note = note
        self._transport = transport
        self._endpoint = endpoint
        self._half = endpoint.dialect.upstream
        self._model = model
        self._quirks = quirks
        own = {**OWN_HEADERS, **endpoint.headers}
        self._headers = {
            True: {**own, "accept": endpoint.dialect.stream_type},
            False: {**own, "accept": "application/json"},
        }

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece has arrived; what is refused for a reason that can be mended is asked again."""
        try:
            return await self._ask(request)
        except Rejected as fault:
            mended = self._endpoint.dialect.mend_refused(request, fault)
            if mended is None:
                raise
            without, warning = mended
            return noted(await self._ask(without), warning)

    async def _ask(self, request: ModelRequest) -> Answer:
        endpoint, half = self._endpoint, self._half
        if is_larger(request, LARGE):
            encoded = await off_loop(self._encode, request)
        else:
            encoded = self._encode(request)
        asked, body, dropped, restorer = encoded
        headers = self._headers[request.stream]
        if request.headers and request.dialect == endpoint.dialect.name:
            headers = {**headers, **request.headers}
        url = endpoint.base_url + half.path(request)
        try:
            reply = await self._transport.post(url, headers, body, timeouts=endpoint.timeouts)
            try:
                if not 200 <= reply.status < 300:
                    said = await reply.read()
                    with _reading():
                        if len(said) > LARGE:
                            raise await off_loop(half.decode_error, reply.status, reply.headers, said)
                        raise half.decode_error(reply.status, reply.headers, said)
                answer: Answer
                if request.stream:
                    answer = await _opened(endpoint, asked, reply, dropped, restorer)
                else:
                    answer = await _read_whole(endpoint, asked, await reply.read(), dropped, restorer)
            except BaseException:
                await reply.aclose()
                raise
        except UpstreamFault as fault:
            self._note(endpoint.name, fault.code)
            raise
        self._note(endpoint.name, "ok")
        return answer

    def _encode(self, request: ModelRequest) -> tuple[ModelRequest, bytes, tuple[str, ...], EventRewriter | None]:
        """Return the request as the upstream can take it, its body, what the body cannot say, and what undoes it all."""
        dialect = self._endpoint.dialect.name
        adapted = adapt(request, dialect, self._quirks)
        changed = substitute(adapted.request, dialect, self._quirks)
        body, dropped = self._half.encode_request(changed.request, self._quirks)
        body["model"] = self._model
        rewriters = changed.rewriters
        if adapted.originals:
            rewriters = (*rewriters, Restorer(adapted.originals))
        return changed.request, encode(body), dropped + adapted.dropped + changed.dropped, in_turn(rewriters)


class WholeAnswer:
    """An answer that came in one piece; it is understood before it is handed out, so that a bad one can be asked again."""

    __slots__ = (
        "_body",
        "_half",
        "_raw",
        "_request",
        "_response",
        "_restorer",
        "dialect",
        "upstream",
        "warnings",
        "whole",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        request: ModelRequest,
        raw: bytes,
        warnings: tuple[str, ...],
        restorer: EventRewriter | None,
    ) -> None:
        self.upstream = endpoint.name
        self.whole = True
        self.dialect = None if request.stream else endpoint.dialect.name
        self.warnings = warnings
        self._half = endpoint.dialect.upstream
        self._request = request
        self._restorer = restorer
        self._body, self._raw = None, None
        try:
            self._body, self._raw = decode_whole(raw)
        except Garbled:
            streamed = _gather(endpoint.dialect, request, raw)
            if streamed is None:
                raise Garbled(f"The upstream's answer is not JSON: {excerpt(raw)}") from None
            self.dialect, self._response = None, streamed
            return
        try:
            with _reading():
                self._response = self._half.decode_response(self._body, request)
        except UpstreamFault as fault:
            fault.usage = self._half.usage_of(self._body)
            raise
        if request.tools and _names_otherwise(self._response, request):
            self.dialect = None  # its events are translated, and corrected on the way

    @property
    def reported(self) -> Usage | None:
        """What the upstream says that it used."""
        return self._response.usage

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """All of it in one batch."""
        events = unfold(self._response)
        yield self._restorer.restore(events) if self._restorer else events

    def retell_whole(self, reply: Presentation, usage: Usage | None = None) -> tuple[bytes, ModelResponse]:
        """The answer as a client of the same dialect should see it, and what it says; `usage` stands in for none."""
        response = self._response
        if response.usage is None and usage is not None:
            response = replace(response, usage=usage)
        with _reading():
            told = self._half.relay_response(self._body, response, self._request, reply)
        return self._raw if self._raw is not None and told is self._body else encode(told), response

    async def aclose(self) -> None:
        """Nothing is left open."""


def _gather(dialect: Dialect, request: ModelRequest, raw: bytes) -> ModelResponse | None:
    """Read a stream that came though a whole answer was asked for; None if the bytes are no stream of the dialect."""
    if dialect.framing == "sse" and not raw[:_SLICE_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(
        (b"data:", b"event:", b":", b"id:")
    ):
        return None
    framing, decoder = dialect.frame_decoder(), dialect.upstream.decoder(request)
    try:
        frames = [frame for piece in _slices(raw) for frame in framing.feed(piece)]
        events, failure = _hear([*frames, *framing.end()], decoder)
    except Garbled:
        return None
    if failure is not None:
        failure.usage = failure.usage or decoder.usage
        raise failure
    with _reading():
        return fold([*events, *([] if decoder.done else decoder.end())])


def _names_otherwise(response: ModelResponse, request: ModelRequest) -> bool:
    """Whether a call means a declared tool by another spelling of its name."""
    names = names_of(request.tools)
    called = [part.name for part in response.parts if isinstance(part, ToolCall) and part.name not in names]
    spellings = Spellings(names)
    return any(spellings.meant(name) is not None for name in called)


async def _read_whole(
    endpoint: Endpoint, request: ModelRequest, raw: bytes, warnings: tuple[str, ...], restorer: EventRewriter | None
) -> WholeAnswer:
    """Decode a whole answer, beside the event loop if it is large."""
    if len(raw) > LARGE:
        return await off_loop(WholeAnswer, endpoint, request, raw, warnings, restorer)
    return WholeAnswer(endpoint, request, raw, warnings, restorer)


async def _opened(
    endpoint: Endpoint, request: ModelRequest, reply: Reply, warnings: tuple[str, ...], restorer: EventRewriter | None
) -> Answer:
    """The streamed answer once its first frames are here and tell of no failure.

    An upstream may answer a streaming request with one JSON body: an error with status 200, or a whole answer.
    """
    answer = StreamedAnswer(endpoint, request, reply, warnings, restorer)
    blanks = 0
    async for start in reply:
        if not start.strip():  # it says nothing in any framing, so it need not be kept
            blanks += len(start)
            check_size(blanks, MAX_FRAME)
            continue
        if _is_one_body(start, endpoint.dialect):
            return await _read_whole(endpoint, request, start + await reply.read(), warnings, restorer)
        try:
            with _reading():
                await answer.open(start)
        except UpstreamFault as fault:
            fault.usage = fault.usage or answer.reported
            raise
        return answer
    raise Garbled("The upstream's stream ended before it began.")


def _is_one_body(start: bytes, dialect: Dialect) -> bool:
    """Whether this is the start of an HTML page, or of a JSON body where events were asked for."""
    first = start[:_SLICE_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return first == b"<" or (first in (b"{", b"[") and dialect.framing == "sse")


class StreamedAnswer:
    """An answer on its way in: read as events, or passed on as frames to a client of its own dialect."""

    def __init__(
        self,
        endpoint: Endpoint,
        request: ModelRequest,
        reply: Reply,
        warnings: tuple[str, ...],
        restorer: EventRewriter | None,
    ) -> None:
        self.upstream = endpoint.name
        self.whole = False
        self.dialect: str | None = endpoint.dialect.name
        self.warnings = warnings
        self._endpoint = endpoint
        self._request = request
        self._reply = reply
        self._restorer = restorer
        self._framing = endpoint.dialect.frame_decoder()
        self._decoder = endpoint.dialect.upstream.decoder(request)
        self._frames: list[Frame] = []  # all that were read before anybody listened, for a relay
        self._events: list[StepEvent] = []  # what the decoder made of them
        self._unheard: list[Frame] = []  # those that the decoder did not need to look at yet

    @property
    def reported(self) -> Usage | None:
        """What the upstream has reported so far."""
        return self._decoder.usage

    async def open(self, start: bytes) -> None:
        """Read until something is said; what was read is kept for whichever way the answer is told."""
        chunk: bytes | None = start
        while not self._events and chunk is not None:
            for piece in _slices(chunk):
                await self._keep_bounded(self._framing.feed(piece))
                if piece is not chunk:
                    await asyncio.sleep(0)
            if not self._events:
                chunk = await anext(self._reply, None)
        if chunk is None:
            await self._keep_bounded(self._framing.end())
            if not self._decoder.done and not self._unheard:
                self._events += self._decoder.end()

    async def _keep_bounded(self, frames: list[Frame]) -> None:
        """Keep the frames, and decode those that are large beside the event loop."""
        if _has_large(frames):
            await off_loop(self._keep, frames)
        else:
            self._keep(frames)

    def _keep(self, frames: list[Frame]) -> None:
        self._frames += frames
        for number, frame in enumerate(frames):
            if self._events or self._decoder.done:
                self._unheard += frames[number:]
                return
            self._events += self._decoder.feed(frame)

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches, as the network delivered them."""
        decoder, restorer = self._decoder, self._restorer
        first, self._events = self._events, []
        async with aclosing(_told(self._reply, self._framing, decoder, first, self._unheard)) as batches:
            async for batch in batches:
                # Of a freeform call nothing is told until it is whole, so a batch may come out empty.
                if told := restorer.restore(batch) if restorer else batch:
                    yield told
                if restorer and restorer.done:
                    return

    def retell(self, reply: Presentation) -> "RetoldStream":
        """The answer as frames for a client of the same dialect."""
        relay = self._endpoint.dialect.upstream.relay(self._request, reply)
        return RetoldStream(self._request, relay, self._reply, self._framing, self._frames)

    async def aclose(self) -> None:
        """Stop listening; an unfinished answer is cancelled at the upstream."""
        await self._reply.aclose()


class RetoldStream:
    """A streamed answer as it passes to a client of its own dialect; one that reports no usage ends with an estimate."""

    def __init__(
        self, request: ModelRequest, relay: Relay, reply: Reply, framing: FrameDecoder, frames: list[Frame]
    ) -> None:
        self.relay = relay
        self._request = request
        self._reply = reply
        self._framing = framing
        self._frames = frames

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The frames, in batches as the network delivered them."""
        passing = _Passing(self.relay)
        async with aclosing(_told(self._reply, self._framing, passing, [], self._frames)) as batches:
            async for batch in batches:
                yield b"".join(batch)
        if self.relay.lacks_usage:
            yield self.relay.end_with(await estimate(self._request, self.relay.received()))


class _Passing:
    """A relay in the form of a decoder: what it tells is bytes."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    @property
    def done(self) -> bool:
        return self._relay.done

    def feed(self, frame: Frame) -> list[bytes]:
        passed = self._relay.feed(frame)
        return [passed] if passed else []

    def end(self) -> list[bytes]:
        return [self._relay.end()]


_T = TypeVar("_T")


class _Listener(Protocol[_T]):
    """What hears frames and tells something: a decoder tells events, a relay bytes."""

    @property
    def done(self) -> bool: ...

    def feed(self, frame: Frame) -> list[_T]: ...

    def end(self) -> list[_T]: ...


async def _told(
    reply: Reply, framing: FrameDecoder, listener: _Listener[_T], first: list[_T], frames: list[Frame]
) -> AsyncGenerator[list[_T], None]:
    """What the listener tells of the reply: `first` is known already, and `frames` were read before.

    A failure comes after all before it. Whatever is large is read in slices, between which the event loop serves others.
    """
    failure: UpstreamFault | None
    for at in range(0, max(1, len(frames)), _MANY_FRAMES):
        told, failure = await _hear_bounded(frames[at : at + _MANY_FRAMES], listener)
        if told := first + told:
            yield told
        if failure is not None:
            raise failure
        first = []
    if not listener.done:
        async for chunk in reply:
            for piece in _slices(chunk):
                told, failure = await _hear_bounded(framing.feed(piece), listener)
                if told:
                    yield told
                if failure is not None:
                    raise failure
                if listener.done:
                    break
                if piece is not chunk:
                    await asyncio.sleep(0)
            if listener.done:
                break
    if not listener.done:
        told, failure = await _hear_bounded(framing.end(), listener)
        if failure is None and not listener.done:
            with _reading():
                told += listener.end()
        if told:
            yield told
        if failure is not None:
            raise failure
    reply.release()


def _slices(chunk: bytes) -> Sequence[bytes]:
    """Cut a chunk into pieces of bounded size; most are one already."""
    if len(chunk) <= _SLICE_BYTES:
        return (chunk,)
    return [chunk[at : at + _SLICE_BYTES] for at in range(0, len(chunk), _SLICE_BYTES)]


async def _hear_bounded(frames: list[Frame], listener: _Listener[_T]) -> tuple[list[_T], UpstreamFault | None]:
    """The same as `_hear`, beside the event loop if a frame is large."""
    return await off_loop(_hear, frames, listener) if _has_large(frames) else _hear(frames, listener)


def _has_large(frames: list[Frame]) -> bool:
    return any(len(frame.data) > LARGE for frame in frames)


def _hear(frames: list[Frame], listener: _Listener[_T]) -> tuple[list[_T], UpstreamFault | None]:
    """What these frames tell, up to the one that tells of a failure."""
    told: list[_T] = []
    try:
        for frame in frames:
            if listener.done:
                break
            told += listener.feed(frame)
    except UpstreamFault as failure:
        return told, failure
    except _WRONG_TYPE as error:
        return told, _unreadable(error)
    return told, None


_WRONG_TYPE = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What decoding raises over a value that is not of the type that the dialect has in its place."""


def _unreadable(error: Exception) -> Garbled:
    return Garbled(f"The upstream's answer has not the form of its API: {type(error).__name__}: {str(error)[:200]}")


@contextmanager
def _reading() -> Iterator[None]:
    """Map what is raised over values of a wrong type to `Garbled`: the upstream is at fault, another may be asked."""
    try:
        yield
    except _WRONG_TYPE as error:
        raise _unreadable(error) from error
