"""The tool side of a server, made from its configuration: sources, registry, approvals, memory, and their start and stop."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from msgspec.structs import asdict

from toolgate.config import Config, Key
from toolgate.config.settings import Tools
from toolgate.conversation.errors import Overloaded
from toolgate.engine.limits import Budget
from toolgate.server.app import Endpoint
from toolgate.server.callers.access import Access
from toolgate.server.endpoints import Pace
from toolgate.server.mcp import words
from toolgate.server.mcp.http import Mcp
from toolgate.server.mcp.sessions import Sessions
from toolgate.server.workshop.approvals import ApprovalInbox
from toolgate.server.workshop.egress import guarded_http
from toolgate.server.workshop.journal import Memory
from toolgate.server.workshop.sources import Sources
from toolgate.server.workshop.tooling import Terms, Tooling
from toolgate.server.workshop.toolroom import Toolroom
from toolgate.server.workshop.tools import ToolList
from toolgate.server.workshop.wanted import Wanted
from toolgate.server.workshop.webhook import Webhook
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.storage.registrations import RegistrationStore
from toolgate.storage.rounds import RoundStore
from toolgate.telemetry.traced import Traced
from toolgate.tools.approvals.desk import Desk
from toolgate.tools.approvals.desk import Terms as DeskTerms
from toolgate.tools.approvals.policy import Policy, Rule
from toolgate.tools.approvals.record import Approval, Grant
from toolgate.tools.approvals.waiting import Rousing, Waiting, heard
from toolgate.tools.egress import HttpRequest
from toolgate.tools.registry import Registry
from toolgate.tools.runner import Bounds, Ended, Ran, Runner
from toolgate.tools.schema import SchemaCheck
from toolgate.tools.selection import NOTHING, Rights, read_wish
from toolgate.tools.sources.api import ApiSource
from toolgate.tools.tool import ToolFailure, ToolSource, ToolSpec

_LOOKS = (2.0, 15.0)
"""Seconds after the start at which troubles are told: by then most sources, and even slow ones, have had their chance."""

_TOOLS = "tools"
_LOOK_SECONDS = 5.0
"""Between two looks for what was registered with another process, unless there is news of it."""


class Workshop:
    """Everything that server tools need, opened and closed with the server."""

    def __init__(
        self,
        config: Config,
        database: Database,
        traced: Traced,
        extra: Iterable[ToolSource] = (),
        fanout: Rousing | None = None,
        ran: Ran | None = None,
    ) -> None:
        """`extra` are sources beside those of the configuration; `ran` hears of every call that ended.

        `fanout` tells of what was answered or registered elsewhere.
        """
        tools = config.tools
        self._traced = traced
        self._schemas = SchemaCheck()
        self._troubles: set[tuple[str, str | None, str]] = set()
        self._watches: list[Callable[[], None]] = []
        self._watching: asyncio.Task[None] | None = None
        sources = Sources(config, database, traced.let_out, self._schemas)
        self._fanout = fanout or Waiting()
        store = RegistrationStore(database)
        self._registered = ApiSource(store, sources.registered, self._tell_others, self._schemas)
        self.registry = Registry(
            [*sources.configured(), *extra, self._registered], self._schemas, prefixes=sources.prefixes()
        )
        self._webhook = _webhook(tools, traced)
        self.desk = Desk(
            _policy(config),
            ApprovalStore(database, Approval, Grant),
            terms=_desk_terms(tools),
            announce=self._webhook.announce if self._webhook else None,
            definition=self._definition,
            waiting=self._fanout,
        )
        runner = Runner(self.desk, _bounds(tools), lambda text: traced.log.redact(text), _told(traced, ran))
        self._runner = runner
        self._config, self._more_keys = config, 0
        self.tooling = Tooling(self.registry, runner, self.desk, Memory(RoundStore(database)), _terms(tools))
        self.door = Toolroom(self.registry, runner, self.tooling)
        pace = Pace(config.server.first_event_wait, config.server.keepalive_seconds)
        self.mcp = Mcp(self.door, traced, pace, _sessions(config))

    def endpoints(self) -> list[Endpoint]:
        """The paths at which tools are managed."""
        mcp = [
            Endpoint("POST", "/mcp", self.mcp.post, words, scope="tools"),
            Endpoint("GET", "/mcp", self.mcp.get, words, scope="tools"),
            Endpoint("DELETE", "/mcp", self.mcp.delete, words, scope="tools"),
        ]
        tools = ToolList(self.registry, self._registered, self._tell_others, self._schemas).endpoints()
        return [*tools, *ApprovalInbox(self.desk).endpoints(), *mcp]

    def renew(self, config: Config) -> None:
        """From now on the policy, limits and defaults of this configuration hold; its sources need a restart.

        What cannot be used raises before anything is changed.
        """
        policy, terms = _policy(config, self._more_keys), _terms(config.tools)
        self._config = config
        self.desk.renew(policy, _desk_terms(config.tools))
        self.tooling.terms = terms
        self._runner.bounds = _bounds(config.tools)

    def heed(self, access: Access) -> None:
        """From now on callers are judged at every call by how they stand then, not as they stood when they asked."""
        keys = self.tooling.keys = access.keys

        def permits(name: str, spec: ToolSpec) -> bool:
            caller = keys.named(name)
            return caller is not None and Rights(caller.allow_tools, caller.block_tools).permits(spec)

        self._runner.permits = permits
        access.on_held(self._count_keys)

    def _count_keys(self, held: Iterable[Key]) -> None:
        """Whoever is not alone does not approve their own calls, unless the configuration says so."""
        self._more_keys = len(list(held))
        self.desk.renew(_policy(self._config, self._more_keys), _desk_terms(self._config.tools))

    async def open(self) -> None:
        """Begin to bring tools."""
        await self.registry.open()
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(seconds, self._tell_troubles) for seconds in _LOOKS]
        unsubscribe = self.registry.subscribe(self._tell_troubles)
        self._watches = [unsubscribe, *[timer.cancel for timer in timers]]
        self._watching = loop.create_task(self._watch_tools())

    async def aclose(self) -> None:
        """Let go of all sources."""
        for stop in self._watches:
            stop()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self.registry.aclose()
        if self._webhook is not None:
            await self._webhook.aclose()

    def _tell_others(self) -> None:
        self._fanout.announce(_TOOLS)

    async def _watch_tools(self) -> None:
        """Have what was registered with another process or accepted there; registrations also when nobody told of them."""
        async with self._fanout.heard(_TOOLS) as event:
            while True:
                await heard(event, _LOOK_SECONDS)
                if event.is_set():
                    event.clear()
                    self.registry.look_again()
                with suppress(Overloaded):  # the storage is away: it is looked again
                    await self._registered.refresh()

    def _tell_troubles(self) -> None:
        """Log what is newly wrong with tools: nobody looks at a list of what is not there."""
        troubles = {(trouble.source, trouble.tool, trouble.message) for trouble in self.registry.troubles()}
        for source, tool, message in sorted(troubles - self._troubles, key=str):
            self._traced.log.warning("tools", source=source, tool=tool, problem=message)
        self._troubles = troubles

    def _definition(self, name: str) -> ToolSpec | None:
        tool = self.registry.get(name)
        return tool.spec if tool else None


def _sessions(config: Config) -> Sessions:
    """None with several workers: what one of them remembers the next does not know."""
    tools = config.tools
    return Sessions(tools.mcp_sessions if config.server.workers == 1 else 0, tools.mcp_session_seconds)


def _told(traced: Traced, ran: Ran | None) -> Ran:
    """Whoever wants to hear of a call that ended, hears of it."""

    def told(ended: Ended) -> None:
        traced.tool_ran(ended.spec.name, ended.seconds, ended.outcome, ended.asked.text, ended.run)
        if ran is not None:
            ran(ended)

    return told


def _policy(config: Config, more_keys: int = 0) -> Policy:
    asked = config.tools.approvals
    return Policy(
        rules=tuple([Rule(**asdict(rule)) for rule in asked.rules]),
        default=asked.default,
        read_only=asked.read_only,
        open_world=asked.open_world,
        trusted=asked.trusted,
        never_auto=asked.never_auto,
        auto_approve=asked.auto_approve,
        auto_approve_urls=asked.auto_approve_urls,
        auto_approve_commands=asked.auto_approve_commands,
        self_approval=len(config.keys) + more_keys <= 1 if asked.self_approval is None else asked.self_approval,
    )


def _webhook(tools: Tools, traced: Traced) -> Webhook | None:
    hook = tools.approvals.webhook
    if hook is None:
        return None
    http = guarded_http(tools.reach).trusting(hook.url)

    async def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
        try:
            return (await http.send(HttpRequest(url, "POST", headers, body, seconds=30.0, redirects=0))).status
        except ToolFailure as failure:
            raise OSError(str(failure)) from None

    def complain(what: str) -> None:
        traced.log.warning("webhook", problem=what)

    return Webhook(hook.url, hook.secret.reveal() if hook.secret else "", post, complain=complain)


def _desk_terms(tools: Tools) -> DeskTerms:
    asked = tools.approvals
    return DeskTerms(
        expiry_seconds=asked.expiry_seconds,
        hold_seconds=asked.hold_seconds,
        max_pending_per_run=asked.max_pending_per_run,
        workspace=asked.workspace,
    )


def _bounds(tools: Tools) -> Bounds:
    return Bounds(tools.limits.call_seconds, tools.limits.output)


def _terms(tools: Tools) -> Terms:
    limits = tools.limits
    budget = Budget(limits.rounds, limits.calls, limits.tokens, limits.seconds, limits.cost, limits.repeats)
    wish = read_wish(list(tools.offer), "tools.offer") if tools.offer else NOTHING
    wanted = Wanted(tools.execution, wish) if wish or tools.execution == "auto" else None
    servers = {name: server.url for name, server in tools.mcp.items()}
    hold = tools.approvals.hold_seconds
    return Terms(wanted, budget, limits.parallel, hold, tools.context, tools.group_above, servers)
