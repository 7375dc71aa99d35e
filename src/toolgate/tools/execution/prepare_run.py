"""Prepare a model with server tools for one request: select its tools, restore its history, and build the tool loop.

Knows tools, approvals and journals. It must not know how a response is written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.auth.authenticator import Authenticator, Caller
from toolgate.conversation.errors import ClientRequestError, Unauthenticated
from toolgate.conversation.history import split_at_waiting_calls, unanswered_calls
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, ToolDef, ToolServer
from toolgate.conversation.tool_definition_cache import tool_names
from toolgate.dialects.dialect import Dialect
from toolgate.engine.client_visible_events import Presentation
from toolgate.engine.json_thread import run_in_thread
from toolgate.engine.ports import Model, ModelStream, RunJournal
from toolgate.engine.run_limits import RunLimits
from toolgate.engine.tool_loop import EarlierAttempts, ToolLoop
from toolgate.runs.timeline_recorder import RunTimeline, RunTimelines
from toolgate.tools.execution.durable import HOLD_SECONDS, ApprovalsWithRecordedUse, DurableApprovals, DurableRunContext
from toolgate.tools.execution.observed_approvals import ObservedApprovals
from toolgate.tools.execution.options import RequestToolOptions
from toolgate.tools.execution.stored_turns import HiddenTurnRestorer, RunRequestDigest, StoredRunJournal, request_key
from toolgate.tools.prompt_references import referenced_tools
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.run_server_tools import RunContext, RunServerTools, was_called
from toolgate.tools.runner import ToolRunner
from toolgate.tools.selection import ToolRights, ToolSelection
from toolgate.tools.tool import CallApprovals, ServerToolDefinition, Stance
from toolgate.tools.virtual_tool_groups import VirtualToolSet, VirtualToolSetFactory
from toolgate.upstreams.router import ModelRoute
from toolgate.wire.jsontext import encode

# How long a run that is resumed after a start waits for its tools.
TOOL_WAIT_SECONDS = 5.0
# The name under which a request may ask for all of the server's tools as those of an MCP server.
OWN_LABEL = "toolgate"


class ApprovalsWithAnswering(ApprovalsWithRecordedUse, Protocol):
    """Approvals that clients can answer."""

    async def answer(self, id: str, approve: bool, *, by: str, reason: str | None = None) -> object:
        """Approve or deny a pending call; the answer is final."""

    async def deny_all(
        self, *, by: str, caller: str | None = None, run: str | None = None, reason: str | None = None
    ) -> object:
        """Deny all pending calls, of one run or of all."""


class ToolRunDefaults(Struct, frozen=True):
    """The options and limits of runs, unless a request or the model's settings override them."""

    options: RequestToolOptions | None = None
    budget: RunLimits = RunLimits()
    parallel: int = 8
    hold_seconds: float = 120.0
    context: Mapping[str, Any] = {}
    group_above: int | None = None
    # The MCP servers of the configuration by label, with their URLs.
    servers: Mapping[str, str | None] = {}


class ModelWithServerTools(Struct, frozen=True):
    """A model that has the server's tools, and the request to ask it.

    `on_delivered` is called when the client has received the response.
    """

    model: Model
    request: ModelRequest
    warnings: tuple[str, ...] = ()
    on_delivered: Callable[[], Awaitable[None]] | None = None


