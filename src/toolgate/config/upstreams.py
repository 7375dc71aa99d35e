"""Upstreams as they are written, completed from the provider table and checked."""

import re
from collections.abc import Mapping

import msgspec

from toolgate.config.addresses import base_url, complaint
from toolgate.config.problems import Problems, meant
from toolgate.config.secret import Secret
from toolgate.config.settings import UpstreamEntry
from toolgate.config.values import BUILTIN, Upstream
from toolgate.dialects.dialect import Quirks
from toolgate.upstreams.catalog import Catalog, DialectName, Row, host_of

_NAME = re.compile(r"[\w.@/-]{1,64}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CREDENTIALS = {"authorization", "x-api-key", "api-key"}


def row_of(entry: UpstreamEntry, catalog: Catalog) -> Row | None:
    """The provider's row: by its name if one is given, else by the host of the URL."""
    if entry.provider is not None:
        return catalog.rows.get(entry.provider)
    return catalog.at(entry.base_url) if entry.base_url else None


def resolve_upstream(
    name: str, entry: UpstreamEntry, catalog: Catalog, env: Mapping[str, str], problems: Problems
) -> Upstream | None:
    """The upstream that an entry describes, or None when something essential is missing."""
    path = f"upstreams.{name}"
    _check_name(name, path, problems)
    check_headers(entry.headers, f"{path}.headers", problems)
    row = row_of(entry, catalog)
    if entry.provider is not None and row is None:
        problems.note(f"{path}.provider", f"is not in the table; {meant(entry.provider, catalog.rows)}")
        return None
    dialect = entry.dialect or (next(iter(row.dialects)) if row else None)
    if dialect is None:
        problems.note(path, "needs a dialect, or a provider of the table")
        return None
    url = _base_url(entry, row, dialect, path, problems)
    key = _api_key(entry, row, url, path, env, problems)
    if url is None:
        return None
    return Upstream(
        name=name,
        dialect=dialect,
        base_url=url,
        api_key=key,
        headers=entry.headers,
        timeouts=entry.timeouts,
        breaker=entry.breaker,
        max_connections=entry.max_connections,
        quirks=msgspec.convert({**(row.quirks_in(dialect) if row else {}), **entry.quirks}, Quirks),
        provider=next((known for known, one in catalog.rows.items() if one is row), None),
    )


def _base_url(entry: UpstreamEntry, row: Row | None, dialect: DialectName, path: str, problems: Problems) -> str | None:
    endpoint = row.dialects.get(dialect) if row else None
    if entry.base_url is not None:
        wrong = complaint(entry.base_url, ("ws", "wss", "http", "https") if dialect == "peer" else ("http", "https"))
        if wrong:
            problems.note(f"{path}.base_url", wrong)
        return None if wrong else base_url(entry.base_url, dialect, endpoint)
    if endpoint and endpoint.base_url:
        return endpoint.base_url
    if row and not endpoint:
        problems.note(f"{path}.dialect", f"{row.title} is not known to speak it; {meant(dialect, row.dialects)}")
    else:
        problems.note(f"{path}.base_url", "is required")
    return None


def _api_key(
    entry: UpstreamEntry, row: Row | None, url: str | None, path: str, env: Mapping[str, str], problems: Problems
) -> Secret | None:
    """The key that is given, or that of the provider's variable, which is sent to none but the provider's own hosts."""
    if entry.api_key is not None:
        if not _HEADER_VALUE.fullmatch(entry.api_key.reveal()):
            what = "holds characters that a header cannot carry" if entry.api_key else "is empty"
            problems.note(f"{path}.api_key", what)
        return entry.api_key
    if row is None or row.key is None or url is None or not row.owns(host_of(url)):
        return None
    if any(name.lower() in _CREDENTIALS for name in entry.headers):
        return None
    usual = env.get(row.key, "").strip()
    if not usual:
        problems.note(f"{path}.api_key", f"is required: set the environment variable {row.key} or give another")
        return None
    return Secret(usual)


def _check_name(name: str, path: str, problems: Problems) -> None:
    if name == BUILTIN:
        problems.note(path, "this name belongs to the built-in upstream")
    elif not _NAME.fullmatch(name):
        problems.note(path, "a name may hold letters, digits and . _ @ / - only, 64 at most")


def check_headers(headers: Mapping[str, Secret], path: str, problems: Problems) -> None:
    """Note every header that cannot be sent."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            problems.note(f"{path}.{name}", "is not the name of a header")
        elif not _HEADER_VALUE.fullmatch(value.reveal()):
            problems.note(f"{path}.{name}", "holds characters that a header cannot carry, or nothing")
