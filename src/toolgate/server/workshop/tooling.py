"""From a request that wants server tools to a model that has them: which tools, for whom, how told, what remembered."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from toolgate.conversation.errors import ClientFault, Unauthenticated
from toolgate.conversation.history import unanswered
from toolgate.conversation.message import Message, ToolCall, ToolResult
from toolgate.conversation.request import ModelRequest, ToolDef, ToolServer
from toolgate.conversation.stock import names_of
from toolgate.dialects.dialect import Dialect
from toolgate.engine.limits import Budget
from toolgate.engine.ports import Answer, Journal, Model
from toolgate.engine.rounds import Past, WithTools
from toolgate.engine.teller import Manner
from toolgate.server.callers.auth import Caller, Keys
from toolgate.server.workshop.journal import Memory, RunJournal, request_key
from toolgate.server.workshop.lasting import HOLD_SECONDS, Lasting, LastingApprovals
from toolgate.server.workshop.lasting import Desk as LastingDesk
from toolgate.server.workshop.wanted import Wanted
from toolgate.tools.references import referenced
from toolgate.tools.registry import Registry
from toolgate.tools.runner import Runner
from toolgate.tools.selection import Rights, Selection
from toolgate.tools.tool import Approvals, Stance, ToolSpec
from toolgate.tools.toolbox import Behalf, RunToolbox
from toolgate.tools.virtual import Shelf, Shelves
from toolgate.upstreams.router import Route
from toolgate.wire.jsontext import encode

BROUGHT_SECONDS = 5.0
"""How long a run that goes on after a start waits for its tools."""

OWN_LABEL = "toolgate"
"""The name under which a request may ask for all of the server's tools as those of an MCP server."""


class Desk(LastingDesk, Protocol):
    """Approvals that clients can answer."""

    async def answer(self, id: str, approve: bool, *, by: str, reason: str | None = None) -> object:
        """Approve or deny, once and for all."""

    async def deny_all(
        self, *, by: str, caller: str | None = None, run: str | None = None, reason: str | None = None
    ) -> object:
        """Deny everything that waits, of one run or of all."""


class Terms(Struct, frozen=True):
    """How runs go unless a request or the model's row says otherwise."""

    wanted: Wanted | None = None
    budget: Budget = Budget()
    parallel: int = 8
    hold_seconds: float = 120.0
    context: Mapping[str, Any] = {}
    group_above: int | None = None
    servers: Mapping[str, str | None] = {}
    """The MCP servers of the configuration by label, with their URLs."""


async def untold() -> None:
    """Nobody needs to know that the client has heard the answer."""


class Equipment(Struct, frozen=True):
    """What a question needs to be asked with the server's tools: the model that has them, and the request for it.

    `told` is to be called when the client has heard the answer.
    """

    model: Model
    request: ModelRequest
    warnings: tuple[str, ...] = ()
    told: Callable[[], Awaitable[None]] = untold


