"""Serve the Responses API: create, read, follow, cancel, compact and delete responses.

The items that a request continues are loaded before its dialect decodes it (`previous_items.py`). A response is stored as it
was sent, so that GET returns what the stream did. One that runs in the background is sent from what is stored of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from toolgate.api.chat import ChatHandler
from toolgate.api.encode_json import encode_json
from toolgate.api.paging import read_number, read_page, read_query, slice_page
from toolgate.api.response_writer import PreparedRequest, warning_header
from toolgate.api.responses.background_request import BackgroundRequest, headers_by_name, select_headers
from toolgate.api.responses.background_run import BackgroundBudgets, UnlimitedBudgets
from toolgate.api.responses.compaction import check_items, compact, first_open_call, summary_request, with_summaries
from toolgate.api.responses.conversations_and_background import ConversationsAndBackground
from toolgate.api.responses.cut_off_stream import error_frame
from toolgate.api.responses.forkable_request import ForkOrigin, decode_fork_request, encode_fork_request
from toolgate.api.responses.item_normalization import with_ids
from toolgate.api.responses.previous_items import PreviousItemLoader, conversation_of
from toolgate.api.responses.save import ContinuedRequest, FinishedResponseSaver
from toolgate.api.responses.websocket_request import (
    SOCKET,
    EmptyAnswerModel,
    InMemoryResponseRecorder,
    WebSocketLane,
    read_create,
)
from toolgate.conversation.errors import GatewayOverloaded, InvalidRequest, NotFound
from toolgate.dialects.dialect import Dialect
from toolgate.dialects.openai_responses.response_object import DONE
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.http.exchange import Header
from toolgate.limits.local_budgets import BudgetReservation
from toolgate.storage.database import CommitUncertain
from toolgate.storage.responses import ResponseStore, StoredResponse, Write
from toolgate.storage.run_records import RunRecord
from toolgate.telemetry.request_log import RequestRecord
from toolgate.tools.execution.options import sent_tool_fields
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_RESUME = "The server is shutting down; resume this stream when it is back."


class ResponseEndpoints:
    """The Responses endpoints; without `state` there are neither chat nor background responses."""

    def __init__(
        self,
        chat: ChatHandler,
        store: ResponseStore,
        dialect: Dialect,
        state: ConversationsAndBackground | None = None,
        budgets: BackgroundBudgets = UnlimitedBudgets(),  # noqa: B008  # it has no state
    ) -> None:
        """`budgets` are those under which requests of these endpoints are admitted."""
        self._chat = chat
        self._store = store
        self._dialect = dialect
        self._state = state
        self._budgets = budgets
        self._previous = PreviousItemLoader(store, state)

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        codec = self._dialect.server
        return [
            HttpRoute("POST", "/v1/responses", self.create, codec),
            HttpRoute("POST", "/v1/responses/compact", self.compact, codec),
            HttpRoute("GET", "/v1/responses/{}/input_items", self.input_items, codec),
            HttpRoute("POST", "/v1/responses/{}/cancel", self.cancel, codec),
            HttpRoute("GET", "/v1/responses/{}", self.retrieve, codec),
            HttpRoute("DELETE", "/v1/responses/{}", self.delete, codec),
        ]

    async def create(self, call: AdmittedHttpRequest) -> None:
        """Answer a Responses request, whole, streamed or in the background."""
        body = await call.exchange.json()
        if type(body) is not dict:
            raise InvalidRequest("The body must be an object.")
        body = self._chat.with_model(call, body)  # before it is stored: the default may change
        lane: WebSocketLane | None = call.exchange.extension(SOCKET)
        body, generate = read_create(body) if lane else (body, True)
        if type(body.get("background")) not in (bool, type(None)):
            raise InvalidRequest("background must be true or false.", param="background", code="invalid_type")
        body = await self._with_tool_fields(call, body)
        unlock = await self._lock_conversation(call, body)
        if body.get("background") is True:
            await self._start(call, body, unlock)
            return
        # Only from here on: a background response goes on when its client leaves.
        call.exchange.cancel_when_client_leaves()
        try:
            turn = await self._previous.turn(body, call.caller.name, lane.memory if lane else None)
            prepared = await self._prepare(call, turn.body)
            prepared = prepared if generate else replace(prepared, model=EmptyAnswerModel())
            await self._chat.respond(prepared, self._recorder(call, body, turn, unlock, lane))
        finally:
            unlock()  # does nothing if the response was saved, which unlocks before the client gets its end

    async def compact(self, call: AdmittedHttpRequest) -> None:
        """Compact a conversation; the result can be sent as input, or continued by its id."""
        fields = Fields(await call.exchange.json())
        body, owner = dict(fields.rest), call.caller.name
        if not body.get("model"):  # the API requires it here, and only a client knows for which model it compacts
            raise InvalidRequest("model is required: the conversation is compacted for it.", param="model")
        items = await self._previous.items(body, owner)
        if not items:
            raise InvalidRequest("There is nothing to compact: give input or previous_response_id.", param="input")
        await run_in_thread(check_items, items)
        cut = first_open_call(items)  # items from here on stay: the client sends the results of these calls next
        prepared = await self._prepare(call, summary_request(body, with_summaries(items[:cut])))
        call.exchange.cancel_when_client_leaves()
        summary, headers = await self._chat.complete(prepared)
        # `complete` sends nothing to the client, so that it does not know when the response is delivered.
        if prepared.on_delivered is not None:
            await prepared.on_delivered()
        compaction = compact(items, cut, summary, prepared.metadata.created)
        if body.get("store") is not False:
            await self._store.save(
                StoredResponse(compaction["id"], owner, None, compaction["created_at"], [], compaction)
            )
        await call.exchange.respond(200, await encode_json(compaction), headers)

    async def retrieve(self, call: AdmittedHttpRequest) -> None:
        """Return a stored response; with `stream=true` its events after `starting_after`."""
        query = read_query(call.exchange.query)
        stored = await self._find(call)
        if query.get("stream", "").lower() not in ("true", "1"):
            await call.exchange.respond(200, await encode_json(stored.body))
            return
        after = read_number(query, "starting_after", -1)
        if self._state is None:
            raise InvalidRequest("Streams are not stored by this server.", param="stream")
        await self._state.background.require_stream(stored)
        await self._follow(call, self._state, stored, after)

    async def delete(self, call: AdmittedHttpRequest) -> None:
        """Delete a stored response; one that is still being made is cancelled."""
        stored, state = await self._find(call), self._state
        if state is None:
            await self._store.delete(call.caller.name, stored.id)
        else:
            # Cancelled first: a run that is deleted while it goes on cannot store its end, and is not charged.
            await state.background.cancel(stored)
            await self._store.delete(call.caller.name, stored.id, *state.background.forgetting(stored.id))
        await call.exchange.respond(200, encode({"id": stored.id, "object": "response", "deleted": True}))

    async def cancel(self, call: AdmittedHttpRequest) -> None:
        """Cancel a background response; one that has ended is returned as it is."""
        Fields(await call.exchange.optional_json()).refuse_unknown()
        stored = await self._find(call)
        if self._state is None or stored.body.get("background") is not True:
            raise InvalidRequest("Only a background response can be cancelled, and this one is complete.")
        stored = await self._state.background.cancel(stored)
        await call.exchange.respond(200, await encode_json(stored.body))

    async def input_items(self, call: AdmittedHttpRequest) -> None:
        """List the input items of a stored response, newest first unless `order` is given."""
        stored, page = await self._find(call), read_page(call.exchange.query)
        items = [*await self._previous.before(stored), *stored.input]
        # An item without an id gets the same one for every page, since `after` of the next request names it:
        # that of the response without `resp_`, and the number of the item.
        named = [{"id": f"item_{stored.id[5:]}_{number}", **item} for number, item in enumerate(items)]
        await call.exchange.respond(200, await run_in_thread(lambda: encode(slice_page(with_ids(named), page))))

    async def _find(self, call: AdmittedHttpRequest) -> StoredResponse:
        stored = await self._store.load(call.caller.name, call.arguments[0])
        if stored is None:
            id = call.arguments[0][:100]
            raise NotFound(f"The response {id!r} was not found.", param="response_id", code="response_not_found")
        return stored if self._state is None else await self._state.background.current(stored)

    async def _lock_conversation(self, call: AdmittedHttpRequest, body: dict[str, Any]) -> Callable[[], None]:
        """Lock the request's conversation, if it names one: two responses at once would mix up their items."""
        conversation = conversation_of(body)
        if conversation is None or self._state is None:
            return lambda: None
        return await self._state.lock_conversation(call.caller.name, conversation)

    async def _with_tool_fields(self, call: AdmittedHttpRequest, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with the server tools of the response that it answers, where it does not choose its own."""
        previous, timelines = body.get("previous_response_id"), self._state.timelines if self._state else None
        if type(previous) is not str or timelines is None:
            return body
        # A client that answers an approval request sends only the answer, or nothing if a person answered elsewhere.
        items = body.get("input")
        if items and not (
            type(items) is list
            and any(isinstance(item, dict) and item.get("type") == "mcp_approval_response" for item in items)
        ):
            return body
        kept = await timelines.store.request(previous, call.caller.name)
        if kept is None:
            return body
        request = decode_fork_request(kept)
        fields = sent_tool_fields(request.body, headers_by_name(request.headers))
        return {**fields, **body, **sent_tool_fields(body, call.headers)}

    def _prepare(self, call: AdmittedHttpRequest, body: dict[str, Any]) -> Awaitable[PreparedRequest]:
        return self._chat.prepare(call, self._dialect, self._dialect.server, body)

    def _recorder(
        self,
        call: AdmittedHttpRequest,
        body: dict[str, Any],
        turn: ContinuedRequest,
        unlock: Callable[[], None],
        lane: WebSocketLane | None,
    ) -> FinishedResponseSaver | InMemoryResponseRecorder | None:
        """Return what keeps the response: in the database, in the memory of its socket, or nowhere."""
        state, record = self._state, call.record

        def keep_request(response: str) -> tuple[Write, ...]:
            # Only a run with server tools can be forked, and whether there is one is known once the model is asked.
            if state is None or state.timelines is None or not record.run:
                return ()
            record.response = response
            headers = select_headers(call.exchange.headers, self._dialect.forwarded_headers)
            request = encode_fork_request(body, headers)
            return (state.timelines.store.keeping_request(response, call.caller.name, request),)

        recorder = None
        # With `store: false` the response is not stored, but its items still belong to its conversation.
        if turn.stored or turn.conversation is not None:
            recorder = FinishedResponseSaver(
                self._store, turn, state.conversations if state else None, unlock, keep_request
            )
        return recorder if lane is None or turn.stored else InMemoryResponseRecorder(lane, turn, recorder)

    async def _start(self, call: AdmittedHttpRequest, body: dict[str, Any], unlock: Callable[[], None]) -> None:
        """Accept a background response, and send it as it is queued, or its events as they come."""
        # Before anything else that may fail: `accept` unlocks the conversation of a request that it refuses.
        prepared, stored = await self.accept(call, body, unlock)
        warnings = list(prepared.request.warnings)
        response_headers = [(b"x-toolgate-warning", warning_header(warnings))] if warnings else []
        if body.get("stream") is True:
            await self._follow(call, self._check_background(body), stored, -1, response_headers)
        else:
            await call.exchange.respond(200, await encode_json(stored.body), response_headers)

    async def accept(
        self,
        call: AdmittedHttpRequest,
        body: dict[str, Any],
        unlock: Callable[[], None],
        fork: ForkOrigin | None = None,
    ) -> tuple[PreparedRequest, StoredResponse]:
        """Accept a background response and store it as queued; `fork` if it continues a copy of another run."""
        held: BudgetReservation | None = None
        is_stored = False
        try:
            state = self._check_background(body)
            streamed = body.get("stream") is True
            # Always made as a stream: what it has sent so far is stored, and a later attempt continues from there.
            turn = await self._previous.turn({**body, "stream": True}, call.caller.name)
            turn = replace(turn, past=[])  # these items are in the body, which is stored until the response has ended
            prepared = await self._prepare(call, turn.body)
            metadata, record = prepared.metadata, call.record
            # The end of this HTTP request would release the reservation, but the run has yet to use it.
            held = self._budgets.keep_reservation(record.request_id)
            headers = fork.headers if fork else select_headers(call.exchange.headers, self._dialect.forwarded_headers)
            request = BackgroundRequest(
                metadata.id, metadata.created, turn, streamed, record.request_id, headers=headers, held=held
            )
            opening = _opening_run(
                state, call, metadata.id, encode_fork_request(body, headers, fork.items if fork else 0), fork
            )
            accepting = asyncio.ensure_future(state.background.accept(prepared, request, unlock, *opening))
            try:
                stored = await asyncio.shield(accepting)
            except asyncio.CancelledError:
                # The database finishes what it has begun: a run that is stored unlocks and is charged when it ends.
                await asyncio.wait({accepting})
                is_stored = accepting.exception() is None
                raise
        except BaseException as error:
            if not is_stored:
                unlock()
            # If the run may be stored nevertheless, it settles the reservation, or that expires.
            if held is not None and not is_stored and not isinstance(error, CommitUncertain):
                self._budgets.charge(RequestRecord(call.record.request_id), held)  # nothing was used
            raise
        record.run = stored.id
        return prepared, stored

    def _check_background(self, body: dict[str, Any]) -> ConversationsAndBackground:
        if self._state is None:
            raise InvalidRequest("background responses are not offered by this server.", param="background")
        if body.get("store") is False:
            raise InvalidRequest("A background response must be stored.", param="background")
        if type(body.get("stream")) not in (bool, type(None)):
            raise InvalidRequest("stream must be true or false.", param="stream", code="invalid_type")
        return self._state

    async def _follow(
        self,
        call: AdmittedHttpRequest,
        state: ConversationsAndBackground,
        stored: StoredResponse,
        after: int,
        headers: Iterable[Header] = (),
    ) -> None:
        """Send the frames of a stored response after this number until it ends or the client leaves."""
        exchange = call.exchange
        exchange.cancel_when_client_leaves()
        await exchange.start(self._dialect.stream_type.encode(), headers)
        try:
            async with aclosing(state.background.follow(stored, after)) as chunks:
                async for chunk in chunks:
                    await exchange.write(chunk)
        except asyncio.CancelledError:
            if exchange.client_left:
                raise
            # The key was revoked, or the server stops: this error ends the stream, it is no event of the response.
            error = call.record.cancelled_with or GatewayOverloaded(_RESUME, retry_after=1)
            call.record.note_error(error)
            await exchange.write(error_frame(error) + DONE)
        await exchange.end()


def _opening_run(
    state: ConversationsAndBackground, call: AdmittedHttpRequest, response: str, request: bytes, fork: ForkOrigin | None
) -> tuple[Write, ...]:
    """Return the writes that record the run of a background response, with the steps that it copies of another run."""
    if state.timelines is None:
        return ()
    store = state.timelines.store
    run = RunRecord(
        response,
        call.caller.name,
        "background",
        "queued",
        call.record.model,
        store.clock(),
        response=response,
        forked_run=fork.run if fork else None,
        forked_step=fork.step if fork else None,
    )
    return (store.opening(run, request, fork.entries if fork else ()),)
