"""Base URLs, as people write them and as a dialect needs them. Opens nothing."""

import ipaddress
import re
from urllib.parse import urlsplit

from toolgate.upstreams.catalog import DialectName, Endpoint

_VERSION = re.compile(r"v\d++\w*+")
_ENDPOINTS = ("/chat/completions", "/responses", "/messages", "/api/chat", "/api/generate")
_PLAIN = re.compile(r"[^\x00-\x20\x7f]+")


def complaint(url: str, schemes: tuple[str, ...] = ("http", "https")) -> str | None:
    """What is wrong with a URL as the base of an upstream, if anything; the URL is not repeated."""
    if not _PLAIN.fullmatch(url):
        return "holds a space or a control character"
    try:
        parts = urlsplit(url)
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


def base_url(url: str, dialect: DialectName, endpoint: Endpoint | None = None) -> str:
    """The URL that a dialect's paths are added to: a pasted endpoint is cut off, a missing version added.

    What is the beginning of a known endpoint's URL becomes that URL, whatever its path is called.
    """
    if dialect == "peer":
        return url
    url = url.rstrip("/")
    for end in _ENDPOINTS:
        url = url.removesuffix(end)
    known = _known(url, endpoint)
    if known and f"{known}/".startswith(f"{url}/"):
        return known
    if dialect == "ollama":
        return url.removesuffix("/api").removesuffix("/v1")
    segments = urlsplit(url).path.split("/")
    # Anthropic's clients are told a base without the version, OpenAI's one that holds all of the path.
    versioned = segments[-1:] if dialect == "anthropic" else segments
    if any(_VERSION.fullmatch(segment) for segment in versioned):
        return url
    if dialect != "anthropic" and segments[-1] in ("openai", "openapi"):
        return url
    return f"{url}/v1"


def _known(url: str, endpoint: Endpoint | None) -> str | None:
    if endpoint is None or not endpoint.path:
        return endpoint.base_url if endpoint else None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{endpoint.path}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on the host."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
