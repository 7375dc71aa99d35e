"""Build the model that runs on this machine, in this process's care or shared by the workers through their supervisor.

Nothing of it is imported unless a model of the configuration needs it.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.config import Config
from toolgate.conversation.errors import UpstreamUnavailable
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import ModelStream
from toolgate.telemetry.log_writer import Logger
from toolgate.workers.client import SupervisorClient

if TYPE_CHECKING:
    from toolgate.upstreams.local.engine_supervisor import EngineOptions
    from toolgate.upstreams.local.model import LocalModel
    from toolgate.upstreams.local.state import LocalModelState
    from toolgate.workers.engine_leases import EngineLeases

_PERCENT_STEP = 10.0  # percent of progress between two lines of the log


class DisabledLocalModel:
    """Takes the place of the local model in a configuration that disables it."""

    async def ask(self, request: ModelRequest) -> ModelStream:
        """Refuse the request."""
        raise UpstreamUnavailable("The embedded model is turned off here (`embedded.enabled`).", status=503)


def embedded_model(config: Config, log: Logger, supervisor: SupervisorClient | None = None) -> "LocalModel | None":
    """Return the local model if the configuration uses it; with a `supervisor`, its engine is the supervisor's."""
    if not _is_used(config):
        return None
    from toolgate.upstreams.local.model import LocalModel

    if supervisor is None:
        return LocalModel(_options(config), _ProgressLog(log).write)
    # The weights take gigabytes: all workers ask the one engine of their supervisor.
    from toolgate.workers.shared_engine import BorrowedEngineProvider

    return LocalModel(_options(config), engines=BorrowedEngineProvider(supervisor, config.embedded.model))


def share_engine(config: Config, log: Logger) -> "EngineLeases | None":
    """Return the engine of the local model, as the supervisor shares it between workers, if it is used."""
    if not _is_used(config):
        return None
    from toolgate.upstreams.local.engine_lease import OwnEngineProvider
    from toolgate.workers.engine_leases import EngineLeases

    progress = _ProgressLog(log)

    def changed(state: "LocalModelState") -> None:
        progress.write(state)
        leases.state_changed(state)

    leases = EngineLeases(OwnEngineProvider(_options(config), changed))
    return leases


def _is_used(config: Config) -> bool:
    return config.embedded.enabled and any(config.is_local(model) for model in config.models)


def _options(config: Config) -> "EngineOptions":
    from toolgate.upstreams.local.engine_supervisor import EngineOptions

    settings = config.embedded
    return EngineOptions(
        model=settings.model,
        folder=Path(os.path.expanduser(settings.folder)) if settings.folder else None,
        context=settings.context,
        threads=settings.threads,
        queue=settings.queue,
        wait=settings.wait,
        max_tokens=settings.max_tokens,
    )


class _ProgressLog:
    """Logs the state of the local model, and progress in steps of ten percent."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._last: tuple[str, float] = ("", 0.0)

    def write(self, state: "LocalModelState") -> None:
        """Log a changed state."""
        phase, percent = self._last
        now = state.percent or 0.0
        if state.phase == phase and now < percent + _PERCENT_STEP:  # a download reports every chunk
            return
        self._last = (state.phase, now)
        write = self._log.error if state.phase == "failed" else self._log.info
        write("local", phase=state.phase, percent=state.percent, message=state.message)
