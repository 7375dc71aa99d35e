"""What is known of providers: one row each in `catalog.yaml`, looked up by name or by the host of a URL.

A row says which dialects a provider speaks and where, which variable usually holds its key, how it differs from the
dialects' letter and what its models can do. Provider facts live in rows; no code asks who the provider is.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta, Struct

from toolgate.dialects.dialect import Quirks

DialectName: TypeAlias = Literal["openai_chat", "openai_responses", "anthropic", "ollama", "peer"]


class Capabilities(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model can do."""

    tools: Annotated[bool, Meta(description="Calls tools by itself.")] = True
    parallel: Annotated[bool, Meta(description="Makes several calls in one answer.")] = True
    images: Annotated[bool, Meta(description="Sees images.")] = True
    system: Annotated[bool, Meta(description="Takes system messages.")] = True
    thinking: Annotated[bool, Meta(description="Can be told how much to think.")] = False
    max_tools: Annotated[int, Meta(ge=0, description="Tools that one request may offer.")] = 128
    context: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens of input and output together.")] = (
        None
    )


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a provider speaks one dialect, and how it differs from it there.

    Where every customer has a host of their own there is no `base_url`, only the `path` that follows the host.
    """

    base_url: str | None = None
    path: str | None = None
    quirks: Mapping[str, Any] = {}


class Row(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider; the first dialect is its own choice.

    `hosts` are further host names that belong to it; one that starts with a dot covers everything below it.
    """

    title: str
    dialects: Mapping[DialectName, Endpoint]
    key: str | None = None
    hosts: tuple[str, ...] = ()
    quirks: Mapping[str, Any] = {}
    capabilities: Mapping[str, Any] = {}

    def quirks_in(self, dialect: DialectName) -> dict[str, Any]:
        """How it differs from this dialect."""
        endpoint = self.dialects.get(dialect)
        return {**self.quirks, **(endpoint.quirks if endpoint else {})}

    def owns(self, host: str) -> bool:
        """Whether the host is this provider's."""
        return any(host == own or (own.startswith(".") and host.endswith(own)) for own in self._hosts())

    def _hosts(self) -> tuple[str, ...]:
        bases = [host_of(endpoint.base_url) for endpoint in self.dialects.values() if endpoint.base_url]
        return (*bases, *self.hosts)


class Catalog(Struct, frozen=True):
    """All rows by name."""

    rows: Mapping[str, Row]

    def at(self, url: str) -> Row | None:
        """The provider whose host a URL names; machines on loopback are nobody's."""
        host = host_of(url)
        if host in ("", "localhost", "127.0.0.1", "::1"):
            return None
        return next((row for row in self.rows.values() if row.owns(host)), None)


def host_of(url: str) -> str:
    """The host of a URL in small letters, or nothing if it has none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def parse(text: str) -> Catalog:
    """The rows of a table, every quirk and capability checked."""
    rows = msgspec.convert(yaml.load(text, Loader=_LOADER), dict[str, Row])  # noqa: S506 - a safe loader, see below
    for row in rows.values():
        msgspec.convert(row.capabilities, Capabilities)
        for dialect in row.dialects:
            msgspec.convert(row.quirks_in(dialect), Quirks)
    return Catalog(rows)


@cache
def catalog() -> Catalog:
    """The table that comes with Toolgate."""
    return parse(files("toolgate.upstreams").joinpath("catalog.yaml").read_text("utf-8"))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