class ToolRunPreparer:
    """Prepares models with the server's tools for requests."""

    def __init__(
        self,
        registry: ToolRegistry,
        runner: ToolRunner,
        approvals: ApprovalsWithAnswering,
        memory: HiddenTurnRestorer,
        defaults: ToolRunDefaults,
        keys: Authenticator | None = None,
        editor_context: Callable[[str], Mapping[str, Any]] = lambda window: {},
        timelines: RunTimelines | None = None,
        approve_command: str = "toolgate approvals approve",
    ) -> None:
        """`keys` finds callers as they are now: a run can outlive its key. `timelines` show runs to people.

        `editor_context` returns the context keys of an editor's window, by the name that the client gives it.
        `approve_command` is shown to clients whose calls wait for a person.
        """
        self.registry = registry
        self.defaults = defaults
        self._keys = keys
        self._editor_context = editor_context
        self._offered = VirtualToolSetFactory()
        self._runner = runner
        self._approvals = approvals
        self._memory = memory
        self._timelines = timelines
        self._approve_command = approve_command

    def configure(self, defaults: ToolRunDefaults) -> None:
        """Use these defaults for requests that arrive from now on."""
        self.defaults = defaults

    def applies_to(self, request: ModelRequest, options: RequestToolOptions | None, dialect: Dialect) -> bool:
        """Return whether the request uses server tools at all; most do not, and are spared all else."""
        if options is not None and (options.query or options.execution == "auto"):
            return True
        return dialect.native_tools and bool(dialect.extract_servers(request, self._is_configured)[1])

    async def restore_history(self, caller: Caller, request: ModelRequest, dialect: Dialect) -> ModelRequest:
        """Return the request with those parts of earlier turns that its client did not see."""
        # Clients of Ollama, the only dialect with another framing, may leave out the ids of calls.
        return await self._memory.restore(caller.name, request, dialect.native_tools, has_ids=dialect.framing == "sse")

    async def deny_approvals(self, run: str) -> None:
        """Deny the pending approvals of a run that was cancelled."""
        await self._approvals.deny_all(by=OWN_LABEL, run=run, reason="The response was cancelled.")

    async def wait_for_tools(self, messages: Sequence[Message]) -> None:
        """Wait a while for the tools that the last answer calls: after a start some sources take their time."""
        names = {call.name for call in unanswered_calls(messages)}
        changed = asyncio.Event()
        unsubscribe = self.registry.subscribe(changed.set)
        try:
            async with asyncio.timeout(TOOL_WAIT_SECONDS):
                while any(self.registry.entry(name) is None for name in names):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pass  # the call of a missing tool fails with an error of its own
        finally:
            unsubscribe()

    async def select_tools(
        self, caller: Caller, request: ModelRequest, route: ModelRoute, options: RequestToolOptions, dialect: Dialect
    ) -> "RequestTools":
        """Return the tools that this request may use."""
        request, servers = dialect.extract_servers(request, self._is_configured)
        runs = options.execution == "auto" or bool(servers)
        # Some clients list the tools of GET /v1/tools and send them back as their own: a copy of ours is run here.
        copies = {tool.name for tool in request.tools if runs and _is_copy(tool, self.registry)}
        referenced = [tool.spec.name for tool in referenced_tools(request.messages, self.registry)]
        context = self.context_of(caller, options.window)
        context |= {"model": route.name, "dialect": dialect.name}
        rights = [ToolRights(one.allow_tools, one.block_tools) for one in (caller, route)]
        from_servers = _tools_of(servers, self.registry)
        named = [*referenced, *copies, *[spec.name for _, spec in from_servers]]
        selection = ToolSelection(self.registry, options.query, context, rights, named)
        own = [tool for tool in request.tools if tool.name not in copies or not selection.permits(tool.name)]
        offered = self._offered.offer(
            selection.tools,
            self.registry.search,
            limit=route.max_tools - len(own),
            threshold=self.defaults.group_above,
            taken={tool.name for tool in own},
            pinned=selection.pinned,
        )
        # No state is kept between requests: which groups the model had opened follows from the calls in its history.
        await offered.reopen_from(request.messages)
        stances = _stances(from_servers)
        return RequestTools(replace(request, tools=tuple(own)), offered, selection, stances, runs)

    def context_of(self, caller: Caller, window: str = "") -> dict[str, Any]:
        """Return the context keys for the when-clauses of tools; those of the configuration win over the editor's."""
        editor = self._editor_context(window) if caller.editor else {}
        return {**editor, **self.defaults.context, "caller": caller.name}

    async def prepare_model(
        self,
        caller: Caller,
        tools: "RequestTools",
        route: ModelRoute,
        options: RequestToolOptions,
        dialect: Dialect,
        body: Any,
        request_id: str,
        durable: DurableRunContext | None = None,
        on_run: Callable[[str], None] = lambda run: None,
    ) -> ModelWithServerTools:
        """Return the model with these tools; `durable` if its run survives its process.

        A run that is not durable has the id of its request, in approvals and in the records of its calls; one that
        resumes an earlier attempt has that of the first. `on_run` is called with the id when the run begins.
        """
        request = tools.request
        if not tools.runs:
            offered = [tool for tool in tools.offered.offered() if not tools.offered.is_virtual(tool.name)]
            return ModelWithServerTools(
                route.model, replace(request, tools=(*request.tools, *offered)), tools.selection.warnings
            )
        # The same request again resumes this run, so that all that makes it another request is in the digest.
        parts = (dialect.name, route.name, repr(options))
        key = _body_key(parts, body) if request.small else await run_in_thread(_body_key, parts, body)
        # A dialect that can ask the client ends the response with the question; others keep the stream open.
        hold = 0.0 if dialect.native_approvals else self.defaults.hold_seconds
        if durable is not None:
            key, hold = request_key(durable.run.encode()), HOLD_SECONDS
        run = durable.run if durable is not None else request_id
        identity = RunContext(caller.name, options.session, run, tools.stances, hold, window=options.window)
        native = dialect.native_tools, dialect.native_approvals, dialect.native_pause
        presentation = Presentation(*native, options.status == "text", self._approve_command)

        # Deferred until the model is asked: a journal that is opened holds the key of the run, and must be closed.
        async def begin() -> tuple[ToolLoop, StoredRunJournal]:
            journal, past = await self._memory.begin(caller.name, key, request, dialect.native_tools, run)
            try:
                on_run(journal.run)
                timeline = await self._timeline(durable, journal, caller, route)
                await self._apply_decisions(caller, request, journal, past, durable)
                asked = self._approvals if timeline is None else ObservedApprovals(self._approvals, timeline)
                approvals, past, notes = await self._for_durable_run(durable, asked, past, journal, tools, identity)
            except BaseException:
                journal.close()
                raise
            tainted = _is_tainted((*request.messages, *past.messages), self.registry)
            known = replace(identity, run=journal.run, tainted=tainted)
            server_tools = RunServerTools(tools.offered, tools.selection, self._runner, approvals, known)
            checked, budget = _CheckedModel(route, caller, self._keys), self._budget(options, request)
            loop = ToolLoop(checked, server_tools, notes, presentation, budget, route.price)
            loop = replace(loop, prices=route.prices, parallel=self.defaults.parallel, history=past)
            return loop if timeline is None else replace(loop, observer=timeline), journal

        model = _JournalledModel(begin)
        return ModelWithServerTools(model, request, tools.selection.warnings, model.on_delivered)

    async def _timeline(
        self, durable: DurableRunContext | None, journal: StoredRunJournal, caller: Caller, route: ModelRoute
    ) -> RunTimeline | None:
        """Return the timeline of the run; that of a durable run is opened by the one that makes it."""
        if durable is not None:
            return durable.timeline
        if self._timelines is None:
            return None
        if journal.resumed:
            return await self._timelines.resume(journal.run, caller.name, route.name)
        return self._timelines.begin(journal.run, caller.name, route.name)

    async def _for_durable_run(
        self,
        durable: DurableRunContext | None,
        approvals: ApprovalsWithRecordedUse,
        past: EarlierAttempts,
        journal: StoredRunJournal,
        tools: "RequestTools",
        identity: RunContext,
    ) -> tuple[CallApprovals, EarlierAttempts, RunJournal]:
        """Return the approvals that the run asks, the history that it continues, and the journal that it writes."""
        if durable is None and not journal.resumed:
            return approvals, past, journal
        if durable is None:  # an approval that was used by a call that never started is still good for it
            pending = {call.id for call in unanswered_calls(past.messages)} - past.started
            return DurableApprovals(approvals, pending), past, journal
        own = durable.approvals(approvals)
        # The earlier attempt may have opened groups of tools, whose calls are in its steps and not in the request.
        await tools.offered.reopen_from(durable.history.messages)
        past = await durable.with_repeated_calls(
            durable.merge(past), own, tools.selection.find, identity.caller, identity.session
        )
        return own, past, durable.journal(journal)

    async def _apply_decisions(
        self,
        caller: Caller,
        request: ModelRequest,
        journal: StoredRunJournal,
        past: EarlierAttempts,
        durable: DurableRunContext | None,
    ) -> None:
        """Apply the decisions of the request, except where an earlier attempt did so or the call has started already."""
        if journal.resumed:
            return
        earlier, _ = split_at_waiting_calls(request)
        # The conversation also holds the answers of earlier turns, whose calls have run by now.
        waiting = {call.approval for call in unanswered_calls(earlier) if call.id not in past.started}
        # The attempt that died may have answered some of them already, which is an error the second time.
        ignored = (ClientRequestError,) if durable is not None and durable.resumed else ()
        for decision in request.decisions:
            if decision.approval in waiting:
                with suppress(*ignored):
                    await self._approvals.answer(
                        decision.approval, decision.approve, by=caller.name, reason=decision.reason
                    )

    def _budget(self, options: RequestToolOptions, request: ModelRequest) -> RunLimits:
        """Return the limits of the run; a client may ask for fewer calls than we allow, and for other rounds."""
        budget = self.defaults.budget
        if options.rounds is not None:
            budget = replace(budget, rounds=options.rounds)
        most = request.extra.get(request.dialect, {}).get("max_tool_calls")
        if type(most) is int and most > 0:
            budget = replace(budget, calls=min(most, budget.calls or most))
        return budget

    def _is_configured(self, server: ToolServer) -> bool:
        if server.label == OWN_LABEL:
            return True
        known = self.defaults.servers
        return server.label in known and (server.url is None or server.url == known[server.label])


