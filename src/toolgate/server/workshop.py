"""The tool side of a server, made from its configuration: sources, registry, approvals, memory, and their start and stop."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import asdict

from toolgate.config import Config
from toolgate.config.settings import Tools
from toolgate.engine.limits import Budget
from toolgate.server.app import Endpoint
from toolgate.server.approvals import ApprovalInbox
from toolgate.server.journal import Memory
from toolgate.server.tooling import Terms, Tooling
from toolgate.server.wanted import Wanted
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.storage.rounds import RoundStore
from toolgate.telemetry.traced import Traced
from toolgate.tools.approvals.desk import Desk
from toolgate.tools.approvals.desk import Terms as DeskTerms
from toolgate.tools.approvals.policy import Policy, Rule
from toolgate.tools.approvals.record import Approval, Grant
from toolgate.tools.builtin import BuiltinSource
from toolgate.tools.registry import Registry
from toolgate.tools.runner import Bounds, Runner
from toolgate.tools.selection import NOTHING, read_wish
from toolgate.tools.tool import ToolSource, ToolSpec


class Workshop:
    """Everything that server tools need, opened and closed with the server."""

    def __init__(self, config: Config, database: Database, traced: Traced, extra: Iterable[ToolSource] = ()) -> None:
        """`extra` are sources beside those of the configuration."""
        tools = config.tools
        self.registry = Registry([*_sources(config), *extra])
        self.desk = Desk(
            _policy(tools),
            ApprovalStore(database, Approval, Grant),
            terms=_desk_terms(tools),
            definition=self._definition,
        )
        limits = tools.limits
        runner = Runner(
            self.desk, Bounds(limits.call_seconds, limits.output), lambda text: traced.log.redact(text), traced.tool_ran
        )
        self.tooling = Tooling(self.registry, runner, self.desk, Memory(RoundStore(database)), _terms(tools))

    def endpoints(self) -> list[Endpoint]:
        """The paths at which tools are managed."""
        return ApprovalInbox(self.desk).endpoints()

    async def open(self) -> None:
        """Begin to bring tools."""
        await self.registry.open()

    async def aclose(self) -> None:
        """Let go of all sources."""
        await self.registry.aclose()

    def _definition(self, name: str) -> ToolSpec | None:
        tool = self.registry.get(name)
        return tool.spec if tool else None


def _sources(config: Config) -> Sequence[ToolSource]:
    builtin, base = config.tools.builtin, _base(config)
    roots = [base / root for root in builtin.roots]
    return [BuiltinSource(roots, allow_commands=builtin.commands, disabled=frozenset(builtin.disabled))]


def _base(config: Config) -> Path:
    """Relative paths in the configuration start at its file."""
    return config.source.parent if config.source else Path.cwd()


def _policy(tools: Tools) -> Policy:
    asked = tools.approvals
    return Policy(
        rules=tuple([Rule(**asdict(rule)) for rule in asked.rules]),
        default=asked.default,
        read_only=asked.read_only,
        open_world=asked.open_world,
        never_auto=asked.never_auto,
        auto_approve=asked.auto_approve,
        auto_approve_urls=asked.auto_approve_urls,
        auto_approve_commands=asked.auto_approve_commands,
        self_approval=asked.self_approval,
    )


def _desk_terms(tools: Tools) -> DeskTerms:
    asked = tools.approvals
    return DeskTerms(
        expiry_seconds=asked.expiry_seconds,
        hold_seconds=asked.hold_seconds,
        max_pending_per_run=asked.max_pending_per_run,
        workspace=asked.workspace,
    )


def _terms(tools: Tools) -> Terms:
    limits = tools.limits
    budget = Budget(limits.rounds, limits.calls, limits.tokens, limits.seconds, limits.cost, limits.repeats)
    wish = read_wish(list(tools.offer), "tools.offer") if tools.offer else NOTHING
    wanted = Wanted(tools.execution, wish) if wish or tools.execution == "auto" else None
    servers = {name: server.url for name, server in tools.mcp.items()}
    return Terms(wanted, budget, limits.parallel, tools.approvals.hold_seconds, tools.context, servers)
