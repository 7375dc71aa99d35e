"""One handler answers every dialect: check the request, ask the model, tell the answer, whole or streamed."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import GatewayFault, ToolgateError
from toolgate.conversation.events import Delta, Finish, ModelResponse, PartEnd, PartStart, RunEvent
from toolgate.conversation.fold import fold, is_empty
from toolgate.conversation.message import ToolCall, is_blank
from toolgate.conversation.request import ModelRequest
from toolgate.conversation.size import are_larger
from toolgate.dialects.dialect import Dialect, Encoder, Reply, ServerHalf
from toolgate.engine.loop import WholeCalls, run
from toolgate.engine.offload import LARGE, off_loop
from toolgate.engine.ports import Answer, Heard, Model, Relayable, Retold
from toolgate.server.app import Call, Handler
from toolgate.server.checks import RequestCheck
from toolgate.server.exchange import Exchange, Header
from toolgate.server.workshop.lasting import Lasting
from toolgate.server.workshop.tooling import Tooling, untold
from toolgate.server.workshop.wanted import Wanted, read_wanted
from toolgate.telemetry.traced import RequestRecord, Traced
from toolgate.upstreams.router import Route, Router
from toolgate.upstreams.tokens import estimate

EMPTY_ANSWER = "the model gave an empty answer"
ESTIMATED: Header = (b"x-toolgate-usage", b"estimated")
"""Says that tokens were counted here and not by the upstream."""

_MANY_ITEMS = 500
_MANY_EVENTS = 200
_PING = b": ping\n"  # no blank line: some clients take one for an empty event


class Pace(Struct, frozen=True):
    """Seconds: how long a stream waits for its first event before it begins with a comment, and between comments."""

    first_event: float = 10.0
    keepalive: float = 15.0


class Outlet(Protocol):
    """Where an answer goes: an HTTP exchange, or whatever keeps it for somebody who comes back for it."""

    @property
    def client_left(self) -> bool:
        """Whether nobody waits for the answer any more."""

    def cancel_when_client_leaves(self) -> None:
        """From now on the running task is cancelled when nobody waits any more."""

    async def respond(self, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Answer in one piece."""

    async def start(self, content_type: bytes, headers: Iterable[Header] = ()) -> None:
        """Begin a streamed answer."""

    async def write(self, chunk: bytes) -> None:
        """Take a piece of a streamed answer."""

    def idle_for(self) -> float:
        """Seconds since the last piece."""

    async def end(self) -> None:
        """The streamed answer is complete."""


class Question(Struct, frozen=True):
    """A request on its way to an answer, with all that is needed to tell the answer.

    `asked` is what the model is asked: the request itself, unless the server's tools have a part in it.
    """

    exchange: Outlet
    dialect: Dialect
    half: ServerHalf
    request: ModelRequest
    model: Model
    asked: ModelRequest
    reply: Reply
    record: RequestRecord
    whole_arguments: bool = False
    encoder: Encoder | None = None
    """One that goes on with what was told already."""
    told: Callable[[], Awaitable[None]] = untold
    """To be called when the client has heard the answer."""


class Keeper(Protocol):
    """Keeps an answer before the client hears that it is complete."""

    async def before_chunk(self, chunk: bytes) -> None:
        """Frames are about to go out."""

    async def before_whole(self, body: bytes) -> None:
        """A whole answer is about to go out."""


class ChatKeeper(Keeper, Protocol):
    """Keeps an answer of a plain chat, before the client hears it or behind it."""

    def told(self) -> None:
        """The answer has gone out."""


class Chats(Protocol):
    """Knows which plain chats are kept."""

    def prepared(self, call: Call, question: Question) -> tuple[Question, ChatKeeper | None]:
        """The question, and whoever keeps its answer if it is to be kept."""


