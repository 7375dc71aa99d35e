"""Parse URLs into origins and targets, and find the proxy for an origin. Opens no connection."""

import ipaddress
import re
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from toolgate.conversation.errors import InternalGatewayError

DEFAULT_PORTS = {"http": 80, "https": 443}
# No controls and no blanks, which could end the request line; other characters are checked part by part.
_PLAIN_URL = re.compile(r"[^\x00-\x20\x7f]+")


class UpstreamOrigin(Struct, frozen=True):
    """A scheme, host and port: requests to the same one may share connections."""

    scheme: str
    host: str
    port: int

    @property
    def name(self) -> str:
        """Host and port, for error messages."""
        return f"{self.bracketed}:{self.port}"

    @property
    def bracketed(self) -> str:
        """The host as it is written in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        return self.bracketed if self.port == DEFAULT_PORTS[self.scheme] else self.name


class Proxy(Struct, frozen=True):
    """A forward proxy reached over plain HTTP; `authorization` is the value of its header."""

    host: str
    port: int
    authorization: str | None


def parse_url(url: str) -> tuple[UpstreamOrigin, str]:
    """Split a URL into its origin and request target, or refuse it without repeating it."""
    # urlsplit removes CR, LF and tabs without an error, so they are looked for first.
    if not _PLAIN_URL.fullmatch(url):
        raise InternalGatewayError("an upstream's URL holds a space or control character")
    try:
        parts = urlsplit(url)
        host = parts.hostname
        # IDNA 2003 and 2008 map some names beyond ASCII to different hosts: such a name must be given in Punycode.
        if parts.scheme not in DEFAULT_PORTS or not host or not host.isascii():
            raise ValueError(parts.scheme)
        host.encode("idna")  # checks the length of labels, which the resolver would only reject later
        origin = UpstreamOrigin(parts.scheme, host, DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        target.encode("ascii")
    except ValueError:
        raise InternalGatewayError("an upstream's URL has a malformed host, port or path") from None
    if parts.username is not None:
        raise InternalGatewayError(f"the URL of {origin.name} holds credentials: put them in a header")
    return origin, target


class Proxies(Struct, frozen=True):
    """The proxies of the environment, and the hosts without one."""

    by_scheme: Mapping[str, str]
    exempt: tuple[str, ...] = ()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Proxies":
        """Read HTTP_PROXY, HTTPS_PROXY and NO_PROXY; the lower-case spelling wins, as with curl."""

        def value(name: str) -> str:
            return environment.get(name) or environment.get(name.upper()) or ""

        found = {scheme: value(f"{scheme}_proxy") for scheme in DEFAULT_PORTS}
        exempt = (entry.strip().lower() for entry in value("no_proxy").split(","))
        return cls({scheme: url for scheme, url in found.items() if url}, tuple(filter(None, exempt)))

    def towards(self, origin: UpstreamOrigin) -> Proxy | None:
        """Return the proxy for an origin; loopback never has one."""
        url, address = self.by_scheme.get(origin.scheme), _address(origin.host)
        local = origin.host == "localhost" or origin.host.endswith(".localhost")
        if not url or local or (address is not None and address.is_loopback):
            return None
        if any(_covers(entry, origin) for entry in self.exempt):
            return None
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")  # curl takes `host:port`, too
            host, port = parts.hostname, parts.port or 80
            (host or "").encode("idna")  # as in `parse_url`
        except ValueError:
            host = None
        if not host or parts.scheme != "http":
            variable = f"{origin.scheme.upper()}_PROXY"
            raise InternalGatewayError(
                f"{variable} must name a proxy as http://host:port; NO_PROXY exempts hosts from it"
            )
        if parts.username is None:
            return Proxy(host, port, None)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return Proxy(host, port, "Basic " + b64encode(pair.encode()).decode("ascii"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _covers(entry: str, origin: UpstreamOrigin) -> bool:
    """Match an entry of NO_PROXY: `*`, a host, `host:port`, a domain such as `.example.org`, or a network (10.0.0.0/8)."""
    address = _address(origin.host)
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    if entry in ("*", origin.host, origin.name):
        return True
    domain, _, port = entry.removeprefix("*").lstrip(".").partition(":")
    return bool(domain) and origin.host.endswith(f".{domain}") and port in ("", str(origin.port))
