"""Resolve settings into a `Config`: look up what they refer to, and note what contradicts itself."""

import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from toolgate.config.base_urls import is_loopback, url_problem
from toolgate.config.errors import ProblemCollector, suggestion
from toolgate.config.models import NAMES, UpstreamsWithProviders, default_model, resolve_models
from toolgate.config.resolved_config import Config
from toolgate.config.settings import (
    KeySettings,
    RootSettings,
    ServerSettings,
    ServerToolSettings,
)
from toolgate.config.settings.secret import Secret
from toolgate.config.upstreams import check_headers, resolve_upstream, row_of
from toolgate.upstreams.catalog import BuiltinProviderCatalog
from toolgate.upstreams.router import LENT_PREFIX

# What `toolgate keys hash` prints, so that the file does not hold the key itself.
_KEY_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_KEY_NAME = re.compile(r"[\w.@-]{1,64}")
# A key travels in a header: visible ASCII, of a length that a request's headers have room for.
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")
# Fewer characters than this are too few for a key that other machines can try.
_GUESSABLE = 16
# `example.org` or `[::1]`.
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+")
# As browsers send it in `Origin`: small letters, no path, the port only if it is not the scheme's own. Schemes may be
# those of browser extensions and editors, such as `vscode-webview://`.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?")
_SERVER_NAME = re.compile(r"[\w.-]{1,64}")
_DATABASE_SCHEMES = ("sqlite", "postgresql", "postgres")
_REDIS_SCHEMES = ("redis", "rediss", "valkey", "unix")