class Conversations:
    """Answers requests of any dialect."""

    def __init__(
        self,
        router: Router,
        pace: Pace,
        traced: Traced,
        tooling: Tooling | None = None,
        chats: Chats | None = None,
    ) -> None:
        """Without `tooling` there are no server tools, without `chats` no plain chat is kept."""
        self._router = router
        self._tooling = tooling
        self._chats = chats
        self._traced = traced
        self._check = RequestCheck()
        self._pace = pace

    def handler(self, dialect: Dialect) -> Handler:
        """A handler for one dialect."""

        async def handle(call: Call) -> None:
            await self.converse(call, await self.question(call, dialect, dialect.server, await call.exchange.json()))

        handle.__doc__ = f"Answer a request of the {dialect.name} dialect, whole or streamed."
        return handle

    def with_model(self, call: Call, body: Any) -> Any:
        """Fill in the default model where a request body names none."""
        return self._router.with_model(body, call.caller.may_use)

    def converse(self, call: Call, question: Question) -> Awaitable[None]:
        """Answer, and have question and answer kept if they are to be."""
        if self._chats is None:
            return self.answer(question)
        question, keeper = self._chats.prepared(call, question)
        return self.answer(question) if keeper is None else self._kept(question, keeper)

    async def _kept(self, question: Question, keeper: ChatKeeper) -> None:
        await self.answer(question, keeper)
        keeper.told()

    async def question(
        self, call: Call, dialect: Dialect, half: ServerHalf, body: Any, lasting: Lasting | None = None
    ) -> Question:
        """The question that this body asks, checked and ready; with `lasting`, for a run that outlives its process."""
        body, wanted = read_wanted(body, call.exchange, self._tooling.terms.wanted if self._tooling else None)
        body = self.with_model(call, body)
        if lasting is not None or _is_large(call.exchange, body):
            request = await off_loop(half.decode_request, body)
        else:
            request = half.decode_request(body)
        if dialect.passed_headers:
            request = with_headers(request, call.exchange, dialect.passed_headers)
        record = call.record
        route = self._router.find(request.model)
        record.dialect, record.model, record.stream = dialect.name, route.name, request.stream
        call.caller.require_model(route.name, request.model)
        whole = route.whole_arguments or call.exchange.named.get(b"x-toolgate-arguments") == b"whole"
        relay = request.relay and not whole
        request = replace(request, caller=call.caller.name, tally=record.tally, relay=relay)
        told: Callable[[], Awaitable[None]] = untold
        if wanted is None and not (request.tools and any(tool.kind == "hosted" for tool in request.tools)):
            request = asked = await self._check.check(request, route)
            model = route.model
        else:
            wanted = wanted or Wanted()
            if wanted.status != "events" and not dialect.reads_server_tools(request):
                dialect = replace(dialect, native=False, pausing=False)
            request, asked, model, told = await self._equipped(call, request, route, wanted, dialect, body, lasting)
        events = wanted is not None and wanted.status == "events"
        reply = Reply(
            half.reply_id(), int(time.time()), request.model, events, record.times, dialect.native, record.request_id
        )
        return Question(call.exchange, dialect, half, request, model, asked, reply, record, whole, told=told)

    async def _equipped(
        self,
        call: Call,
        request: ModelRequest,
        route: Route,
        wanted: Wanted,
        dialect: Dialect,
        body: Any,
        lasting: Lasting | None,
    ) -> tuple[ModelRequest, ModelRequest, Model, Callable[[], Awaitable[None]]]:
        """The request as the client made it and as the model is asked, the model with the server's tools, if wanted, and
        what is to be called when the client has heard the answer."""
        tooling = self._tooling
        if tooling is None or not tooling.concerns(request, wanted, dialect):
            if tooling is None and (wanted.wish or wanted.execution == "auto"):
                request = replace(request, warnings=(*request.warnings, "server tools are turned off here"))
            request = await self._check.check(request, route)
            return request, request, route.model, untold
        if lasting is not None:
            await tooling.brought(lasting.past.messages)
        restored = await tooling.restored(call.caller, request, dialect)
        outfit = tooling.outfit(call.caller, restored, route, wanted, dialect)
        asked = await self._check.check(outfit.request, route, ours=outfit.names)
        outfit = replace(outfit, request=asked)
        request_id = call.record.request_id
        equipment = await tooling.equip(call.caller, outfit, route, wanted, dialect, body, request_id, lasting)
        request = replace(request, warnings=(*asked.warnings, *outfit.selection.warnings))
        return request, equipment.request, equipment.model, equipment.told

    async def dismiss(self, run: str) -> None:
        """Close what a cancelled run has asked people."""
        if self._tooling is not None:
            await self._tooling.dismiss(run)

    def answer(self, question: Question, keeper: Keeper | None = None) -> Awaitable[None]:
        """Ask the model and tell the client, whole or streamed as it wants."""
        question.exchange.cancel_when_client_leaves()
        telling = (self._stream if question.request.stream else self._tell_whole)(question, keeper)
        return telling if question.told is untold else _told(question, telling)

    async def _tell_whole(self, question: Question, keeper: Keeper | None) -> None:
        try:
            answer = await question.model.ask(question.asked)
            try:
                body, response = await _whole(question, answer)
            finally:
                if not answer.whole:
                    await answer.aclose()
            _note_response(question.record, answer, response)
        finally:
            await question.record.settle_usage()
        if keeper is not None:
            await keeper.before_whole(body)
        headers = _headers(question, answer, *([EMPTY_ANSWER] if is_empty(response) else ()))
        if response.usage is not None and response.usage.estimated:
            headers.append(ESTIMATED)
        await question.exchange.respond(200, body, headers)

    async def _stream(self, question: Question, keeper: Keeper | None) -> None:
        """The first piece decides the status; after a patient wait the stream begins without it."""
        exchange, pace = question.exchange, self._pace
        asking = asyncio.ensure_future(question.model.ask(question.asked))
        self._traced.stream_opened()
        try:
            await asyncio.wait({asking}, timeout=pace.first_event)
            answer = asking.result() if asking.done() else None
            comment = _PING if question.dialect.framing == "sse" else b""
            await exchange.start(question.dialect.stream_type.encode(), _headers(question, answer))
            if answer is None:
                await exchange.write(comment)
            async with _kept_alive(exchange, pace.keepalive, comment):
                await self._tell(question, asking, keeper, len(answer.warnings) if answer else 0)
        finally:
            self._traced.stream_closed()
            try:
                await _close(asking)
            finally:
                await question.record.settle_usage()
        await exchange.end()

    async def _tell(
        self, question: Question, asking: asyncio.Future[Answer], keeper: Keeper | None, warned: int
    ) -> None:
        """Everything after the headers: a failure is told in the dialect's own way, and so are further warnings.

        `warned` is how many of them the headers hold.
        """
        teller: Encoder | Heard | None = None
        late, told_late = list[str](), 0  # what is odd about the answer itself
        try:
            answer = await asking
            question.record.upstream = answer.upstream
            if question.request.relay and answer.dialect == question.request.dialect:
                retold = cast(Relayable, answer).retell(question.reply)
                teller, late = retold.relay, retold.relay.names.warnings
                chunks = _relayed(question, retold, late)
            else:
                teller = encoder = question.encoder or question.half.encoder(question.request, question.reply)
                chunks = _encoded(question, answer, encoder, late)
            async with aclosing(chunks):
                async for chunk in chunks:
                    if len(answer.warnings) > warned:
                        await _warn(question, answer.warnings[warned:])
                        warned = len(answer.warnings)
                    if len(late) > told_late:
                        await _warn(question, late[told_late:])
                        told_late = len(late)
                    if keeper is not None:
                        await keeper.before_chunk(chunk)
                    await _write(question, chunk)
        except ToolgateError as error:
            await _fail(question, teller, error)
        except asyncio.CancelledError:
            if question.exchange.client_left:
                raise
            await _fail(question, teller, question.record.why_ended())
        except Exception as error:  # noqa: BLE001  # the HTTP edge: the client hears of it, the log has the whole story
            self._traced.crashed(question.record, error)
            await _fail(question, teller, GatewayFault("An internal error occurred; the server's log has it."))