class RequestTools(Struct, frozen=True):
    """The tools of one request: the client's own in `request`, the server's in `offered`; `runs` if we execute them."""

    request: ModelRequest
    offered: VirtualToolSet
    selection: ToolSelection
    stances: Mapping[str, Stance]
    runs: bool

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the server's tools that are offered at first."""
        return tool_names(self.offered.offered())


class _CheckedModel:
    """A model that refuses when the caller may not use it any more: a run can outlive its key."""

    def __init__(self, route: ModelRoute, caller: Caller, keys: Authenticator | None) -> None:
        self._route = route
        self._caller = caller
        self._keys = keys

    async def ask(self, request: ModelRequest) -> ModelStream:
        caller = self._keys.named(self._caller.name) if self._keys is not None else self._caller
        if caller is None:
            raise Unauthenticated("The key of this run is no longer valid, so that the run was ended.")
        caller.require_model(self._route.name)
        return await self._route.model.ask(request)


class _JournalledModel:
    """A model whose journal is closed when its answer is."""

    def __init__(self, begin: Callable[[], Awaitable[tuple[ToolLoop, StoredRunJournal]]]) -> None:
        self._begin = begin
        self._journal: StoredRunJournal | None = None

    async def ask(self, request: ModelRequest) -> ModelStream:
        model, journal = await self._begin()
        self._journal = journal
        try:
            run = await model.ask(request)
        except BaseException:
            journal.close()
            raise
        run.on_close(journal.close)
        return run

    async def on_delivered(self) -> None:
        if self._journal is not None:
            await self._journal.delivered()