class Tooling:
    """The server's tools, ready for any request."""

    def __init__(self, registry: Registry, runner: Runner, desk: Desk, memory: Memory, terms: Terms) -> None:
        self.registry = registry
        self.terms = terms
        self.keys: Keys | None = None
        self._shelves = Shelves()
        self._runner = runner
        self._desk = desk
        self._memory = memory

    def concerns(self, request: ModelRequest, wanted: Wanted | None, dialect: Dialect) -> bool:
        """Whether the request has to do with server tools at all; most have not, and pay nothing."""
        if wanted is not None and (wanted.wish or wanted.execution == "auto"):
            return True
        return dialect.native and bool(dialect.take_servers(request, self._is_known)[1])

    async def restored(self, caller: Caller, request: ModelRequest, dialect: Dialect) -> ModelRequest:
        """The request with what its client did not see of earlier turns."""
        return await self._memory.restored(caller.name, request, dialect.native, has_ids=dialect.framing == "sse")

    async def dismiss(self, run: str) -> None:
        """Close the questions of a run that was cancelled: nobody needs to answer them."""
        await self._desk.deny_all(by=OWN_LABEL, run=run, reason="The response was cancelled.")

    async def brought(self, messages: Sequence[Message]) -> None:
        """Wait a while until the tools that the last answer calls are here: after a start some sources take their time."""
        names = {call.name for call in unanswered(messages)}
        changed = asyncio.Event()
        unsubscribe = self.registry.subscribe(changed.set)
        try:
            async with asyncio.timeout(BROUGHT_SECONDS):
                while any(self.registry.entry(name) is None for name in names):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pass  # whoever calls one that is not here is told so
        finally:
            unsubscribe()

    def outfit(self, caller: Caller, request: ModelRequest, route: Route, wanted: Wanted, dialect: Dialect) -> "Outfit":
        """The tools that this request may use."""
        request, servers = dialect.take_servers(request, self._is_known)
        runs = wanted.execution == "auto" or bool(servers)
        copied = [tool.name for tool in request.tools if runs and _is_copy(tool, self.registry)]
        pulled = [tool.spec.name for tool in referenced(request.messages, self.registry)]
        context = {**self.terms.context, "model": route.name, "dialect": dialect.name, "caller": caller.name}
        rights = [Rights(one.allow_tools, one.block_tools) for one in (caller, route)]
        served = [spec.name for server in servers for spec in _tools_of(server, self.registry)]
        selection = Selection(self.registry, wanted.wish, context, rights, [*pulled, *copied, *served])
        theirs = [tool for tool in request.tools if tool.name not in copied or not selection.permits(tool.name)]
        shelf = self._shelves.shelf(
            selection.tools,
            self.registry.search,
            limit=route.max_tools - len(theirs),
            threshold=self.terms.group_above,
            taken={tool.name for tool in theirs},
            pinned=selection.pinned,
        )
        shelf.recall(request.messages)
        stances = _stances(servers, self.registry)
        return Outfit(replace(request, tools=tuple(theirs)), shelf, selection, stances, runs)

    async def equip(
        self,
        caller: Caller,
        outfit: "Outfit",
        route: Route,
        wanted: Wanted,
        dialect: Dialect,
        body: Any,
        request_id: str,
        lasting: Lasting | None = None,
    ) -> Equipment:
        """The model with the tools of the outfit in its hands, for a run that may be `lasting`.

        One that is not goes by the id of its request, in approvals and in what is noted of its tools.
        """
        request = outfit.request
        if not outfit.runs:
            offered = [tool for tool in outfit.shelf.offered() if not outfit.shelf.is_virtual(tool.name)]
            return Equipment(route.model, replace(request, tools=(*request.tools, *offered)), outfit.selection.warnings)
        words = (dialect.name.encode(), route.name.encode(), repr(wanted).encode(), encode(body))
        key = request_key(*words, private=_is_private(body))
        hold = 0.0 if dialect.asking else self.terms.hold_seconds
        if lasting is not None:
            key, hold = request_key(lasting.run.encode()), HOLD_SECONDS
        run = lasting.run if lasting is not None else request_id
        behalf = Behalf(caller.name, wanted.session, run, outfit.stances, hold)
        manner = Manner(dialect.native, dialect.asking, dialect.pausing, wanted.status == "text")

        async def begin() -> tuple[WithTools, RunJournal]:
            journal, past = await self._memory.begin(caller.name, key, request, dialect.native, run)
            try:
                await self._take_decisions(caller, request, journal, past, lasting)
                approvals, past, notes = await self._lasting(lasting, past, journal, outfit, behalf)
            except BaseException:
                journal.close()
                raise
            tainted = _is_tainted((*request.messages, *past.messages), self.registry)
            known = replace(behalf, run=journal.run, tainted=tainted)
            toolbox = RunToolbox(outfit.shelf, outfit.selection, self._runner, approvals, known)
            gear = WithTools(
                self._while_welcome(caller, route), toolbox, notes, manner, self._budget(wanted, request), route.price
            )
            return replace(gear, parallel=self.terms.parallel, past=past), journal

        journalled = _Journalled(begin)
        return Equipment(journalled, request, outfit.selection.warnings, journalled.told)

    async def _lasting(
        self, lasting: Lasting | None, past: Past, journal: RunJournal, outfit: "Outfit", behalf: Behalf
    ) -> tuple[Approvals, Past, Journal]:
        """What the run asks for consent, goes on from and writes to."""
        if lasting is None and not journal.resumed:
            return self._desk, past, journal
        if lasting is None:  # consent that was used up for a call that never began is still good for it
            pending = {call.id for call in unanswered(past.messages)} - past.started
            return LastingApprovals(self._desk, pending), past, journal
        approvals = lasting.approvals(self._desk)
        outfit.shelf.recall(lasting.past.messages)
        past = await lasting.settled(
            lasting.over(past), approvals, outfit.selection.find, behalf.caller, behalf.session
        )
        return approvals, past, lasting.journal(journal)

    async def _take_decisions(
        self, caller: Caller, request: ModelRequest, journal: RunJournal, past: Past, lasting: Lasting | None
    ) -> None:
        """Those that still matter: an earlier attempt has taken its own, and what has begun is not decided again."""
        if journal.resumed:
            return
        waiting = {call.approval for call in unanswered(request.messages) if call.id not in past.started}
        taken = (ClientFault,) if lasting is not None and lasting.resumed else ()
        for decision in request.decisions:
            if decision.approval in waiting:
                with suppress(*taken):
                    await self._desk.answer(decision.approval, decision.approve, by=caller.name, reason=decision.reason)

    def _while_welcome(self, caller: Caller, route: Route) -> Model:
        """The model, asked as long as the caller may ask it: a run can outlive its key."""
        keys = self.keys

        def check() -> None:
            now = keys.named(caller.name) if keys is not None else caller
            if now is None:
                raise Unauthenticated("The key of this run is no longer valid, so that the run was ended.")
            now.require_model(route.name)

        return _Checked(route.model, check)

    def _budget(self, wanted: Wanted, request: ModelRequest) -> Budget:
        """What the run may use up; a client may ask for less than we allow, and for other rounds."""
        budget = self.terms.budget
        if wanted.rounds is not None:
            budget = replace(budget, rounds=wanted.rounds)
        most = request.extra.get(request.dialect, {}).get("max_tool_calls")
        if type(most) is int and most > 0:
            budget = replace(budget, calls=min(most, budget.calls or most))
        return budget

    def _is_known(self, server: ToolServer) -> bool:
        if server.label == OWN_LABEL:
            return True
        known = self.terms.servers
        return server.label in known and (server.url is None or server.url == known[server.label])


