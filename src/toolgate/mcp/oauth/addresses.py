"""Check the URLs to which an MCP server may send us or a person's browser. The server is not trusted; opens nothing.

Only the text of a URL is checked. Where its host leads is checked by the egress policy as well.
"""

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from toolgate.mcp.protocol.line_reader import printable
from toolgate.mcp.protocol.transport import McpError

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,2048}")
# RFC 3986 allows none of these but the apostrophe; a shell or a page could take them for syntax.
_UNSAFE = re.compile(r"[\"'<>\\^`{|}]")
# `2130706433`, `0x7f.1` and `0177.0.0.1` are 127.0.0.1 to many resolvers, and no addresses to `ipaddress`.
_NUMERIC = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+))*")


class UnsafeOAuthAddress(McpError):
    """A URL that must not be opened."""


def check_address(url: str, server: str) -> None:
    """Raise UnsafeOAuthAddress unless the URL is https, or in the same kind of network as the server that named it."""
    if not _PRINTABLE.fullmatch(url) or _UNSAFE.search(url):
        raise UnsafeOAuthAddress(f"names an address with strange characters: {printable(url, 100)}")
    try:
        parts = urlsplit(url)
        _port(parts)  # a port out of range raises only here
    except ValueError:
        raise UnsafeOAuthAddress(f"names a malformed address: {printable(url, 100)}") from None
    # Before an `@` a host can be shown that is not the one that is opened: https://bank.example@attacker.example
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise UnsafeOAuthAddress(f"names an address that is no plain web address: {printable(url, 100)}")
    host = parts.hostname
    # A public server must not make us or a browser send requests into the private network.
    network = _network(host)
    if network == "forbidden" or network not in ("public", _network(urlsplit(server).hostname or "")):
        raise UnsafeOAuthAddress(f"names an address that may not be opened: {printable(host, 100)}")
    if parts.scheme != "https" and not (parts.scheme == "http" and network == "loopback"):
        raise UnsafeOAuthAddress(f"names an address that is not https: {printable(url, 100)}")


def covers(audience: str, server: str) -> bool:
    """Return whether a token with this audience is meant for the server: same origin, same path or a parent of it."""
    try:
        ours, theirs = urlsplit(server), urlsplit(audience)
        same_origin = (ours.scheme, ours.hostname, _port(ours)) == (theirs.scheme, theirs.hostname, _port(theirs))
    except ValueError:
        return False
    path = theirs.path.rstrip("/")
    return same_origin and (ours.path.rstrip("/") + "/").startswith(path + "/")


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _network(host: str) -> str:
    """Return `loopback`, `private`, `public`, or `forbidden` for metadata services and odd spellings of numbers."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "forbidden" if _NUMERIC.fullmatch(host) or "%" in host else "public"
    if isinstance(address, ipaddress.IPv6Address):
        # These carry an IPv4 address within, which may be any.
        if address.sixtofour or address.teredo or address in ipaddress.ip_network("64:ff9b::/96"):
            return "forbidden"
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return "loopback"
    # 169.254.169.254 is the metadata service of most clouds, which gives credentials to any process.
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return "forbidden"
    if str(address) == "fd00:ec2::254":  # the metadata service of EC2
        return "forbidden"
    return "public" if address.is_global else "private"
