"""The model on this machine, as the server keeps it: made if anybody may ask for it, started and ended with the server."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from toolgate.config import Config
from toolgate.conversation.errors import Unavailable
from toolgate.conversation.request import ModelRequest
from toolgate.engine.ports import Answer
from toolgate.server.supervisor.foreman import Foreman
from toolgate.telemetry.logs import Log

if TYPE_CHECKING:
    from toolgate.upstreams.embedded.keeper import Options
    from toolgate.upstreams.embedded.model import EmbeddedModel
    from toolgate.upstreams.embedded.room import OwnRoom
    from toolgate.upstreams.embedded.state import State

_STEP = 10.0
"""Percent between two lines of the log."""


class Absent:
    """Stands where the model would, in a configuration that does not allow it."""

    async def ask(self, request: ModelRequest) -> Answer:
        """Say so."""
        raise Unavailable("The embedded model is turned off here (`embedded.enabled`).", status=503)


def embedded_model(config: Config, log: Log, foreman: Foreman | None = None) -> "EmbeddedModel | None":
    """The model that runs here, if some model of the configuration is it and it may run; a `foreman` has it already."""
    if not _is_wanted(config):
        return None
    from toolgate.upstreams.embedded.model import EmbeddedModel

    if foreman is None:
        return EmbeddedModel(_options(config), _Teller(log).tell)
    from toolgate.server.supervisor.borrower import LentRoom

    return EmbeddedModel(_options(config), room=LentRoom(foreman, config.embedded.model))


def engine_room(config: Config, log: Log) -> "OwnRoom | None":
    """The engine of that model alone, for whoever lends it to others."""
    if not _is_wanted(config):
        return None
    from toolgate.upstreams.embedded.room import OwnRoom

    return OwnRoom(_options(config), _Teller(log).tell)


def _is_wanted(config: Config) -> bool:
    return config.embedded.enabled and any(config.is_local(model) for model in config.models)


def _options(config: Config) -> "Options":
    from toolgate.upstreams.embedded.keeper import Options

    chosen = config.embedded
    return Options(
        model=chosen.model,
        folder=Path(os.path.expanduser(chosen.folder)) if chosen.folder else None,
        context=chosen.context,
        threads=chosen.threads,
        queue=chosen.queue,
        wait=chosen.wait,
        max_tokens=chosen.max_tokens,
    )


class _Teller:
    """Logs what the model is doing, and not every percent of it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._told: tuple[str, float] = ("", 0.0)

    def tell(self, state: "State") -> None:
        """The model's state has changed."""
        phase, percent = self._told
        now = state.percent or 0.0
        if state.phase == phase and now < percent + _STEP:
            return
        self._told = (state.phase, now)
        say = self._log.error if state.phase == "failed" else self._log.info
        say("local", phase=state.phase, percent=state.percent, message=state.message)
