"""A model behind HTTP: the one place where a request leaves for an upstream and its answer comes in.

It joins a dialect's upstream half, which does no I/O, with the transport, which knows no dialect.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct

from toolgate.conversation.errors import Garbled
from toolgate.conversation.events import ModelResponse, StepEvent
from toolgate.conversation.fold import unfold
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.dialect import Dialect, Quirks, Relay
from toolgate.dialects.dialect import Reply as Presentation
from toolgate.engine.ports import Answer
from toolgate.upstreams.adapt import Restorer, adapt
from toolgate.upstreams.transport import Reply, Timeouts, Transport
from toolgate.wire.frames import Frame, FrameDecoder
from toolgate.wire.jsontext import decode_event, encode, excerpt


class Endpoint(Struct, frozen=True):
    """Where and how to reach an upstream."""

    name: str
    dialect: Dialect
    base_url: str
    headers: Mapping[str, str]
    timeouts: Timeouts = Timeouts()


class HttpModel:
    """One model of one upstream."""

    def __init__(self, transport: Transport, endpoint: Endpoint, model: str, quirks: Quirks) -> None:
        self._transport = transport
        self._endpoint = endpoint
        self._half = endpoint.dialect.upstream
        self._model = model
        self._quirks = quirks

    async def ask(self, request: ModelRequest) -> Answer:
        """The answer, once its first piece has arrived."""
        endpoint, half = self._endpoint, self._half
        adapted = adapt(request, endpoint.dialect.name, self._quirks)
        body, dropped = half.encode_request(adapted.request, self._quirks)
        body["model"] = self._model
        headers = {"content-type": "application/json", "accept": self._accept(request), **endpoint.headers}
        url = endpoint.base_url + half.path(request)
        reply = await self._transport.post(url, headers, encode(body), timeouts=endpoint.timeouts)
        try:
            if not 200 <= reply.status < 300:
                raise half.decode_error(reply.status, reply.headers, await reply.read())
            restorer = Restorer(adapted.originals) if adapted.originals else None
            if not request.stream:
                body_read = await _read_json(reply)
                return WholeAnswer(endpoint, adapted.request, body_read, dropped, restorer)
            return await _opened(endpoint, adapted.request, reply, dropped, restorer)
        except BaseException:
            await reply.aclose()
            raise

    def _accept(self, request: ModelRequest) -> str:
        return self._endpoint.dialect.stream_type if request.stream else "application/json"


async def _read_json(reply: Reply) -> Any:
    return _json_of(await reply.read())


def _json_of(body: bytes) -> Any:
    try:
        return decode_event(body)
    except Garbled:
        raise Garbled(f"The upstream's answer is not JSON: {excerpt(body)}") from None


class WholeAnswer:
    """An answer that came in one piece; it is understood before it is handed out, so that a bad one can be asked again."""

    def __init__(
        self,
        endpoint: Endpoint,
        request: ModelRequest,
        body: Any,
        warnings: tuple[str, ...],
        restorer: Restorer | None,
    ) -> None:
        self.upstream = endpoint.name
        self.dialect = None if request.stream else endpoint.dialect.name
        self.warnings = warnings
        self._half = endpoint.dialect.upstream
        self._request = request
        self._body = body
        self._restorer = restorer
        self._response = self._half.decode_response(body, request)

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """All of it in one batch."""
        events = unfold(self._response)
        yield self._restorer.restore(events) if self._restorer else events

    def retell_whole(self, reply: Presentation) -> tuple[dict[str, Any], ModelResponse]:
        """The answer as a client of the same dialect should see it, and what it says."""
        return self._half.relay_response(self._body, self._request, reply)

    async def aclose(self) -> None:
        """Nothing is left open."""


async def _opened(
    endpoint: Endpoint, request: ModelRequest, reply: Reply, warnings: tuple[str, ...], restorer: Restorer | None
) -> Answer:
    """The streamed answer once its first frames are here and tell of no failure.

    An upstream may answer a streaming request with one JSON body: an error with status 200, or a whole answer.
    """
    answer = StreamedAnswer(endpoint, request, reply, warnings, restorer)
    start = b""
    async for chunk in reply:
        start = start + chunk
        if not start.strip():
            continue
        if _is_one_body(start, endpoint.dialect):
            return WholeAnswer(endpoint, request, _json_of(start + await reply.read()), warnings, restorer)
        await answer.open(start)
        return answer
    raise Garbled("The upstream's stream ended before it began.")


def _is_one_body(start: bytes, dialect: Dialect) -> bool:
    """Whether this is the start of an HTML page, or of a JSON body where events were asked for."""
    first = start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return first == b"<" or (first in (b"{", b"[") and dialect.framing == "sse")


class StreamedAnswer:
    """An answer on its way in: read as events, or passed on as frames to a client of its own dialect."""

    def __init__(
        self,
        endpoint: Endpoint,
        request: ModelRequest,
        reply: Reply,
        warnings: tuple[str, ...],
        restorer: Restorer | None,
    ) -> None:
        self.upstream = endpoint.name
        self.dialect: str | None = endpoint.dialect.name
        self.warnings = warnings
        self._endpoint = endpoint
        self._request = request
        self._reply = reply
        self._restorer = restorer
        self._framing = endpoint.dialect.frame_decoder()
        self._decoder = endpoint.dialect.upstream.decoder(request)
        self._frames: list[Frame] = []
        self._events: list[StepEvent] = []

    async def open(self, start: bytes) -> None:
        """Read until something is said; what was read is kept for whichever way the answer is told."""
        chunk: bytes | None = start
        while not self._events and chunk is not None:
            self._hear(self._framing.feed(chunk))
            if not self._events:
                chunk = await anext(self._reply, None)
        if chunk is None:
            self._hear(self._framing.end())
            self._events += self._decoder.end()

    def _hear(self, frames: list[Frame]) -> None:
        self._frames += frames
        for frame in frames:
            self._events += self._decoder.feed(frame)

    async def events(self) -> AsyncIterator[list[StepEvent]]:
        """The step's events in batches, as the network delivered them."""
        decoder, restorer = self._decoder, self._restorer
        events, self._events = self._events, []
        yield restorer.restore(events) if restorer else events
        if not decoder.done:
            async for chunk in self._reply:
                events = []
                for frame in self._framing.feed(chunk):
                    events += decoder.feed(frame)
                if events:
                    yield restorer.restore(events) if restorer else events
                if decoder.done:
                    break
        if not decoder.done:
            events = [event for frame in self._framing.end() for event in decoder.feed(frame)] + decoder.end()
            yield restorer.restore(events) if restorer else events
        self._reply.release()

    def retell(self, reply: Presentation) -> "RetoldStream":
        """The answer as frames for a client of the same dialect."""
        relay = self._endpoint.dialect.upstream.relay(self._request, reply)
        return RetoldStream(relay, self._reply, self._framing, self._frames)

    async def aclose(self) -> None:
        """Stop listening; an unfinished answer is cancelled at the upstream."""
        await self._reply.aclose()


class RetoldStream:
    """A streamed answer as it passes to a client of its own dialect."""

    def __init__(self, relay: Relay, reply: Reply, framing: FrameDecoder, frames: list[Frame]) -> None:
        self.relay = relay
        self._reply = reply
        self._framing = framing
        self._frames = frames

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The frames, in batches as the network delivered them."""
        relay = self.relay
        yield b"".join([relay.feed(frame) for frame in self._frames])
        if not relay.done:
            async for chunk in self._reply:
                passed = b"".join([relay.feed(frame) for frame in self._framing.feed(chunk)])
                if passed:
                    yield passed
                if relay.done:
                    break
        if not relay.done:
            yield b"".join([relay.feed(frame) for frame in self._framing.end()]) + relay.end()
        self._reply.release()
