"""Build the bridge to editors: windows, the endpoint where they join, and the models that they lend."""

import asyncio
import os
from typing import TYPE_CHECKING

from toolgate.api.bridge import BridgeEndpoints
from toolgate.api.editor_approvals import EditorApprovals
from toolgate.bridge.exchange import EditorExchangeTimeouts
from toolgate.bridge.remote_windows import BridgeBus, BridgeBusMember
from toolgate.bridge.session import BridgeSessionOptions
from toolgate.bridge.token_file import load_token, token_path
from toolgate.bridge.windows import EditorWindows
from toolgate.change_notifications.redis_bridge_bus import RedisBridgeBus
from toolgate.config import Config
from toolgate.config.settings import VscodeSettings
from toolgate.http.websocket import GOING_AWAY
from toolgate.telemetry.log_writer import Logger
from toolgate.workers.client import SupervisorClient

if TYPE_CHECKING:
    from toolgate.http.application import HttpRoute


class BridgeService:
    """The bridge; opened and closed with the server."""

    def __init__(self, log: Logger, bus: BridgeBus | None = None) -> None:
        """`bus` reaches the processes whose windows are shared; without one there is no other process."""
        self.windows = EditorWindows()
        self._log = log
        self._sharing = BridgeBusMember(self.windows, bus)
        self._endpoints = BridgeEndpoints(self.windows, self._sharing)
        self._approvals: EditorApprovals | None = None

    def show_approvals(self, approvals: EditorApprovals) -> None:
        """Let people answer approvals in editors; tools are built after the bridge, whose windows they use."""
        self._approvals = approvals
        self._endpoints.show_approvals(approvals)

    def endpoints(self, settings: VscodeSettings) -> "list[HttpRoute]":
        """Return the endpoints under these settings."""
        return self._endpoints.endpoints(
            BridgeSessionOptions(asks=settings.concurrency) if settings.enabled else None, settings.approvals
        )

    def apply(self, settings: VscodeSettings) -> None:
        """Use new settings: editors that may not be here any more leave."""
        if not settings.enabled:
            self._endpoints.end_all(GOING_AWAY, "The bridge was turned off.")
        if self._approvals is not None:
            self._approvals.configure(settings.approvals)

    async def open(self) -> None:
        """Read or make the token file; without it editors of this machine need a key."""
        self._sharing.open()
        path = token_path(os.environ)
        # A token file that cannot be used must not keep the server from starting: most servers have no editor.
        try:
            self._endpoints.use_token(await asyncio.to_thread(load_token, path))
        except (OSError, ValueError) as error:
            self._log.warning("bridge", problem=f"the token file cannot be used: {error}", path=str(path))

    async def aclose(self) -> None:
        """Leave the other processes."""
        if self._approvals is not None:
            await self._approvals.aclose()
        await self._sharing.aclose()


def choose_bus(config: Config, supervisor: SupervisorClient | None) -> BridgeBus | None:
    """Return the bus that reaches furthest: all nodes by Redis, else the workers of this machine."""
    if config.redis is not None:
        return RedisBridgeBus(config.redis.reveal())
    return supervisor.bridge if supervisor else None


def exchange_timeouts(settings: VscodeSettings) -> EditorExchangeTimeouts:
    """Return how long an editor may take for an answer of a model."""
    limits = settings.timeouts
    return EditorExchangeTimeouts(
        consent=settings.consent_seconds, first_byte=limits.first_byte, idle=limits.idle, total=limits.total
    )
