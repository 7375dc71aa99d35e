"""`toolgate serve`: check what can be checked before anything heavy is loaded, then start the server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolgate.cli.config_file import BAD_CONFIG, CONFIG_FILE, ConfigOption, end, find_config, load_config, note

if TYPE_CHECKING:
    from toolgate.config import Config


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; overrides server.host.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; overrides server.port.", min=0, max=65535)
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Number of server processes; overrides server.workers. `auto` starts one per processor."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Read the configuration file again whenever it is saved.")
    ] = False,
    open_console: Annotated[
        bool, typer.Option("--open", help="Open the console in a browser when the server is ready.")
    ] = False,
) -> None:
    """Start the server."""
    from toolgate.cli.deferred_reload_signals import DeferredReloadSignals

    # Reload signals would end a process that has no handlers yet; the server gets them when it is ready.
    with DeferredReloadSignals() as early:
        from toolgate.cli.port_check import port_problem

        path = find_config(config)
        if path is None and (problem := _missing_keys()):
            end(problem, BAD_CONFIG)
        loaded = load_config(path, host, port, _parse_workers(workers))
        _check_reach(loaded)
        # Loading the server takes much longer than this look at the port.
        if problem := port_problem(loaded.server.host, loaded.server.port):
            end(problem, 1)
        note(f"Using {path}" if path else f"No {CONFIG_FILE} here: serving the built-in models")
        if reload and path:
            from toolgate.cli.config_watch import watch_config

            watch_config(path)
        if open_console:
            from toolgate.cli.open_console import open_when_ready

            if not loaded.server.port:
                end("--open needs a port: give one with --port, or as server.port.", BAD_CONFIG)
            open_when_ready(loaded.server.host, loaded.server.port)
        from toolgate.workers import how_many

        if how_many(loaded) > 1:
            from toolgate.app.supervisor import supervise

            raise typer.Exit(supervise(loaded, config_path=path, on_signals=early.deliver))
        from toolgate.app.serve import serve as run

        raise typer.Exit(run(loaded, config_path=path, on_signals=early.deliver))


def _missing_keys() -> str | None:
    """Return why the built-in configuration is not served: a file that had keys is missing."""
    from toolgate.auth.keys_required_marker import SUFFIX

    # A server that starts while its file is moved away would otherwise ask for no key.
    marker = Path(f"{CONFIG_FILE}{SUFFIX}")
    if not marker.exists():
        return None
    return (
        f"{CONFIG_FILE} had keys and is missing: restore it, or remove {marker} "
        "to allow requests without a key from this machine."
    )


def _parse_workers(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None if text is None else 0
    # `isdigit` alone also takes superscripts, which `int` refuses.
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 256:
        end(f"--workers takes a number from 1 to 256, or auto; not {text!r}.", BAD_CONFIG)
    return int(text)


def _check_reach(config: "Config") -> None:
    """End the command if an OpenAPI document names a host that tools may not reach."""
    if not config.tools.http:
        return
    from toolgate.app.config_build_checks import check_reach
    from toolgate.config import ConfigError, ConfigProblem

    found: list[ConfigProblem] = []
    check_reach(config, lambda path, message: found.append(ConfigProblem(path, message)))
    if found:
        end(str(ConfigError(found, str(config.source or "The configuration"))), BAD_CONFIG)
