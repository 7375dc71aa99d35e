"""Build the server's tools: sources, registry, approvals, runs and the MCP server; open and close them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

from toolgate.api.approvals import ApprovalEndpoints
from toolgate.api.records import RecordServices
from toolgate.api.response_writer import StreamKeepaliveTimings
from toolgate.api.tools import ToolEndpoints
from toolgate.app.reloadable_tool_settings import ReloadableToolSettings, reloadable_tool_settings
from toolgate.app.startup_helpers import make_database, make_logger
from toolgate.app.tool_sources import ToolSourceFactory
from toolgate.approvals.digest import spec_digest
from toolgate.approvals.record import Approval, StandingApproval
from toolgate.approvals.service import ApprovalService
from toolgate.approvals.webhook import NewApprovalWebhook
from toolgate.auth.authenticator import Authenticator
from toolgate.bridge.windows import EditorWindows
from toolgate.change_notifications.notifier import ChangeNotifier, LocalChangeNotifier, wait_for
from toolgate.config import Config, KeySettings
from toolgate.config.settings import ServerSettings, ServerToolSettings
from toolgate.conversation.errors import GatewayOverloaded
from toolgate.http.application import HttpRoute
from toolgate.http.sockets import base_url
from toolgate.mcp.server import http_errors
from toolgate.mcp.server.http import McpEndpoint
from toolgate.mcp.server.sessions import McpSessions
from toolgate.mcp.server.tool_catalog_protocol import ToolCatalog
from toolgate.runs.timeline_recorder import RunTimelines
from toolgate.storage.approvals import ApprovalStore
from toolgate.storage.database import Database
from toolgate.storage.hidden_turns import HiddenTurnStore
from toolgate.storage.registrations import RegisteredSourceStore
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.request_log import Telemetry
from toolgate.tools.egress import EgressRequest, UnlimitedEgress
from toolgate.tools.egress.pinned_transport import guarded_http
from toolgate.tools.execution.mcp_catalog import RegistryToolCatalog
from toolgate.tools.execution.prepare_run import ToolRunPreparer
from toolgate.tools.execution.stored_turns import HiddenTurnRestorer
from toolgate.tools.registry import ToolRegistry
from toolgate.tools.runner import FinishedCallObserver, FinishedCallReport, ToolRunner
from toolgate.tools.schema_check import ToolSchemaValidator
from toolgate.tools.selection import ToolRights
from toolgate.tools.sources.registered import RegisteredToolSource
from toolgate.tools.sources.vscode import VscodeToolSource
from toolgate.tools.tool import ServerToolDefinition, ToolCallFailed, ToolSource

# Seconds after the start at which problems are logged: by then most sources, and then slow ones, have connected.
_PROBLEM_CHECKS = (2.0, 15.0)

_TOOLS = "tools"
# Between two looks for tools that were registered with another process, unless it notified this one of them.
_POLL_SECONDS = 5.0


class ToolService:
    """The server's tools with their sources, approvals and runs; opened and closed with the server."""

    def __init__(
        self,
        config: Config,
        database: Database,
        telemetry: Telemetry,
        extra: Iterable[ToolSource] = (),
        notifier: ChangeNotifier | None = None,
        *,
        on_call_end: FinishedCallObserver | None = None,
        authenticator: Authenticator | None = None,
        windows: EditorWindows | None = None,
        timelines: RunTimelines | None = None,
        over_stdio: bool = False,
    ) -> None:
        """`extra` are sources beside those of the configuration; `on_call_end` is called after every call.

        `notifier` reports approvals and tools that other processes have changed, `windows` lend tools of editors, and
        `timelines` show runs. With an `authenticator`, the rights of callers are looked up at every call, and not only when
        their request arrives. `over_stdio` means that no server takes the answers to approvals in this process.
        """
        self._telemetry = telemetry
        self._on_call_end = on_call_end
        self._authenticator = authenticator
        self._approve_command = approve_command(config.server)
        self._answer_note = " while `toolgate serve` runs with the same storage" if over_stdio else ""
        if over_stdio and config.storage.reveal() == "sqlite://":
            self._answer_note = (
                " cannot reach this process: its storage is in memory. "
                "Allow the tool by a rule in tools.approvals.rules"
            )
        self._schemas = ToolSchemaValidator()
        self._problems: set[tuple[str, str | None, str]] = set()
        # Sources that brought no tools, or not all, when they were last looked at.
        self._unready: set[str] = set()
        self._cancel_checks: list[Callable[[], None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._notifier = notifier or LocalChangeNotifier()
        self._policies, self._stored_keys = reloadable_tool_settings(config), 0
        sources = ToolSourceFactory(config, database, telemetry.log_tool_request, self._schemas)
        self._registered = RegisteredToolSource(
            RegisteredSourceStore(database), sources.registered, self._notify_of_change, self._schemas
        )
        windows = windows or EditorWindows()
        self._lent = VscodeToolSource(windows, config.vscode.tool_seconds, self._schemas)
        self.registry = ToolRegistry(
            [*sources.configured(), *extra, self._registered, self._lent], self._schemas, prefixes=sources.prefixes()
        )
        self._webhook = make_webhook(config.tools, telemetry)
        self.approvals = ApprovalService(
            self._policies.approval_policy(self._stored_keys),
            ApprovalStore(database, Approval, StandingApproval),
            options=self._policies.approval_options,
            on_new=self._announce,
            definition=self._definition,
            notifier=self._notifier,
        )
        self._runner = ToolRunner(
            self.approvals,
            self._policies.result_limits,
            lambda text: telemetry.log.redact(text),  # looked up each time: a reload replaces it
            self._record_call,
            self._permits,
        )
        self.tool_runs = ToolRunPreparer(
            self.registry,
            self._runner,
            self.approvals,
            HiddenTurnRestorer(HiddenTurnStore(database)),
            self._policies.run_defaults,
            authenticator,
            windows.context,
            timelines,
            self._approve_command,
        )
        self.catalog = RegistryToolCatalog(self.registry, self._runner, self.tool_runs)
        self.mcp = make_mcp_endpoint(config, self.catalog, telemetry)

    def endpoints(self, is_draining: Callable[[], bool] = lambda: False) -> list[HttpRoute]:
        """Return the endpoints of tools, approvals and the MCP server."""
        tools = ToolEndpoints(self.registry, self._registered, self._notify_of_change, self._schemas)
        return [
            *tools.endpoints(),
            *ApprovalEndpoints(self.approvals, is_draining).endpoints(),
            HttpRoute("POST", "/mcp", self.mcp.post, http_errors, scope="tools"),
            HttpRoute("GET", "/mcp", self.mcp.get, http_errors, scope="tools"),
            HttpRoute("DELETE", "/mcp", self.mcp.delete, http_errors, scope="tools"),
        ]

    def apply(self, policies: ReloadableToolSettings) -> None:
        """Use these policies from now on; other sources than the editors change only at a restart."""
        self._policies = policies
        self.approvals.renew(policies.approval_policy(self._stored_keys), policies.approval_options)
        self.tool_runs.configure(policies.run_defaults)
        self._runner.configure(policies.result_limits)
        self._lent.configure(policies.config.vscode.tool_seconds)

    def count_keys(self, stored: Iterable[KeySettings]) -> None:
        """Count the keys of the database, on which the policy of self-approval depends."""
        self._stored_keys = len(list(stored))
        # A policy that differs puts open questions out of scope; most changes of keys leave the same one.
        self.approvals.renew(self._policies.approval_policy(self._stored_keys), self._policies.approval_options)

    async def open(self) -> None:
        """Open the sources of tools."""
        self._unready |= self.registry.connecting()
        await self.registry.open()
        loop = asyncio.get_running_loop()
        # By timers as well as at changes: a source that never connects changes nothing.
        timers = [loop.call_later(seconds, self._log_problems) for seconds in _PROBLEM_CHECKS]
        unsubscribe = self.registry.subscribe(self._log_problems)
        self._cancel_checks = [unsubscribe, *[timer.cancel for timer in timers]]
        self._watching = loop.create_task(self._watch_changes())

    async def aclose(self) -> None:
        """Close all sources."""
        for cancel in self._cancel_checks:
            cancel()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self.registry.aclose()
        if self._webhook is not None:
            await self._webhook.aclose()

    def _definition(self, name: str) -> ServerToolDefinition | None:
        tool = self.registry.get(name)
        return tool.spec if tool else None

    def _permits(self, name: str, spec: ServerToolDefinition) -> bool:
        """Return whether the caller of this name may run the tool now."""
        # A run keeps the tools that it began with; one that was registered may have been deleted or replaced since.
        if spec.registered:
            current = self._definition(spec.name)
            if current is None or spec_digest(current) != spec_digest(spec):
                return False
        if self._authenticator is None:  # over stdio: the client is the person who started the process
            return True
        caller = self._authenticator.named(name)
        return caller is not None and ToolRights(caller.allow_tools, caller.block_tools).permits(spec)

    def _record_call(self, ended: FinishedCallReport) -> None:
        self._telemetry.tool_ran(ended.spec.name, ended.seconds, ended.outcome, ended.invocation.text, ended.run)
        if self._on_call_end is not None:
            self._on_call_end(ended)

    def _notify_of_change(self) -> None:
        self._notifier.publish(_TOOLS)

    async def _watch_changes(self) -> None:
        """Read again the tools that another process has registered or accepted."""
        async with self._notifier.subscribe(_TOOLS) as event:
            while True:
                await wait_for(event, _POLL_SECONDS)
                if event.is_set():  # another process has accepted a definition: the quarantine is read again
                    event.clear()
                    self.registry.request_refresh()
                with suppress(GatewayOverloaded):  # the storage is away: it is read at the next look
                    await self._registered.refresh()

    def _announce(self, approval: Approval) -> None:
        """Log a new approval, without its arguments, and send it to the webhook if there is one."""
        self._telemetry.log.info(
            "approval requested",
            tool=approval.tool,
            caller=approval.caller,
            approval=approval.id,
            answer=f"{self._approve_command} {approval.id}{self._answer_note}",
        )
        if self._webhook is not None:
            self._webhook.announce(approval)

    def _log_problems(self) -> None:
        """Log the problems of tools that are new since the last time, and sources that have none any more.

        No list shows a tool that is missing.
        """
        log, connecting = self._telemetry.log, self.registry.connecting()
        problems = {(problem.source, problem.tool, problem.message) for problem in self.registry.problems()}
        for source, tool, message in sorted(problems - self._problems, key=str):
            if tool is None and source in connecting:
                log.info("tools", source=source, state=message)
            else:
                log.warning("tools", source=source, tool=tool, problem=message)
        unready = {source for source, tool, _ in problems if tool is None}
        for source in sorted(self._unready - unready):
            log.info("tools", source=source, state="ready")
        self._problems, self._unready = problems, unready


@asynccontextmanager
async def open_tool_catalog(config: Config) -> AsyncGenerator[ToolCatalog]:
    """Open the tools of a configuration for an MCP client on standard input and output, without a server."""
    log, metrics = make_logger(config), Metrics()
    database = make_database(config, log, metrics)
    records = RecordServices(config, database, log, metrics)
    tools = ToolService(config, database, Telemetry(log, metrics), on_call_end=records.invocations.add, over_stdio=True)
    await tools.open()
    try:
        yield tools.catalog
    finally:
        await tools.aclose()
        await records.aclose()
        await database.aclose()


def approve_command(server: ServerSettings) -> str:
    """Return the command that approves a call at this server, without the id, with its URL if that is not the default."""
    default = ServerSettings()
    here = server.host in ("0.0.0.0", "::", "", "localhost", default.host)  # noqa: S104  # nothing is bound here
    if server.port == 0 or (here and server.port == default.port):  # which port 0 became is known only later
        return "toolgate approvals approve"
    return f"toolgate approvals approve --url {base_url(default.host if here else server.host, server.port)}"


def make_mcp_endpoint(config: Config, catalog: ToolCatalog, telemetry: Telemetry) -> McpEndpoint:
    """Return the MCP server over these tools."""
    timings = StreamKeepaliveTimings(config.server.first_event_wait, config.server.keepalive_seconds)
    # Sessions are in memory: the next request may reach another worker, or another node, that does not know them.
    default = 1000 if config.redis is None else 0
    configured = default if config.tools.mcp_sessions is None else config.tools.mcp_sessions
    most = configured if config.server.workers == 1 else 0
    return McpEndpoint(catalog, telemetry, timings, McpSessions(most, config.tools.mcp_session_seconds))


def make_webhook(tools: ServerToolSettings, telemetry: Telemetry) -> NewApprovalWebhook | None:
    """Return the webhook that announces approvals, if one is configured."""
    hook = tools.approvals.webhook
    if hook is None:
        return None
    # The operator wrote this URL, so that it may be private. No redirect is followed: it would lead elsewhere.
    http = guarded_http(tools.reach, UnlimitedEgress()).trusting(hook.url)

    async def post(url: str, headers: Mapping[str, str], body: bytes) -> int:
        try:
            return (await http.send(EgressRequest(url, "POST", headers, body, seconds=30.0, redirects=0))).status
        except ToolCallFailed as failure:
            raise OSError(str(failure)) from None

    def log_problem(problem: str) -> None:
        telemetry.log.warning("webhook", problem=problem)

    return NewApprovalWebhook(hook.url, hook.secret.reveal() if hook.secret else "", post, on_failure=log_problem)
