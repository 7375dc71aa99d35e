"""From settings as they are written to a `Config`: what they refer to is looked up, what contradicts itself is noted."""

import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from toolgate.config.addresses import complaint, is_loopback
from toolgate.config.models import Surroundings, default_model, resolve_models
from toolgate.config.problems import Problems, meant
from toolgate.config.secret import Secret
from toolgate.config.settings import File, Key, McpServer, Runs, Server, Tools
from toolgate.config.upstreams import check_headers, resolve_upstream, row_of
from toolgate.config.values import Config
from toolgate.upstreams.catalog import Catalog

_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_KEY_NAME = re.compile(r"[\w.@-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?")
_SOURCE = re.compile(r"[\w.-]{1,64}")
_STORES = ("sqlite", "postgresql", "postgres")
_CACHES = ("redis", "rediss", "valkey", "unix")


def resolve(file: File, catalog: Catalog, env: Mapping[str, str], problems: Problems) -> Config:
    """The configuration that the settings describe; it is not to be used when a problem was noted."""
    upstreams = {name: resolve_upstream(name, entry, catalog, env, problems) for name, entry in file.upstreams.items()}
    rows = {name: row_of(entry, catalog) for name, entry in file.upstreams.items()}
    models = resolve_models(file.models, Surroundings(upstreams, rows), problems)
    _check_server(file.server, bool(file.keys), problems)
    _check_keys(file.keys, {name for entry in file.models for name in (entry.name, *entry.aliases)}, problems)
    _check_tools(file.tools, problems)
    _check_runs(file.runs, problems)
    _check_address("storage", file.storage, _STORES, problems)
    _check_address("redis", file.redis, _CACHES, problems)
    return Config(
        server=file.server,
        keys=file.keys,
        upstreams={name: upstream for name, upstream in upstreams.items() if upstream},
        models=models,
        default_model=default_model(file.default_model, file.models, problems),
        tools=file.tools,
        embedded=file.embedded,
        text=file.text,
        storage=file.storage,
        storage_pool=file.storage_pool,
        redis=file.redis,
        records=file.records,
        responses=file.responses,
        runs=file.runs,
        log=file.log,
    )


def check_bind(config: Config, problems: Problems) -> None:
    """Notes an address that others can reach while anybody would be let in."""
    host = config.server.host
    if not config.keys and not is_loopback(host):
        problems.note(
            "server.host",
            f"{host} can be reached from other machines, so a key is needed: add one under `keys`, "
            'such as {name: me, key: "${TOOLGATE_KEY}"}, or listen on 127.0.0.1',
        )


def _check_server(server: Server, has_keys: bool, problems: Problems) -> None:
    if server.open and has_keys:
        problems.note("server.open", "contradicts `keys`: remove one of the two")
    for number, host in enumerate(server.hosts):
        if not _HOST.fullmatch(host):
            problems.note(f"server.hosts[{number}]", "must be a host name without scheme, port or path")
    for number, origin in enumerate(server.origins):
        path = f"server.origins[{number}]"
        if origin == "*":
            if not has_keys:
                problems.note(path, "* would let every web page in: it needs keys")
        elif not _ORIGIN.fullmatch(origin):
            problems.note(path, "must be an origin in small letters, such as https://app.example.org, without a path")


def _check_runs(runs: Runs, problems: Problems) -> None:
    if runs.lease_seconds < 2 * runs.look_seconds:
        problems.note("runs.lease_seconds", "must be at least twice runs.look_seconds, or a node loses what it has")


def _check_keys(keys: tuple[Key, ...], models: Collection[str], problems: Problems) -> None:
    names: dict[str, str] = {}
    values: dict[Secret, str] = {}
    for number, key in enumerate(keys):
        path = f"keys[{number}]"
        text = key.key.reveal()
        if not text:
            problems.note(f"{path}.key", "is empty")
        elif text.startswith("sha256:") and not _DIGEST.fullmatch(text):
            problems.note(f"{path}.key", "must have 64 hex digits after sha256:")
        elif not _KEY.fullmatch(text):
            problems.note(f"{path}.key", "may hold printable ASCII without spaces only, 4096 characters at most")
        if not _KEY_NAME.fullmatch(key.name):
            problems.note(f"{path}.name", "may hold letters, digits and . _ @ - only, 64 at most")
        if key.name in names:
            problems.note(f"{path}.name", f"{key.name} is already given by {names[key.name]}")
        if text and key.key in values:
            problems.note(f"{path}.key", f"is the same as {values[key.key]}.key")
        names.setdefault(key.name, path)
        values.setdefault(key.key, path)
        for place, model in enumerate(key.models):
            if "*" not in model and model not in models:
                problems.note(f"{path}.models[{place}]", f"there is no model {model}; {meant(model, models)}")


def _check_tools(tools: Tools, problems: Problems) -> None:
    for name, server in tools.mcp.items():
        _check_mcp(f"tools.mcp.{name}", name, server, problems)
    for name, service in tools.http.items():
        path = f"tools.http.{name}"
        _check_url(f"{path}.base_url", service.base_url, problems)
        if service.openapi.lower().startswith(("http:", "https:")):
            _check_url(f"{path}.openapi", service.openapi.partition("?")[0], problems)
        check_headers(service.headers, f"{path}.headers", problems)
    webhook = tools.approvals.webhook
    _check_url("tools.approvals.webhook.url", webhook.url.partition("?")[0] if webhook else None, problems)


def _check_mcp(path: str, name: str, server: McpServer, problems: Problems) -> None:
    if bool(server.command) == bool(server.url):
        problems.note(path, "needs either a command or a url")
    if not _SOURCE.fullmatch(name):
        problems.note(path, "a name may hold letters, digits and . _ - only, 64 at most")
    _check_url(f"{path}.url", server.url and server.url.partition("?")[0], problems)
    if server.url and not server.url.isprintable():
        problems.note(f"{path}.url", "holds a space or a control character")
    check_headers(server.headers, f"{path}.headers", problems)
    for variable in server.env:
        if "=" in variable or "\0" in variable:
            problems.note(f"{path}.env.{variable}", "is not the name of a variable")
    if server.oauth is not None:
        _check_url(f"{path}.oauth.issuer", server.oauth.issuer, problems)


def _check_url(path: str, url: str | None, problems: Problems) -> None:
    if url is not None and (wrong := complaint(url)):
        problems.note(path, wrong)


def _check_address(path: str, address: Secret | None, schemes: Collection[str], problems: Problems) -> None:
    if address is None:
        return
    scheme, mark, rest = address.reveal().partition("://")
    if not mark or scheme.partition("+")[0] not in schemes:
        problems.note(path, f"must start with one of {', '.join(f'{known}://' for known in schemes)}")
    elif rest.partition("/")[0].count("@") > 1:  # what is taken for the host would be told, and is half a password
        problems.note(path, "has more than one @ before its path: write %40 for one in a name or password")
    elif scheme != "sqlite" and not _is_readable(address.reveal()):  # the library's words would show a part of it
        problems.note(path, "is malformed: write special characters of a name or password as %XX, such as %2F for /")


def _is_readable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