async def _told(question: Question, telling: Awaitable[None]) -> None:
    """Tell the client, and then whoever wants to know that the client was told."""
    await telling
    if not question.exchange.client_left:
        await question.told()


async def _encoded(
    question: Question, answer: Answer, encoder: Encoder, late: list[str]
) -> AsyncGenerator[bytes, None]:
    gather = WholeCalls().gather if question.whole_arguments else None
    empty, size = True, 0
    async with aclosing(run(answer)) as batches:
        async for batch in batches:
            brought = _note_batch(question.record, batch)
            size += brought
            for event in batch:
                if type(event) is PartEnd and not is_blank(event.part):
                    empty = False
            if empty and isinstance(end := batch[-1], Finish) and end.reason in ("stop", "tool_calls"):
                late.append(EMPTY_ANSWER)
            told = gather(batch) if gather else batch
            # What was told so far is told again, whole, at the end of a part and of the run.
            if len(told) > _MANY_EVENTS or brought > LARGE or (size > LARGE and type(batch[-1]) is not Delta):
                yield await off_loop(_joined, encoder, told)
            else:
                yield _joined(encoder, told)
    question.record.upstream = answer.upstream  # a run that goes on with its tools has asked nobody at first


def _joined(encoder: Encoder, events: list[RunEvent]) -> bytes:
    return b"".join([encoder.encode(event) for event in events])


async def _relayed(question: Question, retold: Retold, late: list[str]) -> AsyncGenerator[bytes, None]:
    relay, checked = retold.relay, False
    try:
        async for chunk in retold:
            question.record.note_first_event()
            if relay.reason is not None and not checked:
                checked = True
                if relay.reason in ("stop", "tool_calls") and all(is_blank(part) for part in relay.received()):
                    late.append(EMPTY_ANSWER)
            yield chunk
    finally:
        question.record.calls = relay.calls
        question.record.note_end(relay.reason, relay.usage)