class Outfit(Struct, frozen=True):
    """The tools of one request: the client's own stand in `request`, the server's on the shelf."""

    request: ModelRequest
    shelf: Shelf
    selection: Selection
    stances: Mapping[str, Stance]
    runs: bool

    @property
    def names(self) -> frozenset[str]:
        """The names of the server's tools that are offered at first."""
        return names_of(self.shelf.offered())


class _Checked:
    """A model that is asked only after a check."""

    def __init__(self, model: Model, check: Callable[[], None]) -> None:
        self._model = model
        self._check = check

    async def ask(self, request: ModelRequest) -> Answer:
        """The model's answer."""
        self._check()
        return await self._model.ask(request)


class _Journalled:
    """A model whose run is over, for its journal, when its answer is closed."""

    def __init__(self, begin: Callable[[], Awaitable[tuple[WithTools, RunJournal]]]) -> None:
        self._begin = begin
        self._journal: RunJournal | None = None

    async def ask(self, request: ModelRequest) -> Answer:
        """The run; if it cannot begin it is over."""
        model, journal = await self._begin()
        self._journal = journal
        try:
            run = await model.ask(request)
        except BaseException:
            journal.close()
            raise
        run.on_close(journal.close)
        return run

    async def told(self) -> None:
        """The client has heard the answer."""
        if self._journal is not None:
            await self._journal.told()


def _is_private(body: Any) -> bool:
    """Whether the client wants nothing of the answer stored."""
    return type(body) is dict and body.get("store") is False


def _is_copy(tool: ToolDef, registry: Registry) -> bool:
    """Whether the client's definition is one of ours, copied from the list: then it means ours.

    One that differs in anything the model is told is the client's own tool of the same name.
    """
    entry = registry.entry(tool.name)
    if entry is None or entry.spec.private or tool.kind != "function" or tool.namespace is not None:
        return False
    return (tool.description, tool.input_schema) == (entry.spec.description, entry.spec.input_schema)


def _is_tainted(messages: Sequence[Message], registry: Registry) -> bool:
    """Whether strangers may have written what the model reads: results of our tools that reach outside."""
    parts = [part for message in messages for part in message.parts]
    read = {part.call_id for part in parts if isinstance(part, ToolResult)}
    calls = [part for part in parts if isinstance(part, ToolCall) and part.id in read]
    ours = {call.name for call in calls if call.executor == "gateway"}
    found = [entry.spec for name in ours if (entry := registry.entry(name)) is not None]
    return any(spec.annotations.open_world for spec in found)


def _tools_of(server: ToolServer, registry: Registry) -> list[ToolSpec]:
    """The tools that the request takes from this server; it may name them as the server does or as we do."""
    specs = [entry.spec for entry in registry.entries() if server.label in (OWN_LABEL, entry.spec.source[4:])]
    if server.allowed is None:
        return specs
    return [spec for spec in specs if not {spec.name, spec.origin}.isdisjoint(server.allowed)]


def _stances(servers: Sequence[ToolServer], registry: Registry) -> dict[str, Stance]:
    """The tools for which the request itself wants a person to be asked."""
    stances: dict[str, Stance] = {}
    for server in servers:
        for spec in _tools_of(server, registry):
            known = {spec.name, spec.origin}
            asked = known.isdisjoint(server.unasked) if server.asking is None else not known.isdisjoint(server.asking)
            if asked:
                stances[spec.name] = "ask"
    return stances
