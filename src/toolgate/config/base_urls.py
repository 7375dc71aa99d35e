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
        return f"must start with {' or '.join([f'{scheme}://' for scheme in schemes])} and name a host"
    if parts.username is not None:
        return "holds credentials: put them into api_key or headers"
    if parts.query or parts.fragment:
        return "must end with its path: no ? and no #"
    return None


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
