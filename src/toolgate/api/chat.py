"""Answer chat requests of every dialect: decode, route, check, add the server's tools, and write the response.

It knows requests, routes and tools. How a response is written to the client is in `response_writer.py`.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter
from typing import Any, Protocol

from msgspec.structs import replace

from toolgate.api.response_writer import (
    AnswerRecorder,
    PreparedRequest,
    ResponseSink,
    ResponseWriter,
    StreamKeepaliveTimings,
)
from toolgate.api.tools_and_history_check import ToolsAndHistoryValidator
from toolgate.auth.authenticator import Caller
from toolgate.conversation.errors import Forbidden
from toolgate.conversation.request import ModelRequest
from toolgate.dialects.anthropic import DIALECT as ANTHROPIC
from toolgate.dialects.dialect import AnswerMetadata, Dialect, ServerCodec
from toolgate.dialects.openai_chat import DIALECT as OPENAI_CHAT
from toolgate.engine.json_thread import LARGE_BODY, run_in_thread
from toolgate.engine.ports import Model
from toolgate.http.application import AdmittedHttpRequest, Handler, HttpRoute, loses_errors
from toolgate.telemetry.request_log import RequestRecord, Telemetry
from toolgate.tools.execution.durable import DurableRunContext
from toolgate.tools.execution.options import RequestToolOptions, read_tool_options
from toolgate.tools.execution.prepare_run import ToolRunPreparer
from toolgate.upstreams.router import ModelRoute, Router
from toolgate.wire.decoded_list_cache import DecodedListCache

# Names the window of an editor, by its id or one of its folders, whose models and tools a request should use.
WINDOW_HEADER = b"x-toolgate-window"

# More items than this are decoded in a thread.
_MANY_ITEMS = 500
_UNUSED_DECISION = (
    "mcp_approval_response was not used, because the request has no server tools: "
    "send tool_execution and use_server_tools as in the request that asked"
)
_KIND = attrgetter("kind")


class ChatRequestContext(Protocol):
    """What the handler needs of a request, be it an HTTP request or a stored one that runs in the background."""

    @property
    def exchange(self) -> ResponseSink:
        """Where the response goes."""

    @property
    def caller(self) -> Caller:
        """The client's key and its rights."""

    @property
    def record(self) -> RequestRecord:
        """The request's record for log and metrics."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The headers by their lower-case names."""

    @property
    def body_size(self) -> int:
        """The bytes of the body as it was received."""


class ChatAnswerRecorder(AnswerRecorder, Protocol):
    """Stores the answer of a plain chat, before the client receives it or afterwards."""

    def delivered(self) -> None:
        """Store the answer that was sent, unless it is stored already."""


class ChatRecorderFactory(Protocol):
    """Decides which plain chats are stored."""

    def recorder_for(
        self, call: AdmittedHttpRequest, prepared: PreparedRequest
    ) -> tuple[PreparedRequest, ChatAnswerRecorder | None]:
        """Return the request, and the recorder of its answer if that is to be stored."""


