"""Fork a run: accept a new background response that copies the steps of a run up to one of them, with edits.

Copied steps become the input of the new response, so that none of them is run again. The conversation and the response of
the run stay as they are.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from toolgate.api.responses.background_request import select_headers
from toolgate.api.responses.conversations_and_background import ConversationsAndBackground
from toolgate.api.responses.endpoints import ResponseEndpoints
from toolgate.api.responses.forkable_request import ForkableRequest, ForkOrigin, decode_fork_request
from toolgate.api.responses.previous_items import PreviousItemLoader
from toolgate.api.runs.fork_items import NOT_STORED, ForkQuery, copy_steps, edit_message, next_choice
from toolgate.conversation.errors import Conflict, Forbidden, InvalidRequest
from toolgate.dialects.openai_responses import DIALECT as OPENAI_RESPONSES
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest
from toolgate.runs.timeline_recorder import decode_entries, encode_entry
from toolgate.storage.responses import ResponseStore, StoredResponse
from toolgate.storage.run_records import RunRecord, RunRecordStore
from toolgate.wire.fields import Fields

_MOST_RESULTS = 1000


class RunItems(Struct, frozen=True):
    """The items of a run: those of its request, and those that it has made or copied of another run."""

    input: Sequence[Any] = ()
    made: Sequence[Any] = ()


class RunForker:
    """Forks the runs of callers."""

    def __init__(
        self,
        responses: ResponseEndpoints,
        store: ResponseStore,
        runs: RunRecordStore,
        state: ConversationsAndBackground,
    ) -> None:
        self._responses = responses
        self._store = store
        self._runs = runs
        self._state = state
        self._previous = PreviousItemLoader(store, state)

    async def fork(self, call: AdmittedHttpRequest, run: RunRecord, query: ForkQuery) -> str:
        """Accept the fork of a run and return the id of the new run."""
        if run.owner != call.caller.name:
            raise Forbidden("Only the key that made a run can fork it.", code="not_owner")
        stored = None if run.response is None else await self._store.load(run.owner, run.response)
        request = None if stored is None else await self._request(stored)
        if stored is None or request is None:
            raise Conflict(
                "What this run has received and written is not stored, so that it cannot be forked.", code=NOT_STORED
            )
        items = await self.items(stored, request)
        entries = decode_entries(await self._runs.entries(run.id))
        copied = await run_in_thread(copy_steps, items.made, entries, query)
        input = edit_message(items.input, query.message)
        # The fork continues what the run has continued, not the run itself: its steps are in the input.
        changes = {"model": query.model, "instructions": query.instructions, "previous_response_id": stored.previous}
        body = {**request.body, **{name: value for name, value in changes.items() if value is not None}}
        if "tool_choice" in body:
            body["tool_choice"] = next_choice(body["tool_choice"], query.step)
        # A fork does not go on in the conversation, which it would change: the items up to the run become its input.
        past = await self._previous.before_in_conversation(stored)
        body |= {"input": [*past, *input, *copied.items], "background": True}
        # Headers by name: those of this request take the place of those of the run.
        headers = (*request.headers, *select_headers(call.exchange.headers, OPENAI_RESPONSES.forwarded_headers))
        origin = ForkOrigin(
            run.id, query.step, [encode_entry(one) for one in copied.entries], headers, len(copied.items)
        )
        # It has no conversation, so that there is nothing to unlock.
        _, made = await self._responses.accept(call, body, lambda: None, origin)
        return made.id

    async def items(self, stored: StoredResponse, request: ForkableRequest | None = None) -> RunItems:
        """Return the items of a stored response's run; those that a fork copied are at the end of its input."""
        request = request or await self._request(stored)
        output = await self._state.background.output(stored)
        cut = len(stored.input) - (request.copied if request is not None else 0)
        return RunItems(stored.input[:cut], [*stored.input[cut:], *output])

    async def _request(self, stored: StoredResponse) -> ForkableRequest | None:
        request = await self._runs.request(stored.id, stored.owner)
        return None if request is None else await run_in_thread(decode_fork_request, request)


def read_fork(body: Any) -> ForkQuery:
    """Read the body of a request for a fork."""
    fields = Fields(body)
    step, results = fields.raw("step"), fields.raw("results")
    if step is None:
        step = 0
    if type(step) is not int or step < 0:
        raise InvalidRequest("step must be a whole number, 0 or more.", param="step", code="invalid_type")
    if results is None:
        results = {}
    if (
        type(results) is not dict
        or len(results) > _MOST_RESULTS
        or not all(type(text) is str for text in results.values())
    ):
        raise InvalidRequest(
            "results must be an object with the text of a result for each id of a call.",
            param="results",
            code="invalid_type",
        )
    query = ForkQuery(step, fields.text("model"), results, fields.text("message"), fields.text("instructions"))
    fields.refuse_unknown()
    return query