def _body_key(parts: Sequence[str], body: Any) -> RunRequestDigest:
    """Return the key of the run that a request with this body starts."""
    private = type(body) is dict and body.get("store") is False
    return request_key(*[part.encode() for part in parts], encode(body), private=private)


def _is_copy(tool: ToolDef, registry: ToolRegistry) -> bool:
    """Return whether the client's definition is a copy of ours, so that it means our tool.

    One that differs in anything that the model reads is the client's own tool of the same name.
    """
    entry = registry.entry(tool.name)
    if entry is None or entry.spec.private or tool.kind != "function" or tool.namespace is not None:
        return False
    return (tool.description, tool.input_schema) == (entry.spec.description, entry.spec.input_schema)


def _is_tainted(messages: Sequence[Message], registry: ToolRegistry) -> bool:
    """Return whether the model reads untrusted text: results of our tools that reach outside."""
    parts = [part for message in messages for part in message.parts]
    read = {part.call_id for part in parts if isinstance(part, ToolResult) and was_called(part)}
    calls = [part for part in parts if isinstance(part, ToolCall) and part.id in read]
    ours = {call.name for call in calls if call.executor == "gateway"}
    found = [entry.spec for name in ours if (entry := registry.entry(name)) is not None]
    return any(spec.annotations.open_world for spec in found)


def _tools_of(servers: Sequence[ToolServer], registry: ToolRegistry) -> list[tuple[ToolServer, ServerToolDefinition]]:
    """Return the tools that the request takes from servers; it may name them as the server does or as we do."""
    labelled = {server.label: server for server in servers}
    found = []
    for entry in registry.entries() if servers else ():
        spec = entry.spec
        # The source of an MCP server's tools is `mcp/` and its label.
        for server in (labelled.get(OWN_LABEL), labelled.get(spec.source[4:])):
            if server is not None and (
                server.allowed is None or spec.name in server.allowed or spec.origin in server.allowed
            ):
                found.append((server, spec))
    return found


def _stances(taken: Sequence[tuple[ToolServer, ServerToolDefinition]]) -> dict[str, Stance]:
    """Return the tools for which the request itself demands an approval."""
    stances: dict[str, Stance] = {}
    for server, spec in taken:
        known = {spec.name, spec.origin}
        # `require_approval` lists the tools that need one, or those that do not: `{"never": {"tool_names": …}}`.
        asked = (
            known.isdisjoint(server.approval_exempt)
            if server.approval_required is None
            else not known.isdisjoint(server.approval_required)
        )
        if asked:
            stances[spec.name] = "ask"
    return stances
