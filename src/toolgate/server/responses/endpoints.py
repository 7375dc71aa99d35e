"""The Responses endpoints: create, read, follow, cancel and forget.

A request that continues another is completed before its dialect reads it (`turns.py`). What is kept is the response as it
was told, so that GET gives what the stream gave. One that runs in the background is told from what is kept of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from toolgate.conversation.errors import InvalidRequest, NotFound, Overloaded, Unauthenticated
from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_responses.answer import DONE
from toolgate.server.app import Call, Endpoint
from toolgate.server.callers.auth import ANONYMOUS, Caller
from toolgate.server.endpoints import Conversations, Question, warning_header
from toolgate.server.exchange import Header
from toolgate.server.responses.accepted import Accepted, said
from toolgate.server.responses.background import Making
from toolgate.server.responses.compaction import Whole, compacted, opened, split
from toolgate.server.responses.compaction import question as summary_question
from toolgate.server.responses.items import with_ids
from toolgate.server.responses.keeper import Keeper, Turn
from toolgate.server.responses.paging import cut, read_number, read_page, read_query
from toolgate.server.responses.spoken import SOCKET, Lane, Remembering, WarmUp, read_create
from toolgate.server.responses.state import State
from toolgate.server.responses.telling import error_frame
from toolgate.server.responses.turns import Past, conversation_of
from toolgate.server.workshop.lasting import Lasting
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_RESUME = "The server is shutting down; resume this stream when it is back."


class Responses:
    """The Responses endpoints; without `state` there are neither conversations nor background responses."""

    def __init__(
        self,
        conversations: Conversations,
        store: ResponseStore,
        dialect: Dialect,
        state: State | None = None,
        callers: Callable[[str], Caller | None] = {ANONYMOUS.name: ANONYMOUS}.get,
    ) -> None:
        """`callers` knows who may still call, by name: what is made in the background may outlive a key."""
        self._conversations = conversations
        self._store = store
        self._dialect = dialect
        self._state = state
        self._callers = callers
        self._past = Past(store, state)
        if state is not None:
            state.background.making = self._making(state)

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        words = self._dialect.server
        return [
            Endpoint("POST", "/v1/responses", self.create, words),
            Endpoint("POST", "/v1/responses/compact", self.compact, words),
            Endpoint("GET", "/v1/responses/{}/input_items", self.input_items, words),
            Endpoint("POST", "/v1/responses/{}/cancel", self.cancel, words),
            Endpoint("GET", "/v1/responses/{}", self.retrieve, words),
            Endpoint("DELETE", "/v1/responses/{}", self.delete, words),
        ]

    async def create(self, call: Call) -> None:
        """Answer a Responses request, whole, streamed or in the background."""
        body = await call.exchange.json()
        if type(body) is not dict:
            raise InvalidRequest("The body must be an object.")
        body = self._conversations.with_model(call, body)  # before it is stored: the default may change
        lane: Lane | None = call.exchange.extension(SOCKET)
        body, generate = read_create(body) if lane else (body, True)
        if type(body.get("background")) not in (bool, type(None)):
            raise InvalidRequest("background must be true or false.", param="background", code="invalid_type")
        release = await self._take(call, body)
        if body.get("background") is True:
            await self._start(call, body, release)
            return
        call.exchange.cancel_when_client_leaves()
        try:
            turn = await self._past.turn(body, call.caller.name, lane.memory if lane else None)
            question = await self._question(call, turn.body)
            question = question if generate else replace(question, model=WarmUp())
            await self._conversations.answer(question, self._keeper(turn, release, lane))
        finally:
            release()

    async def compact(self, call: Call) -> None:
        """Make a conversation short; what comes of it can be sent as input, or continued by its id."""
        fields = Fields(await call.exchange.json())
        body, owner = dict(fields.rest), call.caller.name
        if not body.get("model"):  # the API requires it here, and only a client knows for which model it compacts
            raise InvalidRequest("Name the model that the conversation is compacted for.", param="model")
        items = await self._past.items(body, owner)
        if not items:
            raise InvalidRequest("There is nothing to compact: give input or previous_response_id.", param="input")
        place, whole = split(items), Whole(call.exchange)
        asked = await self._question(call, summary_question(body, opened(items[:place])))
        await self._conversations.answer(replace(asked, exchange=whole))
        assert whole.body is not None  # whoever does not answer raises
        made = compacted(items, place, whole.body, asked.reply.created)
        if body.get("store") is not False:
            await self._store.save(StoredResponse(made["id"], owner, None, made["created_at"], [], made))
        await call.exchange.respond(200, encode(made), whole.headers)

    async def retrieve(self, call: Call) -> None:
        """Tell a kept response again; with `stream=true` its events, those behind `starting_after`."""
        query = read_query(call.exchange.query)
        kept = await self._find(call)
        if query.get("stream", "").lower() not in ("true", "1"):
            await call.exchange.respond(200, encode(kept.body))
            return
        after = read_number(query, "starting_after", -1)
        if self._state is None:
            raise InvalidRequest("Streams are not kept by this server.", param="stream")
        await self._state.background.require_stream(kept)
        await self._follow(call, kept, after)

    async def delete(self, call: Call) -> None:
        """Forget a kept response; if it is still being made, that ends."""
        kept, state = await self._find(call), self._state
        if state is None:
            await self._store.delete(call.caller.name, kept.id)
        else:
            await state.background.cancel(kept)
            await self._store.delete(call.caller.name, kept.id, *state.background.forgetting(kept.id))
        await call.exchange.respond(200, encode({"id": kept.id, "object": "response", "deleted": True}))

    async def cancel(self, call: Call) -> None:
        """Cancel a response that runs in the background; one that has ended is told as it is."""
        Fields(await call.exchange.optional_json()).no_more()
        kept = await self._find(call)
        if self._state is None or kept.body.get("background") is not True:
            raise InvalidRequest("Only a background response can be cancelled, and this one is complete.")
        kept = await self._state.background.cancel(kept)
        await call.exchange.respond(200, encode(kept.body))

    async def input_items(self, call: Call) -> None:
        """List the items that a kept response answered, newest first unless `order` says otherwise."""
        kept, page = await self._find(call), read_page(call.exchange.query)
        items = [*await self._past.before(kept), *kept.input]
        named = [{"id": f"item_{kept.id[5:]}_{number}", **item} for number, item in enumerate(items)]
        await call.exchange.respond(200, encode(cut(with_ids(named), page)))

    async def _find(self, call: Call) -> StoredResponse:
        kept = await self._store.load(call.caller.name, call.arguments[0])
        if kept is None:
            raise _unknown(call.arguments[0])
        return kept if self._state is None else await self._state.background.current(kept)

    async def _take(self, call: Call, body: dict[str, Any]) -> Callable[[], None]:
        """Take the request's conversation, if it names one: two answers at once would mix up their items."""
        conversation = conversation_of(body)
        if conversation is None or self._state is None:
            return _nothing
        return await self._state.take(call.caller.name, conversation)

    def _question(self, call: Call, body: dict[str, Any]) -> Awaitable[Question]:
        return self._conversations.question(call, self._dialect, self._dialect.server, body)

    def _keeper(self, turn: Turn, release: Callable[[], None], lane: Lane | None) -> Keeper | Remembering | None:
        keeper = None
        if turn.stored or turn.conversation is not None:
            keeper = Keeper(self._store, turn, self._state.conversations if self._state else None, release)
        return keeper if lane is None or turn.stored else Remembering(lane, turn, keeper)

    async def _start(self, call: Call, body: dict[str, Any], release: Callable[[], None]) -> None:
        """Begin a background response and tell its id, or its events as they come."""
        streamed = body.get("stream") is True
        try:
            kept, question = await self._started(call, body, release, streamed)
        except BaseException:
            release()
            raise
        if streamed:
            await self._follow(call, kept, -1, _warnings(question))
        else:
            await call.exchange.respond(200, encode(kept.body), _warnings(question))

    async def _started(
        self, call: Call, body: dict[str, Any], release: Callable[[], None], streamed: bool
    ) -> tuple[StoredResponse, Question]:
        if self._state is None:
            raise InvalidRequest("background responses are not offered by this server.", param="background")
        if body.get("store") is False:
            raise InvalidRequest("A background response must be stored.", param="background")
        if type(body.get("stream")) not in (bool, type(None)):
            raise InvalidRequest("stream must be true or false.", param="stream", code="invalid_type")
        turn = await self._past.turn({**body, "stream": True}, call.caller.name)
        turn = replace(turn, past=[])  # it stands in the body, and is stored with it until the response has ended
        question = await self._question(call, turn.body)
        reply, headers = question.reply, said(call.exchange.headers, self._dialect.passed_headers)
        accepted = Accepted(
            reply.id, reply.created, turn, streamed, call.record.request_id, call.exchange.path, headers
        )
        return await self._state.background.accept(question, accepted, release), question

    async def _prepare(self, accepted: Accepted, lasting: Lasting) -> Question:
        """The question of an accepted response, asked now: by the caller as they stand, with the tools there are."""
        caller = self._callers(accepted.turn.owner)
        if caller is None:
            raise Unauthenticated("The key that asked for this response is no longer valid.")
        call = accepted.call(caller)
        body = accepted.turn.body
        question = await self._conversations.question(call, self._dialect, self._dialect.server, body, lasting)
        return replace(question, reply=replace(question.reply, id=accepted.id, created=accepted.created))

    def _making(self, state: State) -> Making:
        def keeper(turn: Turn, on_kept: Callable[[], None]) -> Keeper:
            return Keeper(self._store, turn, state.conversations, on_kept)

        async def take(turn: Turn) -> Callable[[], None]:
            """Another may have begun there while nobody made this one: it speaks first."""
            return await state.take(turn.owner, turn.conversation, wait=True) if turn.conversation else _nothing

        return Making(take, keeper, self._prepare, self._conversations.answer, self._conversations.dismiss)

    async def _follow(self, call: Call, kept: StoredResponse, after: int, headers: list[Header] | None = None) -> None:
        assert self._state is not None  # whoever follows has seen it
        exchange = call.exchange
        exchange.cancel_when_client_leaves()
        await exchange.start(self._dialect.stream_type.encode(), headers or [])
        try:
            async with aclosing(self._state.background.follow(kept, after)) as chunks:
                async for chunk in chunks:
                    await exchange.write(chunk)
        except asyncio.CancelledError:
            if exchange.client_left:
                raise
            error = call.record.dismissed or Overloaded(_RESUME, retry_after=1)
            call.record.note_error(error)
            await exchange.write(error_frame(error) + DONE)
        await exchange.end()


def _nothing() -> None:
    """Nobody has to be told."""


def _warnings(question: Question) -> list[Header]:
    warnings = list(question.request.warnings)
    return [(b"x-toolgate-warning", warning_header(warnings))] if warnings else []


def _unknown(id: str) -> NotFound:
    return NotFound(f"The response {id[:100]!r} was not found.", param="response_id", code="response_not_found")
