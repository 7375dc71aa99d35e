"""Serve runs at /v1/runs: list them, show and follow their timelines, cancel and fork them.

A key sees its own runs, an admin those of all keys, though not what they have written: only the key that made a stored
response can read it, here as elsewhere.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, get_args

from toolgate.api.paging import list_page, read_cursor, read_limit, read_query, unknown_cursor
from toolgate.api.records.time_query import read_times
from toolgate.api.records.write_queue import WriteQueue
from toolgate.api.responses.conversations_and_background import ConversationsAndBackground
from toolgate.api.runs.followed_runs import FollowedRunCache, SharedRunEvent
from toolgate.api.runs.fork import RunForker, read_fork
from toolgate.api.runs.run_object import NO_CONTENT, content_of, run_object, timeline_object
from toolgate.change_notifications.notifier import ChangeNotifier, wait_for
from toolgate.conversation.errors import Conflict, GatewayOverloaded, InvalidRequest, NotFound, ToolgateError
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.runs.timeline_recorder import RunTimelines, decode_entries, topic
from toolgate.storage.responses import ResponseStore
from toolgate.storage.run_records import RunFilter, RunRecord
from toolgate.storage.runs import End, Live
from toolgate.wire.fields import Fields
from toolgate.wire.jsontext import encode

_STATES = (*get_args(Live), *get_args(End))
_EVENT_SECONDS = 0.2  # between two events of a stream: each holds the whole run, and changes come in bursts
_LOOK_SECONDS = 1.0  # between two looks without a notification, which may get lost between nodes
_KEEPALIVE_SECONDS = 15.0
_CANCEL_SECONDS = 10.0  # for a foreground run to end: its node may be gone
_PING = b": ping\n\n"
_END = b"event: end\ndata: {}\n\n"


class RunEndpoints:
    """The endpoints below /v1/runs."""

    def __init__(
        self,
        timelines: RunTimelines,
        writer: WriteQueue,
        responses: ResponseStore,
        state: ConversationsAndBackground,
        notifier: ChangeNotifier,
        forker: RunForker,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """While `is_draining`, no run is followed."""
        self._timelines = timelines
        self._runs = timelines.store
        self._writer = writer
        self._responses = responses
        self._state = state
        self._notifier = notifier
        self._forker = forker
        self._is_draining = is_draining
        self._followers = FollowedRunCache()

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints."""
        errors = OPENAI_CHAT.server
        return [
            HttpRoute("GET", "/v1/runs", self.list, errors),
            HttpRoute("POST", "/v1/runs/{}/cancel", self.cancel, errors),
            HttpRoute("POST", "/v1/runs/{}/fork", self.fork, errors),
            HttpRoute("GET", "/v1/runs/{}", self.show, errors),
        ]

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List runs, newest first: the caller's own, or for an admin those of all keys, or of one `key`."""
        query = read_query(call.exchange.query)
        owner = (query.get("key") or None) if "admin" in call.caller.scopes else call.caller.name
        state, model = query.get("state") or None, query.get("model") or None
        if state is not None and state not in _STATES:
            raise InvalidRequest(f"state must be one of {', '.join(_STATES)}.", param="state", code="invalid_value")
        wanted, limit = RunFilter(owner, state, model, read_times(query)), read_limit(query)
        cursor, to_older = read_cursor(query)
        await self._written()
        page = await self._runs.page(wanted, cursor, limit, newest_first=to_older)
        if page is None:
            raise unknown_cursor(cursor or "")
        runs = page.runs if to_older else page.runs[::-1]
        listed = list_page([run_object(run, can_fork=_owns(call, run)) for run in runs], limit, more=bool(page.last))
        # A search may stop at a run that does not match the filter: the next page starts there, not at one that is shown.
        edge = "last_id" if to_older else "first_id"
        await call.exchange.respond(200, encode({**listed, edge: page.last} if page.last else listed))

    async def show(self, call: AdmittedHttpRequest) -> None:
        """Return one run with its timeline; with `stream=true` again after every change, until it has ended."""
        run = await self._find(call)
        if read_query(call.exchange.query).get("stream", "").lower() not in ("true", "1"):
            await call.exchange.respond(200, await self._described(call, run))
            return
        with self._followers.follow(call.caller.name, (run.id, _owns(call, run))) as followed:
            await self._stream(call, run, followed)

    async def _stream(self, call: AdmittedHttpRequest, run: RunRecord, followed: SharedRunEvent) -> None:
        exchange = call.exchange
        exchange.cancel_when_client_leaves()
        await exchange.start(b"text/event-stream")
        try:
            async with aclosing(self._follow(call, run, followed)) as events:
                async for event in events:
                    await exchange.write(event)
        except asyncio.CancelledError:
            if exchange.client_left:
                raise
            await self._send_error(call, call.record.cancelled_with or _shutting_down())
        except ToolgateError as error:
            await self._send_error(call, error)
        await exchange.end()

    async def _send_error(self, call: AdmittedHttpRequest, error: ToolgateError) -> None:
        call.record.note_error(error)
        await call.exchange.write(b"event: error\ndata: %b\n\n" % OPENAI_CHAT.server.encode_error(error))

    async def cancel(self, call: AdmittedHttpRequest) -> None:
        """Cancel a run on whichever node makes it, and return it when it has ended."""
        Fields(await call.exchange.optional_json()).refuse_unknown()
        run = await self._find(call)
        if run.is_over:
            raise Conflict(f"The run has ended already: it is {run.state}.", code="run_ended")
        # A foreground run ends with the request of its client, on whichever node that is; a background run has a lease.
        if run.kind == "foreground":
            await self._timelines.cancel(run.id)
            await self._until_over(run)
        elif (stored := await self._responses.load(run.owner, run.id)) is not None:
            await self._state.background.cancel(stored)
        await call.exchange.respond(200, await self._described(call, await self._find(call)))

    async def fork(self, call: AdmittedHttpRequest) -> None:
        """Start a new run that copies the steps of a run up to one of them, with another model or edits."""
        query = read_fork(await call.exchange.optional_json())
        made = await self._forker.fork(call, await self._find(call), query)
        run = await self._runs.find(made, call.caller.name)
        if run is None:
            raise NotFound(f"The run {made!r} was not found.", code="run_not_found")
        await call.exchange.respond(201, await self._described(call, run))

    async def _until_over(self, run: RunRecord) -> None:
        """Wait until a run that is cancelled has ended, or for a while."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _CANCEL_SECONDS
        async with self._notifier.subscribe(topic(run.id)) as changed:
            while clock() < deadline:
                changed.clear()
                await self._written()
                found = await self._runs.find(run.id, run.owner)
                if found is None or found.is_over:
                    return
                await wait_for(changed, min(_EVENT_SECONDS, self._notifier.poll_seconds))

    async def _follow(
        self, call: AdmittedHttpRequest, run: RunRecord, followed: SharedRunEvent
    ) -> AsyncGenerator[bytes]:
        """Yield the run at once and after every change, until it has ended."""
        clock = asyncio.get_running_loop().time
        sent, sent_at = b"", clock()
        async with self._notifier.subscribe(topic(run.id)) as changed:
            while True:
                changed.clear()
                now = await self._current(run.id, run.owner)
                if now is None:
                    break
                entries = await self._runs.entries(run.id)
                event = await followed.event(now, entries, partial(self._described, call, now, entries))
                if event is not sent:  # the same object means that nothing has changed: see `SharedRunEvent`
                    sent, sent_at = event, clock()
                    yield event
                elif clock() - sent_at >= _KEEPALIVE_SECONDS:
                    sent_at = clock()
                    yield _PING
                if now.is_over:
                    break
                if self._is_draining():  # the client can follow the run on another node
                    raise _shutting_down()
                await asyncio.sleep(_EVENT_SECONDS)  # changes that come meanwhile are sent together
                await wait_for(changed, _LOOK_SECONDS)
        yield _END

    async def _find(self, call: AdmittedHttpRequest) -> RunRecord:
        id, owner = call.arguments[0], None if "admin" in call.caller.scopes else call.caller.name
        found = await self._current(id, owner)
        if found is None:
            raise NotFound(f"The run {id[:100]!r} was not found.", code="run_not_found")
        return found

    async def _current(self, id: str, owner: str | None) -> RunRecord | None:
        """Return a run as it is now; one that has ended on this node with the end of its timeline.

        The end of a background run is stored with its response, and a moment later in its timeline.
        """
        await self._written()
        found = await self._runs.find(id, owner)
        if found is None or not found.is_over:
            return found
        # `live` is None once the timeline is complete, and at once if another node makes the run.
        async with self._notifier.subscribe(topic(id)) as changed:
            while self._timelines.live(id) is not None and await wait_for(changed, _LOOK_SECONDS):
                changed.clear()
        await self._written()
        return await self._runs.find(id, owner)

    async def _described(self, call: AdmittedHttpRequest, run: RunRecord, stored: Sequence[str] | None = None) -> bytes:
        """Return the run with its timeline as JSON; `stored` are the entries of the timeline if they were read before."""
        stored = await self._runs.entries(run.id) if stored is None else stored
        output: Sequence[Any] = []
        # Not even an admin reads what the run of another key has written.
        if run.response is not None and _owns(call, run):
            response = await self._responses.load(run.owner, run.response)
            output = [] if response is None else (await self._forker.items(response)).made

        def body() -> bytes:
            entries = decode_entries(stored)
            content = content_of(output, entries) if output else NO_CONTENT
            timeline = timeline_object(run, entries, content)
            return encode({**run_object(run, can_fork=_owns(call, run)), "timeline": timeline})

        return await run_in_thread(body)

    async def _written(self) -> None:
        """Write what this process has recorded, so that a client finds what it has just made."""
        self._timelines.flush()
        await self._writer.flush()


def _shutting_down() -> GatewayOverloaded:
    return GatewayOverloaded("The server is shutting down.", retry_after=1)


def _owns(call: AdmittedHttpRequest, run: RunRecord) -> bool:
    return run.owner == call.caller.name
