"""Check base URLs as they are configured, and complete them for a dialect. Opens nothing."""

import ipaddress
import re
from urllib.parse import urlsplit

from toolgate.upstreams.catalog import DialectName, ProviderCatalogEndpoint

# v1, v4 or v1beta, as a whole segment of a path.
_VERSION = re.compile(r"v\d++\w*+")
# Documentation of providers shows whole endpoints, and people paste them.
_ENDPOINTS = ("/chat/completions", "/responses", "/messages", "/api/chat", "/api/generate")
_PLAIN = re.compile(r"[^\x00-\x20\x7f]+")
# Hosts of URLs without a scheme: those that seldom have TLS (addresses, `localhost`, a name with a port), and names as in
# DNS. A key that was mixed up with a URL looks like neither, so that it is not shown.
_PLAIN_HOST = re.compile(
    r"(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\])(?::\d{1,5})?|[a-z0-9.-]{1,253}:\d{1,5}"
)
_TLS_HOST = re.compile(r"(?:[a-z0-9-]{1,63}\.){1,8}[a-z]{2,10}")


def url_problem(url: str, schemes: tuple[str, ...] = ("http", "https")) -> str | None:
    """Return what is wrong with the base URL of an upstream, if anything, without repeating the URL."""
    if not _PLAIN.fullmatch(url):
        return "holds a space or a control character"
    try:
        parts = urlsplit(url)
        # Both are parsed when they are read, and raise ValueError.
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "has a malformed host or port"
    if parts.scheme not in schemes or not host:
        starts = " or ".join([f"{scheme}://" for scheme in schemes])
        return f"must start with {starts} and name a host{_with_scheme(url, schemes)}"
    if parts.username is not None:
        return "holds credentials: put them into api_key or headers"
    if parts.query or parts.fragment:
        return "must end with its path: no ? and no #"
    return None


def _with_scheme(url: str, schemes: tuple[str, ...]) -> str:
    """Suggest the URL with the scheme that it lacks, or nothing; its path is not shown, because it may hold a secret."""
    host, slash, _ = url.partition("/")
    plain = _PLAIN_HOST.fullmatch(host)
    if not plain and not _TLS_HOST.fullmatch(host):
        return ""
    return f"; did you mean {schemes[0] if plain else schemes[1]}://{host}{slash and '/…'}?"


def base_url(url: str, dialect: DialectName, endpoint: ProviderCatalogEndpoint | None = None) -> str:
    """Return the URL that a dialect's paths are added to: a pasted endpoint is cut off, a missing version is added.

    The beginning of a known endpoint's URL is completed to that URL.
    """
    if dialect == "peer":
        return url
    url = url.rstrip("/")
    for end in _ENDPOINTS:
        url = url.removesuffix(end)
    known = endpoint.base_url if endpoint else None
    # Each customer of such a provider has a host of their own (Azure: NAME.openai.azure.com), with the same path.
    if endpoint and endpoint.path:
        parts = urlsplit(url)
        known = f"{parts.scheme}://{parts.netloc}{endpoint.path}"
    # The slashes keep https://api.example from matching https://api.example.org/v1.
    if known and f"{known}/".startswith(f"{url}/"):
        return known
    # The paths of Ollama's own API begin with /api; /v1 is its imitation of OpenAI's.
    if dialect == "ollama":
        return url.removesuffix("/api").removesuffix("/v1")
    segments = urlsplit(url).path.split("/")
    # The base URL of Anthropic's SDK has no version, the one of OpenAI's has the whole path.
    versioned = segments[-1:] if dialect == "anthropic" else segments
    if any(_VERSION.fullmatch(segment) for segment in versioned):
        return url
    # Gateways name the API in their last segment, and add the version themselves.
    if dialect != "anthropic" and segments[-1] in ("openai", "openapi"):
        return url
    return f"{url}/v1"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to the host."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