class ChatHandler:
    """Answers requests of any dialect."""

    def __init__(
        self,
        router: Router,
        timings: StreamKeepaliveTimings,
        telemetry: Telemetry,
        tool_runs: ToolRunPreparer | None = None,
        recording: ChatRecorderFactory | None = None,
    ) -> None:
        """Without `tool_runs` there are no server tools, without `recording` no plain chat is stored."""
        self._router = router
        self._tool_runs = tool_runs
        self._recording = recording
        self._check = ToolsAndHistoryValidator()
        self._tools = DecodedListCache()
        # The writer's own methods, without a call in between: the first writes the response, the second returns it whole.
        writer = ResponseWriter(timings, telemetry)
        self.respond = writer.respond
        self.complete = writer.complete

    def endpoints(self) -> list[HttpRoute]:
        """Return the endpoints of the dialects that need nothing but a chat."""
        return [
            HttpRoute("POST", "/v1/chat/completions", self.handler(OPENAI_CHAT), OPENAI_CHAT.server),
            HttpRoute("POST", "/chat/completions", self.handler(OPENAI_CHAT), OPENAI_CHAT.server),
            HttpRoute("POST", "/v1/messages", self.handler(ANTHROPIC), ANTHROPIC.server),
        ]

    def handler(self, dialect: Dialect) -> Handler:
        """Return the handler of one dialect's requests."""

        async def handle(call: AdmittedHttpRequest) -> None:
            body = await call.exchange.json(self._tools)
            await self.respond_and_record(call, await self.prepare(call, dialect, dialect.server, body))

        handle.__doc__ = f"Answer a request of the {dialect.name} dialect, whole or streamed."
        return handle

    def with_model(self, call: ChatRequestContext, body: Any) -> Any:
        """Fill in the default model where a request body names none."""
        return self._router.with_model(body, call.caller.may_use)

    def respond_and_record(self, call: AdmittedHttpRequest, prepared: PreparedRequest) -> Awaitable[None]:
        """Ask the model, write its response, and store the chat if it is to be stored."""
        # Plain requests are passed on without a coroutine around them: that would cost each of them a call.
        if self._recording is None:
            return self.respond(prepared)
        prepared, recorder = self._recording.recorder_for(call, prepared)
        if recorder is None:
            return self.respond(prepared)

        async def respond_then_record() -> None:
            await self.respond(prepared, recorder)
            recorder.delivered()

        return respond_then_record()

    async def cancel_approvals(self, run: str) -> None:
        """Deny the pending approvals of a cancelled run."""
        if self._tool_runs is not None:
            await self._tool_runs.deny_approvals(run)

    async def prepare(
        self,
        call: ChatRequestContext,
        dialect: Dialect,
        codec: ServerCodec,
        body: Any,
        durable: DurableRunContext | None = None,
        decoded: ModelRequest | None = None,
    ) -> PreparedRequest:
        """Decode (unless `decoded` is given), route and check a body; with `durable`, for a run that survives crashes."""
        headers, body_size, caller, record = call.headers, call.body_size, call.caller, call.record
        defaults = self._tool_runs.defaults.options if self._tool_runs else None
        body, options = read_tool_options(body, headers, defaults)
        if type(body) is dict and body.get("model") in (None, ""):
            body = self.with_model(call, body)
        # What a body of items stands for may be more than was received: some are restored from storage.
        small = body_size <= LARGE_BODY and type(body) is dict and "input" not in body
        if decoded is None:
            in_loop = durable is None and (small or not _is_large(body_size, body))
            decoded = codec.decode_request(body) if in_loop else await run_in_thread(codec.decode_request, body)
        request = decoded
        if dialect.forwarded_headers:
            request = with_headers(request, headers, dialect.forwarded_headers)
        route = self._router.find(request.model)
        record.dialect, record.model, record.stream = dialect.name, route.name, request.stream  # also if it is refused
        caller.require_model(route.name, request.model)
        editor = window_of(call, route)
        whole = route.whole_arguments or headers.get(b"x-toolgate-arguments") == b"whole"
        relay, id = request.relay and not whole, durable.run if durable is not None else record.request_id
        request = replace(
            request, caller=caller.name, tally=record.tally, request_id=id, relay=relay, small=small, editor=editor
        )
        on_delivered: Callable[[], Awaitable[None]] | None = None
        if options is None and not (request.tools and "hosted" in map(_KIND, request.tools)):
            if request.tools:
                request = await self._check.check(request, route)
            else:  # most requests: a coroutine would cost as much as the check
                request = self._check.check_history(request, route)
            model_request, model = request, route.model
        else:
            options = options or RequestToolOptions()
            # This client does not know the items in which its dialect shows calls of server tools.
            if options.status != "events" and not dialect.reads_server_tools(request):
                dialect = replace(dialect, native_tools=False, native_pause=False)
            request, model_request, model, on_delivered = await self._with_server_tools(
                call, request, route, options, dialect, body, durable
            )
        if request.decisions and model is route.model:  # there is no run with server tools that would read them
            request = replace(request, warnings=(*request.warnings, _UNUSED_DECISION))
        metadata = _answer_metadata(record, headers, dialect, codec, request.model, options)
        return PreparedRequest(
            call.exchange,
            dialect,
            codec,
            request,
            model,
            model_request,
            metadata,
            record,
            whole,
            None,
            on_delivered,
            decoded,
        )

    async def _with_server_tools(
        self,
        call: ChatRequestContext,
        request: ModelRequest,
        route: ModelRoute,
        options: RequestToolOptions,
        dialect: Dialect,
        body: Any,
        durable: DurableRunContext | None,
    ) -> tuple[ModelRequest, ModelRequest, Model, Callable[[], Awaitable[None]] | None]:
        """Return the client's request, the one for the model, the model with the server's tools, and `on_delivered`."""
        tool_runs = self._tool_runs
        if tool_runs is None or not tool_runs.applies_to(request, options, dialect):
            if tool_runs is None and (options.query or options.execution == "auto"):
                request = replace(request, warnings=(*request.warnings, "server tools are turned off here"))
            request = await self._check.check(request, route)
            return request, request, route.model, None
        # A run that is resumed after a restart may come before the sources of its tools have connected.
        if durable is not None:
            await tool_runs.wait_for_tools(durable.history.messages)
        restored = await tool_runs.restore_history(call.caller, request, dialect)
        tools = await tool_runs.select_tools(call.caller, restored, route, options, dialect)
        # With the server's tools: `tool_choice` may name one of them.
        checked = await self._check.check(tools.request, route, ours=tools.names)
        tools = replace(tools, request=checked)
        record = call.record

        def note_run(run: str) -> None:
            record.run = run

        run = await tool_runs.prepare_model(
            call.caller, tools, route, options, dialect, body, record.request_id, durable, note_run
        )
        request = replace(request, warnings=(*checked.warnings, *tools.selection.warnings))
        return request, run.request, run.model, run.on_delivered