async def _whole(question: Question, answer: Answer) -> tuple[bytes, ModelResponse]:
    if question.request.relay and answer.dialect == question.request.dialect:
        relayable = cast(Relayable, answer)
        body, response = relayable.retell_whole(question.reply)
        if response.usage is None:
            body, response = relayable.retell_whole(question.reply, await estimate(question.request, response.parts))
        return body, response
    events: list[RunEvent] = []
    async for batch in run(answer):
        events += batch
    response = fold(events)
    encode = question.half.encode_response
    if are_larger(response.parts, LARGE):
        return await off_loop(encode, response, question.request, question.reply), response
    return encode(response, question.request, question.reply), response


async def _write(question: Question, chunk: bytes) -> None:
    if not question.dialect.one_event_a_write:
        await question.exchange.write(chunk)
        return
    sent = number = 0
    while (end := chunk.find(b"\n\n", sent) + 2) > 1:  # not split at once: the events may be large together
        await question.exchange.write(chunk[sent:end])
        number += 1
        if end < len(chunk) and (number % _MANY_EVENTS == 0 or end - sent > LARGE):
            await asyncio.sleep(0)
        sent = end


async def _warn(question: Question, warnings: Sequence[str]) -> None:
    """Say what could not go into the headers, because they were sent before it was known."""
    question.record.warnings += tuple(warnings)
    text = warning_header(warnings).decode()
    await question.exchange.write(question.half.encode_warning(text, question.reply))


async def _fail(question: Question, teller: Encoder | Heard | None, error: ToolgateError) -> None:
    question.record.note_error(error)
    teller = teller or question.encoder or question.half.encoder(question.request, question.reply)
    await _write(question, teller.error(error))


async def _close(asking: asyncio.Future[Answer]) -> None:
    """Cancel the question if nobody answered yet, else close the answer."""
    if not asking.done():
        asking.cancel()
        await asyncio.wait({asking})
    if not asking.cancelled() and asking.exception() is None:
        await asking.result().aclose()


@asynccontextmanager
async def _kept_alive(exchange: Outlet, seconds: float, comment: bytes) -> AsyncIterator[None]:
    """Meanwhile, a comment is sent whenever nothing was for so long; a framing without comments stays silent."""
    if not comment:
        yield
        return
    beating = asyncio.get_running_loop().create_task(_beat(exchange, seconds, comment))
    try:
        yield
    finally:
        beating.cancel()


async def _beat(exchange: Outlet, seconds: float, comment: bytes) -> None:
    while True:
        await asyncio.sleep(seconds)
        if exchange.idle_for() >= seconds * 0.9:
            await exchange.write(comment)


def _headers(question: Question, answer: Answer | None, *more: str) -> list[Header]:
    """Whatever could not be said to the upstream: silence would be a bug."""
    warnings = [*question.request.warnings, *(answer.warnings if answer else ()), *more]
    if not warnings:
        return []
    question.record.warnings = tuple(warnings)
    return [(b"x-toolgate-warning", warning_header(warnings))]


def _is_large(exchange: Exchange, body: Any) -> bool:
    """Return whether the body takes long to read; what is restored from storage makes it more than was received."""
    items = body.get("input") if type(body) is dict else None
    return exchange.received > LARGE or (type(items) is list and len(items) > _MANY_ITEMS)


def with_headers(request: ModelRequest, exchange: Exchange, names: tuple[str, ...]) -> ModelRequest:
    """The request with those of the client's headers that belong to the meaning of its body."""
    found = {name: value for name in names if (value := exchange.header(name.encode())) is not None}
    return replace(request, headers=found) if found else request


def warning_header(warnings: Sequence[str]) -> bytes:
    """Warnings in one header line of safe length and characters."""
    text = "; ".join(warnings).encode("ascii", "backslashreplace")[:2000]
    return bytes([byte if 32 <= byte < 127 else 32 for byte in text])


def _note_batch(record: RequestRecord, batch: list[RunEvent]) -> int:
    """Note what the log is told of these events, and return how many characters they bring."""
    record.note_first_event()
    size = 0
    for event in batch:
        match event:
            case Delta(text):
                size += len(text)
            case PartStart(ToolCall(name=name)):
                record.note_call(name)
            case Finish():
                record.note_end(event.reason, event.usage)
    return size


def _note_response(record: RequestRecord, answer: Answer, response: ModelResponse) -> None:
    record.note_answer(answer.upstream, response.reason, response.usage)
    for part in response.parts:
        if isinstance(part, ToolCall):
            record.note_call(part.name)
