"""Read from a configuration what a reload can change about tools: approvals, run defaults and result limits. Pure."""

from msgspec import Struct
from msgspec.structs import asdict

from toolgate.approvals.policy import ApprovalPolicy, ApprovalRule
from toolgate.approvals.service import ApprovalLimits
from toolgate.config import VSCODE, Config
from toolgate.engine.run_limits import RunLimits
from toolgate.tools.execution.options import RequestToolOptions
from toolgate.tools.execution.prepare_run import ToolRunDefaults
from toolgate.tools.runner import ToolCallLimits
from toolgate.tools.selection import NOTHING, parse_tool_query


class ReloadableToolSettings(Struct, frozen=True):
    """The settings of tools that a reload can change, checked and ready for use."""

    config: Config
    run_defaults: ToolRunDefaults
    result_limits: ToolCallLimits
    approval_options: ApprovalLimits

    def approval_policy(self, stored_keys: int) -> ApprovalPolicy:
        """Return the policy; with more than one key, callers do not approve their own calls unless that is configured."""
        settings = self.config.tools.approvals
        # Last, so that the configuration's own rules come first.
        lent = ApprovalRule(stance=self.config.vscode.tools, sources=(VSCODE,))
        is_alone = len(self.config.keys) + stored_keys <= 1
        return ApprovalPolicy(
            rules=(*[ApprovalRule(**asdict(rule)) for rule in settings.rules], lent),
            default=settings.default,
            read_only=settings.read_only,
            open_world=settings.open_world,
            trusted=settings.trusted,
            never_auto=settings.never_auto,
            auto_approve=settings.auto_approve,
            auto_approve_urls=settings.auto_approve_urls,
            auto_approve_commands=settings.auto_approve_commands,
            self_approval=is_alone if settings.self_approval is None else settings.self_approval,
        )


def reloadable_tool_settings(config: Config) -> ReloadableToolSettings:
    """Read the policies of a configuration; ValueError or ToolgateError if it cannot be used."""
    tools, limits, approvals = config.tools, config.tools.limits, config.tools.approvals
    budget = RunLimits(limits.rounds, limits.calls, limits.tokens, limits.seconds, limits.cost, limits.repeats)
    offered = parse_tool_query(list(tools.offer), "tools.offer") if tools.offer else NOTHING
    options = RequestToolOptions(tools.execution, offered) if offered or tools.execution == "auto" else None
    servers = {name: server.url for name, server in tools.mcp.items()}
    policies = ReloadableToolSettings(
        config,
        ToolRunDefaults(
            options, budget, limits.parallel, approvals.hold_seconds, tools.context, tools.group_above, servers
        ),
        ToolCallLimits(limits.call_seconds, limits.output),
        ApprovalLimits(
            expiry_seconds=approvals.expiry_seconds,
            hold_seconds=approvals.hold_seconds,
            max_pending_per_run=approvals.max_pending_per_run,
            workspace=approvals.workspace,
        ),
    )
    policies.approval_policy(0)  # its patterns are checked now and not while a reload is half done
    return policies