def _answer_metadata(
    record: RequestRecord,
    headers: Mapping[bytes, bytes],
    dialect: Dialect,
    codec: ServerCodec,
    model: str,
    options: RequestToolOptions | None,
) -> AnswerMetadata:
    return AnswerMetadata(
        codec.reply_id(record.request_id),
        int(time.time()),
        model,
        options is not None and options.status == "events",
        record.times,
        dialect.native_tools,
        record.request_id,
        loses_errors(headers),
    )


def _is_large(body_size: int, body: Any) -> bool:
    """Return whether the body takes long to decode; items restored from storage are not in the bytes received."""
    items = body.get("input") if type(body) is dict else None
    return body_size > LARGE_BODY or (type(items) is list and len(items) > _MANY_ITEMS)


def window_of(call: ChatRequestContext | AdmittedHttpRequest, route: ModelRoute) -> str | None:
    """Return the window of an editor that the client names, empty for any; None if it may use none.

    A model that an editor may answer for is refused to web pages without a key: every answer may cost a person something.
    """
    if call.caller.editor:
        return call.headers.get(WINDOW_HEADER, b"").decode("latin-1") if route.editor else ""
    if route.editor:
        raise Forbidden("Web pages may use the models of an editor only with a key.", code="origin_not_allowed")
    return None


def with_headers(request: ModelRequest, headers: Mapping[bytes, bytes], names: tuple[str, ...]) -> ModelRequest:
    """Return the request with those of the client's headers that change the meaning of its body."""
    found = {name: value.decode("latin-1") for name in names if (value := headers.get(name.encode())) is not None}
    return replace(request, headers=found) if found else request
