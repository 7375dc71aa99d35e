"""Record the calls of server tools as they end, and list them at GET /v1/tool_invocations."""

import hashlib
import time
from collections.abc import Callable

from msgspec.structs import asdict

from toolgate.api.paging import list_page, read_page, read_query, unknown_cursor
from toolgate.api.records.write_queue import WriteQueue
from toolgate.conversation.random_ids import random_suffix
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import run_in_thread
from toolgate.http.application import AdmittedHttpRequest, HttpRoute
from toolgate.storage.invocations import InvocationFilter, InvocationStore, StoredInvocation
from toolgate.tools.runner import FinishedCallReport
from toolgate.wire.jsontext import encode


class InvocationRecorder:
    """Records every call of a server tool."""

    def __init__(
        self, store: InvocationStore, writer: WriteQueue, redact: Callable[[str], str], with_arguments: bool = False
    ) -> None:
        """Arguments are stored only `with_arguments`, and without the secrets that `redact` knows."""
        self._store = store
        self._writer = writer
        self._redact = redact
        self._with_arguments = with_arguments

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoint."""
        return [HttpRoute("GET", "/v1/tool_invocations", self.list, OPENAI_CHAT.server)]

    def configure(self, with_arguments: bool) -> None:
        """Store arguments from now on, or do not."""
        self._with_arguments = with_arguments

    def add(self, ended: FinishedCallReport) -> None:
        """Queue the record of a call that has ended."""
        invocation, spec = ended.invocation, ended.spec
        arguments = self._redact(invocation.text) if self._with_arguments else None
        row = StoredInvocation(
            id=f"inv_{random_suffix()}",
            owner=invocation.caller,
            run=ended.run,
            call=invocation.call_id,
            tool=spec.name,
            source=spec.source,
            started=time.time() - ended.seconds,
            latency_ms=round(ended.seconds * 1000, 3),
            outcome=ended.outcome,
            digest=hashlib.sha256(invocation.text.encode("utf-8", "replace")).hexdigest(),
            arguments=arguments,
        )
        self._writer.put(row.owner, "invocation", self._store.adding(row), len(arguments or "") + 500)

    async def list(self, call: AdmittedHttpRequest) -> None:
        """List calls of server tools, newest first: the caller's own, or for an admin those of all keys."""
        query, page = read_query(call.exchange.query), read_page(call.exchange.query)
        owner = (query.get("owner") or None) if "admin" in call.caller.scopes else call.caller.name
        tool, outcome, run = [query.get(name) or None for name in ("tool", "outcome", "run")]
        await self._writer.flush()
        rows = await self._store.page(InvocationFilter(owner, tool, outcome, run), page.after, page.limit + 1)
        if rows is None:
            raise unknown_cursor(page.after or "")

        def body() -> bytes:
            return encode(list_page([{"object": "tool_invocation", **asdict(row)} for row in rows], page.limit))

        await call.exchange.respond(200, await run_in_thread(body))
