"""Runs of server tools: noted as they end, told at GET /v1/tool_invocations."""

import hashlib
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import asdict

from toolgate.conversation.ids import mint
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.server.app import Call, Endpoint
from toolgate.server.records.writer import Writer
from toolgate.server.responses.paging import listed, read_page, read_query, unknown_cursor
from toolgate.storage.invocations import InvocationStore, StoredInvocation, Wanted
from toolgate.tools.runner import Ended
from toolgate.wire.jsontext import encode


class ToolLog:
    """Notes every call of a server tool; arguments only with `keep_arguments`, and without secrets of ours."""

    def __init__(self, store: InvocationStore, writer: Writer, redact: Callable[[str], str]) -> None:
        self.keep_arguments = False
        self._store = store
        self._writer = writer
        self._redact = redact

    def ran(self, ended: Ended) -> None:
        """A call ended."""
        asked, spec = ended.asked, ended.spec
        kept = self._redact(asked.text) if self.keep_arguments else None
        row = StoredInvocation(
            id=f"inv_{mint()}",
            owner=asked.caller,
            run=ended.run,
            call=asked.call_id,
            tool=spec.name,
            source=spec.source,
            started=time.time() - ended.seconds,
            latency_ms=round(ended.seconds * 1000, 3),
            outcome=ended.outcome,
            digest=hashlib.sha256(asked.text.encode("utf-8", "replace")).hexdigest(),
            arguments=kept,
        )
        self._writer.put("invocation", self._store.adding(row), len(kept or "") + 500)

    def endpoints(self) -> list[Endpoint]:
        """What is served."""
        return [Endpoint("GET", "/v1/tool_invocations", self.list, OPENAI_CHAT.server)]

    async def list(self, call: Call) -> None:
        """List runs of server tools, newest first: the caller's own, or for an admin those of all keys."""
        said, page = read_query(call.exchange.query), read_page(call.exchange.query)
        owner = (said.get("owner") or None) if "admin" in call.caller.scopes else call.caller.name
        wanted = Wanted(owner, said.get("tool") or None, said.get("outcome") or None, said.get("run") or None)
        await self._writer.flush()
        rows = await self._store.page(wanted, page.after, page.limit + 1)
        if rows is None:
            raise unknown_cursor(page.after or "")
        await call.exchange.respond(200, encode(listed([_told(row) for row in rows], page.limit)))


def _told(row: StoredInvocation) -> dict[str, Any]:
    return {"object": "tool_invocation", **asdict(row)}
