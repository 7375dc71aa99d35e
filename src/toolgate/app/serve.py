"""Serve one configuration in one process, from the check of its settings to the exit status."""

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from toolgate.app.config_build_checks import check_start
from toolgate.app.reloadable_asgi_app import Toolgate
from toolgate.app.startup_helpers import print_banner, tune_garbage_collector
from toolgate.config import Config, ConfigError, ConfigProblem
from toolgate.conversation.errors import ToolgateError
from toolgate.http.listener import StartupFailed, run
from toolgate.http.request_limits import RequestLimits


def serve(config: Config, *, config_path: Path | None, on_signals: Callable[[], None] = lambda: None) -> int:
    """Serve until a signal ends it, and return the exit status; SIGHUP reloads the configuration.

    `on_signals` is called once signals are handled.
    """
    try:
        server = Toolgate(config)
    except (ValueError, OSError, ToolgateError) as error:  # folders, templates and the like
        problems = config_problems(config) or [ConfigProblem("", str(error))]
        sys.stderr.write(f"{ConfigError(problems, str(config.source or 'The built-in configuration'))}\n")
        return 2
    log = server.services.telemetry.log

    def refuse_renewal() -> None:
        # Without a handler the signal would end the process.
        log.warning("not renewed", problem="only a server of several workers is renewed while it serves")

    def ready(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR2, refuse_renewal)
        if config_path is not None:
            loop.add_signal_handler(signal.SIGHUP, server.reload_soon, config_path)
        on_signals()
        print_banner(url, config)
        tune_garbage_collector()

    try:
        run(server, on_ready=ready, **listener_options(server))
    except StartupFailed:
        return 1
    return 0


def config_problems(config: Config) -> list[ConfigProblem]:
    """Return everything that keeps a server of this configuration from starting, also what only building it shows."""
    found: list[ConfigProblem] = []
    check_start(config, lambda path, message: found.append(ConfigProblem(path, message)))
    if not found:  # else the first of them would be reported again, without the path of its setting
        try:
            Toolgate(config)
        except (ValueError, OSError, ToolgateError) as error:
            found.append(ConfigProblem("", str(error)))
    return found


def listener_options(server: Toolgate) -> dict[str, Any]:
    """Return the options of this server's listener."""
    settings = server.config.server
    limits = {name: value for name, value in asdict(settings.limits).items() if name in RequestLimits.__struct_fields__}
    return {
        "host": settings.host,
        "port": settings.port,
        "limits": RequestLimits(**limits),
        "encode_error": server.refuse,
        "drain_seconds": settings.drain_seconds,
        "on_drain": server.drain,
    }
