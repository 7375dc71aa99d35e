"""Resolve the configured upstreams: complete them from the provider table, and check them."""

import re
from collections.abc import Mapping

import msgspec

from toolgate.config.base_urls import base_url, url_problem
from toolgate.config.errors import ProblemCollector, suggestion
from toolgate.config.resolved_config import BUILTIN, VSCODE, UpstreamConfig
from toolgate.config.settings import UpstreamSettings
from toolgate.config.settings.secret import Secret
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import BuiltinProviderCatalog, DialectName, Provider, host_of

_NAME = re.compile(r"[\w.@/-]{1,64}")
# The token characters of RFC 9110, and values without spaces at their ends: what HTTP libraries send without complaint.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
# Headers that providers take a key in; one of them in `headers` stands in for `api_key`.
_CREDENTIALS = {"authorization", "x-api-key", "api-key"}


def row_of(entry: UpstreamSettings, catalog: BuiltinProviderCatalog) -> Provider | None:
    """Find the row of the provider table: by the provider's name if one is given, else by the host of the URL."""
    if entry.provider is not None:
        return catalog.rows.get(entry.provider)
    url = entry.base_url or ""
    # A URL without a scheme is a mistake of its own; it must not hide which provider is meant.
    return catalog.at(url if "://" in url else f"https://{url}") if url else None


def resolve_upstream(
    name: str,
    entry: UpstreamSettings,
    catalog: BuiltinProviderCatalog,
    env: Mapping[str, str],
    problems: ProblemCollector,
) -> UpstreamConfig | None:
    """Resolve one upstream; None when something essential is missing."""
    path = f"upstreams.{name}"
    if name in (BUILTIN, VSCODE):
        problems.note(
            path, f"this name belongs to the {'built-in upstream' if name == BUILTIN else 'bridge to VS Code'}"
        )
    elif not _NAME.fullmatch(name):
        problems.note(path, "a name may hold letters, digits and . _ @ / - only, 64 at most")
    check_headers(entry.headers, f"{path}.headers", problems)
    row = row_of(entry, catalog)
    if entry.provider is not None and row is None:
        # Refused and not noted: what a known provider would give must not be reported as missing.
        problems.refuse(f"{path}.provider", f"is not in the table; {suggestion(entry.provider, catalog.rows)}")
    # The dialects of a row are in order of preference.
    dialect = entry.dialect or (next(iter(row.dialects)) if row else None)
    if dialect is None:
        unread = rf"{re.escape(path)}\.(dialect|provider)"
        problems.note(path, "needs a dialect, or a provider of the table", unless=unread)
    url = _base_url(entry, row, dialect, path, problems)
    key = _api_key(entry, row, url, path, env, problems)
    if dialect is None or url is None:
        return None
    return UpstreamConfig(
        name=name,
        dialect=dialect,
        base_url=url,
        api_key=key,
        headers=entry.headers,
        timeouts=entry.timeouts,
        breaker=entry.breaker,
        max_connections=entry.max_connections,
        quirks=msgspec.convert({**(row.quirks_in(dialect) if row else {}), **entry.quirks}, Quirks),
        # Also for an upstream that was recognised by its host alone.
        provider=next((known for known, one in catalog.rows.items() if one is row), None),
    )


def _base_url(
    entry: UpstreamSettings, row: Provider | None, dialect: DialectName | None, path: str, problems: ProblemCollector
) -> str | None:
    """Return the completed URL of an upstream; what is wrong with a given one is noted, whatever its dialect."""
    endpoint = row.dialects.get(dialect) if row and dialect else None
    if entry.base_url is not None:
        # An unknown dialect may be that of a peer.
        peer = dialect == "peer" or (dialect is None and entry.base_url.startswith(("ws:", "wss:")))
        problem = url_problem(entry.base_url, ("ws", "wss", "http", "https") if peer else ("http", "https"))
        if problem:
            problems.note(f"{path}.base_url", problem)
        return None if problem or dialect is None else base_url(entry.base_url, dialect, endpoint)
    if dialect is None and not problems.is_unread(f"{path}.dialect"):
        return None  # a provider may bring both, and that one is missing is noted already
    if endpoint and endpoint.base_url:
        return endpoint.base_url
    if row and dialect and not endpoint:
        problems.note(f"{path}.dialect", f"{row.title} is not known to speak it; {suggestion(dialect, row.dialects)}")
    else:
        problems.note(f"{path}.base_url", "is required", unless=rf"{re.escape(path)}\.provider")
    return None


def _api_key(
    entry: UpstreamSettings,
    row: Provider | None,
    url: str | None,
    path: str,
    env: Mapping[str, str],
    problems: ProblemCollector,
) -> Secret | None:
    """Return the configured key, or that of the provider's variable, which is sent only to the provider's own hosts."""
    if entry.api_key is not None:
        if not _HEADER_VALUE.fullmatch(entry.api_key.reveal()):
            what = "holds characters that a header cannot carry" if entry.api_key else "is empty"
            problems.note(f"{path}.api_key", what)
        return entry.api_key
    # `provider: openai` with another `base_url` names a compatible server, which must not get the key of OpenAI.
    if row is None or row.key is None or url is None or not row.owns(host_of(url)):
        return None
    if any(name.lower() in _CREDENTIALS for name in entry.headers):
        return None
    default = env.get(row.key, "").strip()
    if not default:
        problems.note(f"{path}.api_key", f"is required: set the environment variable {row.key} or give another")
        return None
    return Secret(default)


def check_headers(headers: Mapping[str, Secret], path: str, problems: ProblemCollector) -> None:
    """Note every header that cannot be sent."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            problems.note(f"{path}.{name}", "is not the name of a header")
        elif not _HEADER_VALUE.fullmatch(value.reveal()):
            problems.note(f"{path}.{name}", "holds characters that a header cannot carry, or nothing")