def resolve(
    file: RootSettings, catalog: BuiltinProviderCatalog, env: Mapping[str, str], problems: ProblemCollector
) -> Config:
    """Resolve the settings; the result must not be used when a problem was noted."""
    upstreams = {name: resolve_upstream(name, entry, catalog, env, problems) for name, entry in file.upstreams.items()}
    rows = {name: row_of(entry, catalog) for name, entry in file.upstreams.items()}
    models = resolve_models(file.models, UpstreamsWithProviders(upstreams, rows), problems)
    _check_server(file.server, bool(file.keys), problems)
    _check_keys(file.keys, {name for entry in file.models for name in (entry.name, *entry.aliases)}, problems)
    _check_tools(file.tools, problems)
    # One renewal may be late or fail before another node takes the runs over.
    if file.runs.lease_seconds < 2 * file.runs.look_seconds:
        message = "must be at least twice runs.look_seconds, or a node loses its runs"
        problems.note("runs.lease_seconds", message, unless=r"runs\.look_seconds")
    _check_address("storage", file.storage, _DATABASE_SCHEMES, problems)
    _check_address("redis", file.redis, _REDIS_SCHEMES, problems)
    return Config(
        server=file.server,
        keys=file.keys,
        upstreams={name: upstream for name, upstream in upstreams.items() if upstream},
        models=models,
        default_model=default_model(file.default_model, file.models, problems),
        tools=file.tools,
        vscode=file.vscode,
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


def check_bind(config: Config, problems: ProblemCollector) -> None:
    """Note an address that other machines can reach while no key is needed."""
    host = config.server.host
    if not config.keys and not is_loopback(host):
        problems.note(
            "server.host",
            f"{host} can be reached from other machines, so a key is needed: add one under `keys`, "
            'such as {name: me, key: "${TOOLGATE_KEY}"}, or listen on 127.0.0.1',
            unless="keys",
        )


def short_key_warnings(config: Config) -> list[str]:
    """Return a sentence for each key of the file that other machines may guess; digests are longer than any such key."""
    host = config.server.host
    return [
        f"the key {key.name} has fewer than {_GUESSABLE} characters, and {host} can be reached from other machines, where"
        f" it may be guessed; `toolgate keys new {key.name}` makes a better one."
        for key in config.keys
        if len(key.key.reveal()) < _GUESSABLE and not is_loopback(host)
    ]


def _check_server(server: ServerSettings, has_keys: bool, problems: ProblemCollector) -> None:
    if server.open and has_keys:
        problems.note("server.open", "contradicts `keys`: remove one of the two")
    for number, host in enumerate(server.hosts):
        if not _HOST.fullmatch(host):
            problems.note(f"server.hosts[{number}]", "must be a host name without scheme, port or path")
    for number, origin in enumerate(server.origins):
        path = f"server.origins[{number}]"
        if origin == "*":
            if not has_keys:
                problems.note(path, "* would let every web page in: it needs keys", unless="keys")
        elif not _ORIGIN.fullmatch(origin):
            problems.note(path, "must be an origin in small letters, such as https://app.example.org, without a path")


def _check_keys(keys: tuple[KeySettings, ...], models: Collection[str], problems: ProblemCollector) -> None:
    names: dict[str, str] = {}
    values: dict[Secret, str] = {}
    for number, key in enumerate(keys):
        path = f"keys[{number}]"
        text = key.key.reveal()
        if not text:
            problems.note(f"{path}.key", "is empty")
        elif text.startswith("sha256:") and not _KEY_DIGEST.fullmatch(text):
            problems.note(f"{path}.key", "must have 64 hex digits after sha256:")
        elif not _KEY.fullmatch(text):
            problems.note(f"{path}.key", "may hold printable ASCII without spaces only, 4096 characters at most")
        if not _KEY_NAME.fullmatch(key.name):
            problems.note(f"{path}.name", "may hold letters, digits and . _ @ - only, 64 at most")
        if key.name in names:
            problems.note(f"{path}.name", f"{key.name} is already given by {names[key.name]}")
        # Two keys with one secret could not be told apart by a request.
        if text and key.key in values:
            problems.note(f"{path}.key", f"is the same as {values[key.key]}.key")
        names.setdefault(key.name, path)
        values.setdefault(key.key, path)
        for place, model in enumerate(key.models):
            # Patterns may be meant for models to come, and models that an editor lends are not in the file.
            if "*" not in model and model not in models and not model.startswith(LENT_PREFIX):
                problems.note(
                    f"{path}.models[{place}]", f"there is no model {model}; {suggestion(model, models)}", NAMES
                )


def _check_tools(tools: ServerToolSettings, problems: ProblemCollector) -> None:
    for name, server in tools.mcp.items():
        path = f"tools.mcp.{name}"
        if bool(server.command) == bool(server.url):
            problems.note(path, "needs either a command or a url", unless=rf"{re.escape(path)}\.(command|url)")
        if not _SERVER_NAME.fullmatch(name):
            problems.note(path, "a name may hold letters, digits and . _ - only, 64 at most")
        # Unlike the base URL of an upstream, this one may have a query: nothing is added to it.
        _check_url(f"{path}.url", server.url and server.url.partition("?")[0], problems)
        if server.url and not server.url.isprintable():
            problems.note(f"{path}.url", "holds a space or a control character")
        check_headers(server.headers, f"{path}.headers", problems)
        for variable in server.env:
            if "=" in variable or "\0" in variable:
                problems.note(f"{path}.env.{variable}", "is not the name of a variable")
        if server.oauth is not None:
            _check_url(f"{path}.oauth.issuer", server.oauth.issuer, problems)
    for name, service in tools.http.items():
        path = f"tools.http.{name}"
        _check_url(f"{path}.base_url", service.base_url, problems)
        if service.openapi.lower().startswith(("http:", "https:")):
            _check_url(f"{path}.openapi", service.openapi.partition("?")[0], problems)
        check_headers(service.headers, f"{path}.headers", problems)
    webhook = tools.approvals.webhook
    _check_url("tools.approvals.webhook.url", webhook.url.partition("?")[0] if webhook else None, problems)


def _check_url(path: str, url: str | None, problems: ProblemCollector) -> None:
    if url is not None and (problem := url_problem(url)):
        problems.note(path, problem)


def _check_address(path: str, address: Secret | None, schemes: Collection[str], problems: ProblemCollector) -> None:
    if address is None:
        return
    scheme, mark, rest = address.reveal().partition("://")
    if not mark or scheme.partition("+")[0] not in schemes:
        problems.note(path, f"must start with one of {', '.join(f'{known}://' for known in schemes)}")
    elif rest.partition("/")[0].count("@") > 1:
        # The host is printed, and would hold a part of the password.
        problems.note(path, "has more than one @ before its path: write %40 for one in a name or password")
    elif scheme != "sqlite":
        # The library that opens the address would show a part of it in its error message.
        try:
            readable = urlsplit(address.reveal()).port != 0
        except ValueError:
            readable = False
        if not readable:
            problems.note(
                path, "is malformed: write special characters of a name or password as %XX, such as %2F for /"
            )
