"""Loading: a file, the environment and what the command line says, made into one checked `Config`."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolgate.config.problems import ConfigError, Problem, Problems
from toolgate.config.reading import parse_yaml, read
from toolgate.config.resolve import check_bind, resolve
from toolgate.config.settings import File
from toolgate.config.values import ECHO, Config, Outline
from toolgate.upstreams.catalog import catalog

_NO = {"0", "false", "no", "off"}


def load(
    path: Path | None,
    env: Mapping[str, str],
    *,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    text: bytes | None = None,
) -> Config:
    """The configuration of a file, or the built-in one; ConfigError lists everything that is wrong with it.

    `text` is what the file holds if that was read already.
    `host`, `port` and `workers` take the place of what the file says, and an address that is open to all is refused.
    """
    source = str(path) if path else "the built-in configuration"
    problems = Problems()
    text = b"" if path is None else _read(path) if text is None else text
    document = parse_yaml(text, source) if path else None
    file = read(File, document, env, problems)
    problems.settle(source)
    assert file is not None  # or a problem was noted
    config = resolve(file, catalog(), env, problems)
    given = {"host": host, "port": port, "workers": workers}
    said = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(config.server, **said),
        source=path,
        outline=Outline(sections=frozenset(document or ()), ends_line=text.endswith(b"\n")),
    )
    if env.get("ENABLE_TOOLS", "").strip().lower() in _NO:
        config = msgspec.structs.replace(config, tools=msgspec.structs.replace(config.tools, enabled=False))
    if env.get("ENABLE_EMBEDDED_MODEL", "").strip().lower() in _NO:
        config = _without_local(config)
    check_bind(config, problems)
    problems.settle(source)
    return config


def _without_local(config: Config) -> Config:
    """The configuration without the model that runs on this machine; something is always served."""
    models = tuple([model for model in config.models if not config.is_local(model)])
    embedded = msgspec.structs.replace(config.embedded, enabled=False)
    models = models or (ECHO,)
    default = config.default_model if config.default_model in [model.name for model in models] else None
    return msgspec.structs.replace(config, models=models, default_model=default, embedded=embedded)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = (error.strerror or "cannot be read").lower()
        raise ConfigError([Problem("", f"cannot read the file: {what}")], str(path)) from None
