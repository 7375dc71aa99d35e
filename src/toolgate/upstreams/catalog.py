"""Look up providers by name or by the host of a URL: one row each in `catalog.yaml`.

A row has the dialects of a provider and their URLs, the variable that usually holds its key, how it differs from the
dialects, and what its models can do. Facts about providers live in rows; no code compares provider names.
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


class ModelCapabilities(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model can do."""

    tools: Annotated[bool, Meta(description="Calls tools by itself.")] = True
    parallel: Annotated[bool, Meta(description="Makes several calls in one answer.")] = True
    images: Annotated[bool, Meta(description="Sees images.")] = True
    system: Annotated[bool, Meta(description="Takes system messages.")] = True
    thinking: Annotated[bool, Meta(description="The amount of thinking can be set.")] = False
    max_tools: Annotated[int, Meta(ge=0, description="Tools that one request may offer.")] = 128
    context: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens of input and output together.")] = (
        None
    )


class ProviderCatalogEndpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The URL of a provider for one dialect, and how it differs from the dialect there.

    Where every customer has a host of their own there is no `base_url`, only the `path` that follows the host.
    """

    base_url: str | None = None
    path: str | None = None
    quirks: Mapping[str, Any] = {}


class Provider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider; the first dialect is its own choice.

    `hosts` are further host names that belong to it; one that starts with a dot covers everything below it.
    """

    title: str
    dialects: Mapping[DialectName, ProviderCatalogEndpoint]
    key: str | None = None
    hosts: tuple[str, ...] = ()
    quirks: Mapping[str, Any] = {}
    capabilities: Mapping[str, Any] = {}

    def quirks_in(self, dialect: DialectName) -> dict[str, Any]:
        """Return how it differs from this dialect."""
        endpoint = self.dialects.get(dialect)
        return {**self.quirks, **(endpoint.quirks if endpoint else {})}

    def owns(self, host: str) -> bool:
        """Whether the host is this provider's."""
        bases = [host_of(endpoint.base_url) for endpoint in self.dialects.values() if endpoint.base_url]
        return any(host == own or (own.startswith(".") and host.endswith(own)) for own in (*bases, *self.hosts))


class BuiltinProviderCatalog(Struct, frozen=True):
    """All rows by name."""

    rows: Mapping[str, Provider]

    def at(self, url: str) -> Provider | None:
        """Return the provider of a URL's host; None on loopback."""
        host = host_of(url)
        # Rows such as Ollama's have a URL on loopback, but any other server may listen there.
        if host in ("", "localhost", "127.0.0.1", "::1"):
            return None
        return next((row for row in self.rows.values() if row.owns(host)), None)


def host_of(url: str) -> str:
    """Return the host of a URL in lower case, or an empty string."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def parse(text: str) -> BuiltinProviderCatalog:
    """Parse a table, and check every quirk and capability."""
    rows = msgspec.convert(yaml.load(text, Loader=_LOADER), dict[str, Provider])  # noqa: S506 - a safe loader, see below
    # The rows keep plain mappings, which a configuration overrides key by key; here a misspelt key is found.
    for row in rows.values():
        msgspec.convert(row.capabilities, ModelCapabilities)
        for dialect in row.dialects:
            msgspec.convert(row.quirks_in(dialect), Quirks)
    return BuiltinProviderCatalog(rows)


@cache
def catalog() -> BuiltinProviderCatalog:
    """Return the table that comes with Toolgate."""
    return parse(files("toolgate.upstreams").joinpath("catalog.yaml").read_text("utf-8"))


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # much faster, where libyaml is installed
