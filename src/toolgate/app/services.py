"""Build, open and close what outlives a configuration: storage, connections, keys, quotas, tools and running responses.

A reload builds a new site (`configured_site.py`) on top of these objects, which learn of it by one call, `apply`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from toolgate.api.editor_approvals import EditorApprovals
from toolgate.api.records import RecordServices
from toolgate.api.responses import BackgroundServices, ResponseWebSockets
from toolgate.api.responses.websocket import App
from toolgate.app.bridge import BridgeService, choose_bus
from toolgate.app.local_model import DisabledLocalModel, embedded_model
from toolgate.app.runs import make_state
from toolgate.app.startup_helpers import make_database, make_logger, open_storage
from toolgate.app.stateful_chat import StatefulChatConnections
from toolgate.app.tools import ToolService
from toolgate.auth.authenticator import Authenticator
from toolgate.auth.key_registry import KeyRegistry
from toolgate.change_notifications.notifier import ChangeNotifier, LocalChangeNotifier, RedisChangeNotifier
from toolgate.config import BUILTIN, VSCODE, Config
from toolgate.console import ConsoleEndpoints
from toolgate.engine import ports
from toolgate.limits.limit_services import LimitServices
from toolgate.storage.responses import ResponseStore
from toolgate.telemetry.log_writer import Logger
from toolgate.telemetry.metrics import Metrics
from toolgate.telemetry.redaction import Redactor
from toolgate.telemetry.request_log import Telemetry
from toolgate.tools.tool import ToolSource
from toolgate.upstreams.echo import EchoModel
from toolgate.upstreams.transport import UpstreamHttpClient
from toolgate.workers.client import SupervisorClient

if TYPE_CHECKING:
    from toolgate.app.configured_site import ConfiguredSite
    from toolgate.upstreams.local.state import LocalModelState


class Services:
    """The objects of a server that every site uses."""

    def __init__(
        self,
        config: Config,
        app: App,
        background: Callable[[], BackgroundServices],
        builtin: Mapping[str, ports.Model] | None = None,
        sources: Sequence[ToolSource] = (),
        supervisor: SupervisorClient | None = None,
    ) -> None:
        """`app` answers the messages of WebSockets, `background` returns what makes background responses now.

        The rest is described at `Toolgate`.
        """
        log, metrics = make_logger(config), Metrics()
        self.transport = UpstreamHttpClient()
        self.database = make_database(config, log, metrics)  # connects in `open`
        self.responses = ResponseStore(self.database)
        self.peers = StatefulChatConnections(self.database)
        self.supervisor = supervisor
        self.notifier = _choose_notifier(config, log, supervisor)
        # Records come before telemetry, which passes them the usage of every request. A run is cancelled through the keys,
        # which are built later: hence the lambda.
        self.records = RecordServices(
            config, self.database, log, metrics, self.notifier, lambda run: self.keys.active_requests.cancel_run(run)
        )
        self.telemetry = Telemetry(log, metrics, ended=self.records.ended, run_ended=self.records.run_ended)
        self.state = make_state(
            config, self.database, self.responses, self.telemetry, self.notifier, background, self.records.timelines
        )
        self.sockets = ResponseWebSockets(app)
        self.quotas = LimitServices(config, self.database, self.telemetry, supervisor.counters if supervisor else None)
        self.local_model = embedded_model(config, log, supervisor) if builtin is None else None
        self.builtin = builtin or {"local": self.local_model or DisabledLocalModel(), "echo": EchoModel()}
        self.bridge = BridgeService(log, choose_bus(config, supervisor))
        # Tools look up callers in the same authenticator that the registry of keys updates.
        authenticator = Authenticator(config.keys, config.models)
        self.tools: ToolService | None = None
        if config.tools.enabled:
            self.tools = ToolService(
                config,
                self.database,
                self.telemetry,
                sources,
                self.notifier,
                on_call_end=self.records.call_ended,
                authenticator=authenticator,
                windows=self.bridge.windows,
                timelines=self.records.timelines,
            )
            self.bridge.show_approvals(EditorApprovals(self.tools.approvals, self.notifier, authenticator.named))
        # A key that is revoked ends its runs, and counts no more for limits and for who may approve.
        self.keys = KeyRegistry(
            config,
            self.database,
            self.telemetry,
            authenticator,
            on_stored_keys=[self.quotas.use_stored_keys, *([self.tools.count_keys] if self.tools else [])],
            end_runs=self.state.background.scheduler.cancel_unless,
        )
        self.console = ConsoleEndpoints()
        self.draining = False

    async def open(self) -> str | None:
        """Open the storage and start what works by itself; return why the server must not start, if it must not."""
        if problem := await open_storage(self.database, self.telemetry.log):
            return problem
        await self.keys.open()
        await self.bridge.open()
        if self.tools is not None:
            await self.tools.open()
        if self.local_model is not None:
            self.local_model.start()
        self.records.open()
        self.state.open()  # last: it resumes runs, which use keys, tools and models
        return None

    def start(self, site: "ConfiguredSite") -> None:
        """Use the first site, whose configuration these services were built from."""
        names = [name for model in site.config.models for name in model.names]
        self.telemetry.set_label_names(names, [*site.config.upstreams, BUILTIN, VSCODE])
        self.quotas.use(site.limits, site.config)
        self.peers.keep(site.peers)

    def apply(self, site: "ConfiguredSite") -> None:
        """Use a new site; its configuration was checked by building it, so that nothing here can fail."""
        config = site.config
        self.start(site)
        # Before anything may log a new secret.
        self.telemetry.log.configure(config.log.level, Redactor(config.secrets()))
        self.records.configure(config)
        if self.tools is not None and site.reloadable_tool_settings is not None:
            self.tools.apply(site.reloadable_tool_settings)
        self.bridge.apply(config.vscode)
        self.keys.configure(config)

    def local_state(self) -> "LocalModelState | None":
        """Return the state of the local model, None if it is not used."""
        return None if self.local_model is None else self.local_model.state

    def drain(self) -> None:
        """Report from now on that this server is not ready, and end the streams of MCP clients."""
        self.draining = True
        if self.tools is not None:
            self.tools.mcp.close()

    async def aclose(self) -> None:
        """Close everything, the storage last."""
        await self.state.aclose()  # first: it ends runs, which use all that follows
        if self.tools is not None:
            await self.tools.aclose()
        if self.local_model is not None:
            await self.local_model.aclose()
        await self.bridge.aclose()
        await self.transport.aclose()
        await self.peers.aclose()
        await self.keys.aclose()
        await self.quotas.aclose()
        await self.records.aclose()
        await self.notifier.aclose()
        await self.database.aclose()


def _choose_notifier(config: Config, log: Logger, supervisor: SupervisorClient | None) -> ChangeNotifier:
    """Return the notifier that reaches furthest: all nodes by Redis, else this machine's workers, else this process."""
    if config.redis is not None:
        return RedisChangeNotifier(
            config.redis.reveal(),
            on_error=lambda problem: log.warning("redis", problem=problem),
            on_recovery=lambda state: log.info("redis", state=state),
        )
    return supervisor.notifier if supervisor else LocalChangeNotifier()
