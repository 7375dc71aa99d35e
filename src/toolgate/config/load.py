"""Load a `Config` from a file, the environment and the options of the command line."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from toolgate.config.errors import ConfigError, ConfigProblem, ProblemCollector
from toolgate.config.parse import parse_settings, parse_yaml
from toolgate.config.resolve import check_bind, resolve
from toolgate.config.resolved_config import ECHO, Config, TruncatedConfigFileCheck
from toolgate.config.settings import RootSettings, ServerSettings
from toolgate.config.settings.secret import Secret
from toolgate.config.stable_read import read_file
from toolgate.upstreams.catalog import catalog

_FALSE = {"0", "false", "no", "off"}

# Finds further mistakes in a configuration and reports each with the path of its setting.
Check: TypeAlias = Callable[[Config, Callable[[str, str], None]], None]


def load(
    path: Path | None,
    env: Mapping[str, str],
    *,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    text: bytes | None = None,
    only: Collection[str] | None = None,
    check: Check | None = None,
    regular: bool = False,
) -> Config:
    """Load a file, or the built-in configuration; ConfigError lists all mistakes.

    `text` is the content of the file if it was read already. `only` names the sections to read; the others are ignored.
    `check` finds further mistakes in what was read. `regular` refuses pipes and devices, for which a server would wait.
    `host`, `port` and `workers` override the file. An address that other machines can reach is refused without keys.
    """
    source = str(path) if path else "the built-in configuration"
    problems = ProblemCollector()
    if path is None:
        text = b""
    elif text is None:
        try:
            text = read_file(path, regular=regular)
        except OSError as error:
            reason = (error.strerror or "cannot be read").lower()
            if isinstance(error, FileNotFoundError):
                reason += f"; `toolgate config > {path.name}` writes an example"
            raise ConfigError([ConfigProblem("", f"cannot read the file: {reason}")], source) from None
    document = parse_yaml(text, source, problems) if path else None
    # Mistakes in other sections must not keep a command from opening the database.
    if only is not None and isinstance(document, dict):
        document = {name: section for name, section in document.items() if name in only}
    file = parse_settings(RootSettings, document, env, problems)
    config = resolve(file, catalog(), env, problems)
    given = {"host": host, "port": port, "workers": workers}
    overrides = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, **overrides),
        source=path,
        outline=TruncatedConfigFileCheck(
            sections=frozenset(document if isinstance(document, dict) else ()),
            ends_line=text.endswith(b"\n"),
            # Latin-1 maps every byte to one character, so that a file that is no UTF-8 can be compared, too.
            text=Secret(text.decode("latin-1")),
        ),
    )
    if env.get("ENABLE_TOOLS", "").strip().lower() in _FALSE:
        config = msgspec.structs.replace(config, tools=msgspec.structs.replace(config.tools, enabled=False))
    if env.get("ENABLE_EMBEDDED_MODEL", "").strip().lower() in _FALSE:
        config = _without_embedded(config)
    # After the overrides: --host may name an address that other machines can reach.
    check_bind(config, problems)
    if check is not None:
        check(config, problems.note)
    problems.raise_if_any(source)
    return config


def load_address(path: Path, env: Mapping[str, str]) -> tuple[str, int]:
    """Read only the host and the port of a file, for programs that call its server; a mistake counts as the default."""
    problems = ProblemCollector()
    try:
        document = parse_yaml(read_file(path, regular=True), str(path), problems)
    # A command that only calls a server works without the file.
    except (ConfigError, OSError):
        document = None
    section = document.get("server") if isinstance(document, dict) else None
    server = parse_settings(ServerSettings, section, env, problems)
    return server.host, server.port


def _without_embedded(config: Config) -> Config:
    """Remove the embedded model; `echo` is served if no model is left."""
    models = tuple([model for model in config.models if not config.is_local(model)])
    embedded = msgspec.structs.replace(config.embedded, enabled=False)
    models = models or (ECHO,)
    default = config.default_model if config.default_model in [model.name for model in models] else None
    return msgspec.structs.replace(config, models=models, default_model=default, embedded=embedded)
